"""`elmofire demo`: what it prints and the picture it writes, with any model that is given and with the one in the package."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import click
import pytest
from click.testing import CliRunner
from models import FIXTURES, lively, needs_shared, tiny

from elmofire import Embedder, LanguageModel, save_weights
from elmofire.analysis.usages import find_usage, nearest, same_sense, usage_vectors
from elmofire.cli import cli
from elmofire.cli.demo import BLANKS, USAGES
from elmofire.formats import names
from elmofire.text.vocabulary import Vocabulary

WORDS = Vocabulary(
    ["<S>", "</S>", "<UNK>", "the", "a", "of", "bank", "edge", "side", "patient", "heart", ".", "lent", "him"]
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    save_weights(lively(tiny(head=len(WORDS)), vocabulary=WORDS), folder)
    return folder


@pytest.fixture
def demo(run, tmp_path, monkeypatch):
    """Run it in a folder of its own: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda *arguments: run("demo", *arguments)


class TestDemo:
    def test_it_prints_the_nearest_usage_at_each_layer_and_how_often_it_has_the_same_sense(self, demo, model):
        code, shown, errors = demo("--model", model)
        assert (code, errors) == (0, "")
        elmo, lines = Embedder.load(model), shown.splitlines()
        for word, marked in USAGES.items():
            usages = [find_usage(sentence, sense, elmo.tokenize) for sense, sentence in marked]
            senses = [usage.sense for usage in usages]
            found = [nearest(layer) for layer in usage_vectors(elmo, usages)]
            title = next(
                n for n, line in enumerate(lines) if " ".join(line.split()) == f"{word} layer 0 layer 1 layer 2"
            )
            assert lines[title + 1].split() == ["context-free"]
            for number, line in enumerate(lines[title + 2 : title + 8]):
                context, columns = line.split("all alike")
                assert context.split()[:2] == [str(number + 1), senses[number]]
                assert f" {word} " in context
                expected: list[str] = []
                for layer in found[1:]:
                    [other] = layer[number].which
                    expected += [str(other + 1), senses[other], f"{layer[number].cosine:.2f}"]
                    expected += [] if senses[other] == senses[number] else ["*"]
                assert columns.split() == expected
            figures = [f"{same_sense(layer, senses):.3g} of 6" for layer in found]
            shares = " ".join(lines[title + 8].split())
            assert shares == " ".join(["the nearest has the same sense", *figures])

    def test_it_fills_blanks_with_what_the_language_model_gives(self, demo, model):
        _, shown, _ = demo("--model", model)
        lines, lm = shown.splitlines(), LanguageModel.load(model)
        assert "Words for a blank, by what stands left of it, right of it, and by both:" in lines
        for blank in BLANKS:
            place = lines.index("  " + blank.replace("*", ""))
            for line, direction in zip(lines[place + 1 : place + 4], ("forward", "backward", "both"), strict=True):
                words = [item.word for item in lm.substitutes(blank, top=8, direction=direction)]
                assert line.split(maxsplit=1)[1] == "  ".join(words)

    @pytest.mark.parametrize(("direction", "side"), [("forward", "left"), ("backward", "right")])
    def test_a_model_of_one_direction_fills_blanks_from_its_side_alone(self, demo, tmp_path, direction, side):
        config = tiny(head=len(WORDS), directions=(direction,))
        save_weights(lively(config, vocabulary=WORDS), tmp_path / "model")
        code, shown, errors = demo("--model", "model")
        assert (code, errors) == (0, "")
        lines, lm = shown.splitlines(), LanguageModel.load(tmp_path / "model")
        assert f"Words for a blank, by what stands {side} of it:" in lines
        for blank in BLANKS:
            place = lines.index("  " + blank.replace("*", ""))
            words = [item.word for item in lm.substitutes(blank, top=8, direction=direction)]
            assert lines[place + 1].split(maxsplit=1) == [side, "  ".join(words)]
            assert lines[place + 2] == ""

    def test_the_picture_is_written_where_it_says(self, demo, model, tmp_path):
        assert demo("--model", model)[1].endswith("A picture of the usages at each layer: elmofire-demo.svg\n")
        demo("--model", model, "--output", "pictures/other.svg")
        first, other = tmp_path / "elmofire-demo.svg", tmp_path / "pictures/other.svg"
        assert first.read_text() == other.read_text()
        tips = [title.text for title in ET.parse(other).getroot().iter("{http://www.w3.org/2000/svg}title")]
        for sense, sentence in (usage for marked in USAGES.values() for usage in marked):
            assert tips.count(f"{sense}: {sentence.replace('*', '')}") == 2  # layers 1 and 2; layer 0 is one point

    def test_a_picture_of_another_kind_is_refused_before_anything_is_done(self, demo, model):
        code, shown, errors = demo("--model", model, "--output", "picture.pdf")
        assert (code, shown) == (2, "")
        assert "picture.pdf: the picture is an SVG" in errors

    def test_its_lines_fit_a_terminal_and_are_plain_text(self, demo, model):
        shown = demo("--model", model)[1]
        assert max(map(len, shown.replace(str(model), "en-small").splitlines())) <= 100
        assert shown.isascii()

    def test_senses_are_colored_unless_colors_are_unwanted(self, model, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        shown = [
            CliRunner(env={"NO_COLOR": unwanted}).invoke(cli, ["demo", "--model", str(model)], color=True).output
            for unwanted in ("", "1")
        ]
        assert "\x1b[32m" in shown[0]
        assert "\x1b[31m" in shown[0]
        assert click.unstyle(shown[0]) == shown[1]

    def test_a_model_without_a_head_fills_no_blanks_and_shows_the_rest(self, demo, tmp_path):
        save_weights(lively(tiny()), tmp_path / "headless")
        code, shown, _ = demo("--model", "headless")
        assert code == 0
        assert "This model has no head with words, so it fills no blanks." in shown
        assert (tmp_path / "elmofire-demo.svg").is_file()

    @needs_shared
    def test_a_checkpoint_without_options_gets_them_by_name(self, demo, tmp_path):
        whole = FIXTURES / "tf_checkpoint"
        for file in whole.glob("model.ckpt-300.*"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
        assert demo("--model", "model.ckpt-300")[0] == 2
        code, shown, _ = demo("--model", "model.ckpt-300", "--options", whole / "options.json")
        assert code == 0
        assert shown.replace("model.ckpt-300", str(whole), 1) == demo("--model", whole)[1]

    def test_a_picture_that_cannot_be_written_is_one_clear_error(self, demo, model, tmp_path):
        (tmp_path / "file").touch()
        code, _, errors = demo("--model", model, "--output", "file/picture.svg")
        assert code == 2
        assert "file" in errors
        assert "Traceback" not in errors

    def test_it_needs_no_torch(self, model, tmp_path):
        program = "import sys; sys.modules['torch'] = None; from elmofire.cli import main; main()"
        command = [sys.executable, "-c", program, "demo", "--model", str(model)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")

    def test_the_model_in_the_package_is_the_default(self, demo, model, tmp_path, monkeypatch):
        (tmp_path / "models").mkdir()
        (tmp_path / "models/en-small").symlink_to(model)
        monkeypatch.setattr(names, "_PACKAGED", tmp_path / "models")
        default, named = demo()[1], demo("--model", model)[1]
        assert default.startswith("en-small: ")
        assert default.replace("en-small", str(model), 1) == named


class TestSentences:
    def test_each_word_stands_in_one_form_and_every_sense_has_a_fellow(self):
        for word, marked in USAGES.items():
            senses = [sense for sense, _ in marked]
            assert all(sentence.count(f"*{word}*") == 1 for _, sentence in marked)
            assert all(senses.count(sense) > 1 for sense in senses)
            assert len(set(senses)) > 1
