"""`perplexity`, `score` and `substitutes` as a shell sees them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from models import FIXTURES, lively, needs_shared, tiny

from elmofire import LanguageModel, load_weights, save_weights
from elmofire.engine.compiled import library
from elmofire.text.vocabulary import Vocabulary

needs_kernels = pytest.mark.skipif(not library.available(), reason="there are no compiled kernels")

WORDS = Vocabulary(["<S>", "</S>", "<UNK>", "the", "cat", "sat", ".", "Do", "n't"])
TOKENS = [["the", "cat", "sat", "."], [], ["Do", "n't", "panic", "."]]


def run(*arguments, text=None):
    return subprocess.run(
        [sys.executable, "-m", "elmofire", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with its words, the same without them, one without a head, and one that only reads forward."""
    folder = tmp_path_factory.mktemp("models")
    weights = lively(tiny(head=len(WORDS)), vocabulary=WORDS)
    save_weights(weights, folder / "model")
    save_weights(lively(tiny(head=len(WORDS))), folder / "nameless")
    save_weights(lively(tiny()), folder / "headless")
    save_weights(lively(tiny(head=len(WORDS), directions=("forward",)), vocabulary=WORDS), folder / "forward")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS.words))
    (folder / "text.txt").write_text("the cat sat.\n\nDon't panic.\n")
    (folder / "empty.txt").write_text("")
    return folder


class TestPerplexity:
    def test_json_is_one_object_with_what_was_counted(self, folder):
        done = run("perplexity", "--model", folder / "model", folder / "text.txt", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert list(found) == ["forward", "backward", "mean", "events", "unknown", "convention"]
        expected = LanguageModel.load(folder / "model").perplexity(
            [TOKENS[0], TOKENS[2]]
        )  # a blank line is no sentence
        assert found["mean"] == pytest.approx(expected.mean)
        assert (found["events"], found["unknown"]) == (10, 1 / 8)

    def test_blank_lines_alone_are_no_text(self, folder):
        done = run("perplexity", "--model", folder / "model", text="\n \n")
        assert (done.returncode, done.stdout) == (2, "")
        assert "error: <stdin>: there are no sentences in it" in done.stderr

    def test_people_read_the_same_figures(self, folder):
        done = run("perplexity", "--model", folder / "model", folder / "text.txt", folder / "text.txt")
        expected = LanguageModel.load(folder / "model").perplexity([TOKENS[0], TOKENS[2]])
        assert f"mean        {expected.mean:.4f} (geometric)" in done.stdout
        assert "20 in each direction" in done.stdout
        assert "12.50% of the words" in done.stdout

    def test_lanes_and_stdin(self, folder):
        done = run(
            "perplexity", "--model", folder / "model", "--lanes", 2, "--json", text="the cat sat.\nDon't panic.\n"
        )
        found = json.loads(done.stdout)
        expected = LanguageModel.load(folder / "model").perplexity([TOKENS[0], TOKENS[2]], lanes=2)
        assert found["forward"] == pytest.approx(expected.forward)
        assert found["events"] == 10
        assert "lanes as in 2018: 2," in found["convention"]

    def test_paragraphs_are_noted_and_change_nothing(self, folder):
        text = "the cat sat. the cat. The cat sat.\n" * 3
        done = run("perplexity", "--model", folder / "model", text=text)
        assert "note: 3 of the first 3 lines seem to hold several sentences" in done.stderr
        assert done.stdout == run("perplexity", "--model", folder / "model", "--quiet", text=text).stdout

    def test_one_direction_leaves_the_other_null(self, folder):
        found = json.loads(run("perplexity", "--model", folder / "forward", folder / "text.txt", "--json").stdout)
        assert found["backward"] is None
        assert found["mean"] == found["forward"]

    def test_a_model_without_words_takes_them_from_a_file(self, folder):
        without = run("perplexity", "--model", folder / "nameless", folder / "text.txt")
        assert (without.returncode, without.stdout) == (2, "")
        assert "--vocab FILE" in without.stderr
        with_words = run("perplexity", "-m", folder / "nameless", "--vocab", folder / "vocab.txt", folder / "text.txt")
        assert with_words.stdout == run("perplexity", "--model", folder / "model", folder / "text.txt").stdout

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--model", "headless", "text.txt"], "no language-model head"),
            (["--model", "model", "empty.txt"], "empty.txt: there are no sentences in it"),
            (["--model", "model", "--lanes", "9", "text.txt"], "fewer sentences than the 9 lanes"),
            (["--model", "model", "--lanes", "0", "text.txt"], "0 is not in the range"),
            (["--model", "model", "missing.txt"], "missing.txt: cannot be opened"),
            (["--model", "model", "--vocab", "text.txt", "text.txt"], "has 3 words, but the model's head has 9 rows"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_a_mistake_is_one_error_without_a_traceback(self, folder, arguments, said):
        places = [str(folder / part) if part[0] not in "-0123456789" else part for part in arguments]
        done = run("perplexity", *places)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert "Traceback" not in done.stderr


class TestScore:
    def test_rows_hold_tokens_then_the_sentences_total(self, folder):
        done = run("score", "--model", folder / "model", folder / "text.txt")
        assert done.returncode == 0, done.stderr
        header, *rows = [line.split("\t") for line in done.stdout.splitlines()]
        assert header == ["sentence", "token", "word", "forward", "backward", "unknown"]
        scores = LanguageModel.load(folder / "model").score(TOKENS)
        for number, score in enumerate(scores, 1):
            *tokens, total = [row[1:] for row in rows if row[0] == str(number)]
            assert [row[:2] for row in tokens] == [
                [str(place), word] for place, word in enumerate(["<S>", *score.tokens, "</S>"])
            ]
            assert (tokens[0][2], tokens[-1][3]) == ("", "")
            np.testing.assert_allclose([float(row[2]) for row in tokens[1:]], score.forward, atol=1e-5)
            np.testing.assert_allclose([float(row[3]) for row in tokens[:-1]], score.backward, atol=1e-5)
            assert [row[4] for row in tokens[1:-1]] == [str(int(flag)) for flag in score.unknown]
            assert total[:2] == ["total", ""]
            assert float(total[2]) == pytest.approx(score.forward_total, abs=1e-5)
            assert float(total[3]) == pytest.approx(score.backward_total, abs=1e-5)
            assert total[4] == str(sum(score.unknown))

    def test_json_lines_hold_lists_and_totals(self, folder):
        done = run("score", "--model", folder / "model", "--json", folder / "text.txt")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["tokens"] for line in lines] == TOKENS
        assert lines[2]["unknown"] == [False, False, True, False]
        for line in lines:
            assert line["forward_total"] == pytest.approx(sum(line["forward"]))
            assert len(line["forward"]) == len(line["backward"]) == len(line["tokens"]) + 1

    def test_a_direction_that_is_not_there_is_empty_or_null(self, folder):
        rows = run("score", "--model", folder / "forward", folder / "text.txt").stdout.splitlines()[1:]
        assert {row.split("\t")[4] for row in rows} == {""}
        line = json.loads(
            run("score", "--model", folder / "forward", "--json", folder / "text.txt").stdout.splitlines()[0]
        )
        assert line["backward"] is line["backward_total"] is None

    def test_tokens_with_spaces_and_half_characters_break_no_row(self, folder, tmp_path):
        (tmp_path / "odd.jsonl").write_text('["a\\tb\\nc", "\\ud800"]\n')
        done = run("score", "--model", folder / "model", tmp_path / "odd.jsonl")
        assert done.returncode == 0, done.stderr
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        assert {len(row) for row in rows} == {6}
        assert [row[2] for row in rows[1:]] == ["<S>", "a\\tb\\nc", "\\ud800", "</S>", ""]

    def test_what_cannot_be_read_is_an_error_before_the_header(self, folder):
        for file, said in (
            (folder / "empty.txt", "empty.txt: there are no sentences in it"),
            (folder / "missing.txt", "missing.txt: cannot be opened"),
            ("the cat sat", "through a pipe: echo 'the cat sat' | elmofire score\n"),
        ):
            done = run("score", "--model", folder / "model", file)
            assert (done.returncode, done.stdout) == (2, "")
            assert said in done.stderr


class TestSubstitutes:
    def test_three_lists_side_by_side(self, folder):
        done = run("substitutes", "--model", folder / "model", "the *dog*, sat.", "--top", 2)
        assert done.returncode == 0, done.stderr
        header, *rows = done.stdout.splitlines()
        assert header.split() == ["forward", "backward", "both"]
        lm = LanguageModel.load(folder / "model")
        tokens = ["the", "dog", ",", "sat", "."]
        columns = [lm.substitutes(tokens, 1, top=2, direction=d) for d in ("forward", "backward", "both")]
        assert [row.split() for row in rows] == [
            [part for item in row for part in (f"{item.log_probability:.3f}", item.word)]
            for row in zip(*columns, strict=True)
        ]

    def test_json_names_the_place_and_the_lists(self, folder):
        found = json.loads(run("substitutes", "--model", folder / "model", "--json", "the *dog* sat").stdout)
        assert (found["tokens"], found["position"]) == (["the", "dog", "sat"], 1)
        for direction in ("forward", "backward", "both"):
            assert {item["word"] for item in found[direction]} == set(WORDS.words[3:])
        assert found["both"][0]["log_probability"] >= found["both"][1]["log_probability"]

    def test_a_model_of_one_direction_lists_that_one(self, folder):
        assert run("substitutes", "--model", folder / "forward", "the *dog*").stdout.split()[0] == "forward"
        found = json.loads(run("substitutes", "--model", folder / "forward", "--json", "the *dog*").stdout)
        assert found["backward"] is found["both"] is None

    def test_tokens_are_taken_as_they_are_if_so_said(self, folder):
        found = json.loads(
            run("substitutes", "--model", folder / "model", "--json", "--pretokenized", "it's *the* cat.").stdout
        )
        assert found["tokens"] == ["it's", "the", "cat."]

    def test_a_text_without_quotes_is_told_of_them(self, folder):
        done = run("substitutes", "--model", folder / "model", "the", "*dog*", "sat")
        assert (done.returncode, done.stdout) == (2, "")
        assert 'hint: put quotes around it: elmofire substitutes "the *dog* sat"' in done.stderr

    @pytest.mark.parametrize("text", ["the cat", "*the* *cat*", "*the cat*", ""])
    def test_a_text_without_one_marked_word_is_an_error(self, folder, text):
        done = run("substitutes", "--model", folder / "model", text)
        assert (done.returncode, done.stdout) == (2, "")
        assert "mark one word with stars" in done.stderr
        assert "Traceback" not in done.stderr


@needs_shared
def test_a_checkpoint_without_options_gets_them_by_name(tmp_path):
    whole = FIXTURES / "tf_checkpoint"
    for file in whole.glob("model.ckpt-300.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    head = load_weights(whole).config.head
    (tmp_path / "words").write_text(
        "".join(f"{word}\n" for word in ["<S>", "</S>", "<UNK>", *map(str, range(head - 3))])
    )
    (tmp_path / "text.txt").write_text("the cat 7 .\n")
    given = {"perplexity": tmp_path / "text.txt", "score": tmp_path / "text.txt", "substitutes": "the *cat* 7 ."}
    for command, what in given.items():
        words = ["--vocab", tmp_path / "words", what]
        without = run(command, "--model", tmp_path / "model.ckpt-300", *words)
        assert (without.returncode, without.stdout) == (2, "")
        assert "--options FILE" in without.stderr
        done = run(command, "--model", tmp_path / "model.ckpt-300", "--options", whole / "options.json", *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout == run(command, "--model", whole, *words).stdout


@pytest.mark.parametrize("precision", ["float32", pytest.param("int8", marks=needs_kernels)])
def test_a_precision_is_that_of_the_library(folder, precision):
    lm = LanguageModel.load(folder / "model", precision=precision)
    given = ["--model", folder / "model", "--precision", precision]
    found = json.loads(run("perplexity", *given, "--json", folder / "text.txt").stdout)
    assert found["mean"] == pytest.approx(lm.perplexity([TOKENS[0], TOKENS[2]]).mean, rel=1e-6)
    line = json.loads(run("score", *given, "--json", folder / "text.txt").stdout.splitlines()[0])
    assert line["forward"] == pytest.approx(lm.score(TOKENS)[0].forward, rel=1e-5)
    listed = json.loads(run("substitutes", *given, "--json", "the *cat* sat .").stdout)["both"]
    expected = lm.substitutes("the *cat* sat .")
    assert [item["word"] for item in listed] == [item.word for item in expected]
    assert listed[0]["log_probability"] == pytest.approx(expected[0].log_probability, rel=1e-5)


def test_lines_are_split_into_sentences_where_that_is_asked_for(folder, tmp_path):
    (tmp_path / "lines.txt").write_text("The cat sat. Don't panic.\n\nThe cat. The cat sat.\n")
    (tmp_path / "sentences.txt").write_text("The cat sat.\nDon't panic.\nThe cat.\nThe cat sat.\n")
    for command in ("perplexity", "score"):
        split = run(command, "--model", folder / "model", "--sentences", "split", tmp_path / "lines.txt")
        assert (split.returncode, split.stderr) == (0, "")
        assert split.stdout == run(command, "--model", folder / "model", tmp_path / "sentences.txt").stdout


@pytest.mark.parametrize("command", ["perplexity", "score", "substitutes"])
def test_help_loads_nothing_heavy(command):
    program = (
        "import sys\n"
        f"sys.argv = ['elmofire', '{command}', '--help']\n"
        "try:\n    import elmofire.__main__\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'numpy', 'h5py') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert command in done.stdout


def test_scoring_on_a_cpu_needs_no_torch(folder):
    program = (
        "import sys\nfrom elmofire import LanguageModel\n"
        f"lm = LanguageModel.load({str(folder / 'model')!r}, device='cpu')\n"
        "lm.perplexity(['the cat'], lanes=1), lm.score(['the cat']), lm.substitutes('the *cat*')\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
