"""docs/train-your-own.md: its commands run as written, at tiny size; it shows what was recorded; and the tagger measures what it says."""

import importlib.util
import json
import lzma
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("ELMOFIRE_SHARED", ROOT.parent / "shared"))
PAGE = (ROOT / "docs/train-your-own.md").read_text(encoding="utf-8")
TINY = "updates=4 batch_tokens=256 log_every=1 samples=8 cells=16 model.projection=8 encoder.width=8 'filters=[[1, 4], [2, 8]]'"
SMALLER = {  # what is changed in the page's commands, so that they take seconds
    "updates=1000 minutes=none evaluate_every=1000": f"minutes=none evaluate_every=4 {TINY}",
    "evaluate_on=dev\n": f"evaluate_on=dev {TINY}\n",
    "dev=0.5%": "dev=5%",
    "--model ko-small ko_gsd": "--model ko-small --seeds 2 --epochs 1 ko_gsd",
    "--tags xpos": "--tags xpos --seeds 1 --epochs 1",
    "--model random-small": "--model random-small --seeds 1 --epochs 1",
    "epochs=5": "epochs=1 batch_tokens=256",
}


def load(path):
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


korean = load(ROOT / "benchmarks/korean.py")


# -- the page's commands ---------------------------------------------------------------------------------------------

NOUNS, VERBS = ("고양이", "개", "학생", "서울", "책", "나라", "사람", "바다"), ("보았다", "읽었다", "찾았다", "그렸다")
PARTICLES = {"는": "NOUN NNG+JX", "를": "NOUN NNG+JKO", "에서": "ADV NNG+JKB"}


def sentence(rng):
    """Words, each with its two tags."""
    words = [(rng.choice(NOUNS) + particle, tags) for particle, tags in PARTICLES.items()]
    return [*words, (rng.choice(VERBS), "VERB VV+EP+EF"), (".", "PUNCT SF")]


def plain(words):
    return " ".join(word for word, _ in words).replace(" .", ".")


def text(rng, articles):
    paragraphs = ["\n".join(plain(sentence(rng)) for _ in range(4)) for _ in range(articles)]
    return "".join(f"= 제목 {number} =\n{lines}\n\n" for number, lines in enumerate(paragraphs))


def treebank(rng, sentences):
    blocks = []
    for _ in range(sentences):
        words = sentence(rng)
        rows = [
            "\t".join([str(number), word, "_", *tags.split(), *"_____"]) for number, (word, tags) in enumerate(words, 1)
        ]
        blocks.append("\n".join([f"# text = {plain(words)}", *rows]) + "\n\n")
    return "".join(blocks)


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A folder in which every command of the page ran, and what each said."""
    bz3 = pytest.importorskip("bz3", reason="the page's text is .bz3: pip install elmofire[train]")
    folder = tmp_path_factory.mktemp("korean")
    rng = random.Random(1)
    for name, articles in (("kowiki", 60), ("kowiki-heldout", 8)):
        with bz3.open(folder / f"{name}.txt.bz3", "wb") as file:
            file.write(text(rng, articles).encode())
    for part, sentences in (("train", 60), ("dev", 10), ("test", 10)):
        (folder / f"ko_gsd-ud-{part}.conllu").write_text(treebank(rng, sentences), encoding="utf-8")
    (folder / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    said = {}
    for command in korean.commands(PAGE):
        changed = command
        for given, smaller in SMALLER.items():
            changed = changed.replace(given, smaller)
        done = subprocess.run(
            ["bash", "-e", "-c", changed],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, f"{changed}\n{done.stdout.decode()}"
        said[command] = done.stdout.decode()
    return folder, said


def test_the_pages_commands_run_one_after_the_other(followed):
    folder, said = followed
    assert {"corpus-ko", "ko-small", "ko-tiny", "ko-small-2018", "ko-gsd"} <= {entry.name for entry in folder.iterdir()}
    assert len((folder / "heldout.txt").read_text(encoding="utf-8").splitlines()) == 32  # eight articles, no titles
    (tagger,) = (output for command, output in said.items() if "tagger" in command and "ko-small ko" in command)
    assert re.search(r"^with ko-small +\d+\.\d\d \(", tagger, flags=re.MULTILINE)


def test_every_change_that_makes_the_commands_small_has_its_place_on_the_page():
    together = "".join(korean.commands(PAGE))
    assert [given for given in SMALLER if given not in together] == []


def test_what_the_old_format_holds_gives_the_vectors_of_the_run(followed):
    from elmofire import Embedder

    folder, _ = followed
    files = {entry.name for entry in (folder / "ko-small-2018").iterdir()}
    assert {"options.json", "weights.hdf5", "softmax_weights.hdf5", "vocab.txt"} <= files
    old, new = (Embedder.load(folder / name, device="cpu") for name in ("ko-small-2018", "ko-small"))
    words = [["고양이는", "바다에서", "보았다", "."]]
    np.testing.assert_allclose(old.embed(words)[0], new.embed(words)[0], rtol=1e-5, atol=2e-6)


# -- the record ------------------------------------------------------------------------------------------------------


def test_the_page_shows_what_was_recorded():
    assert korean.differences(PAGE, korean.newest()) == []


def test_figures_in_the_text_are_those_of_the_record():
    prepared = next(record["output"] for command, record in korean.newest().items() if "elmofire prepare" in command)
    rows = {line.split()[0]: line.split() for line in prepared.splitlines() if line}
    words = re.sub(r"\s+", " ", PAGE)
    tokens, types = (int(rows[row][column].replace(",", "")) for row, column in (("train", 3), ("words", 1)))
    assert f"{tokens / 1e6:.0f} million words" in words
    assert f"there are {types / 1e6:.1f} million different ones" in words
    assert 0.19 < float(rows["train"][-1].rstrip("%")) / 100 < 0.21  # a fifth of the text
    assert f"{rows['long'][2]} of {tokens / 1e6:.0f} million words is negligible" in words
    assert rows["vocabulary"][1] in words


def test_progress_is_shown_in_part_and_everything_else_whole():
    lines = [
        "model\n",
        *(f"update {number}00 · loss\n" for number in range(1, 6)),
        "held-out: 12\n",
        "update 600 · loss\n",
    ]
    whole = "model\nupdate 100 · loss\nupdate 200 · loss\n...\nheld-out: 12\nupdate 600 · loss\n"
    assert korean.shown(lines) == whole
    assert korean.shown(["train 3\n", "heldout 2\n"]) == "train 3\nheldout 2\n"


def test_a_page_that_differs_from_its_record_is_found_and_mended():
    page = "```sh\none\n```\n\n```text\nold\n```\n\nText.\n\n```sh\ntwo\n```\n"
    records = {command: {"command": command, "output": f"said {command}"} for command in ("one\n", "two\n")}
    assert korean.differences(page, records) == ["one\n"]
    assert korean.differences(page, {}) == ["one\n"]
    assert korean.differences(korean.filled(page, records), records) == []
    assert korean.filled(page, records) == page.replace("old", "said one")


def test_the_time_of_long_commands_is_shown_with_what_they_ran_on():
    record = {"command": "elmofire pretrain small\n", "output": "done\n", "seconds": 150.0, "machine": "a Zen, 2 cores"}
    assert korean.beneath({**record, "device": "NVIDIA H200, torch 2.11"}) == "done\n[2.5 minutes, NVIDIA H200]\n"
    assert korean.beneath({**record, "device": "CPU, torch 2.13"}) == "done\n[2.5 minutes, a Zen, 2 cores]\n"
    assert korean.beneath({**record, "command": "elmofire embed\n"}) == "done\n"


def test_a_command_that_fails_ends_the_run_and_leaves_no_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(korean, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(korean, "_about", dict)
    korean.PAGE.write_text("```sh\necho 고양이\n```\n```sh\nexit 3\n```\n```sh\necho never\n```\n", encoding="utf-8")
    assert korean.run(tmp_path / "log", []) == 3
    (record,) = map(json.loads, (tmp_path / "log").read_text(encoding="utf-8").splitlines())
    assert record["output"] == "고양이\n"
    assert "never" not in capsys.readouterr().out.replace("echo never", "")


# -- the tagger ------------------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch")
tagger = load(ROOT / "examples/tagger.py")


class TellingVectors:
    """A model whose second layer says which tag a word of `secret_files` has, if it tells at all."""

    def __init__(self, *, tells):
        self.tells = tells

    def embed(self, sentences, layers):
        assert layers == "all"
        found = []
        for words in sentences:
            vectors = np.zeros((3, len(words), 4), dtype=np.float32)
            for place, word in enumerate(words):
                vectors[1, place, tag_of(word)] = self.tells
            found.append(vectors)
        return found


def tag_of(word):
    """Nothing in the spelling tells."""
    return random.Random(word).randrange(3)


@pytest.fixture(scope="module")
def secret_files(tmp_path_factory):
    """Words that never come again, so that only the vectors can tell their tags."""
    folder, rng, paths = tmp_path_factory.mktemp("secret"), random.Random(2), []
    for part, sentences in (("train", 500), ("dev", 10), ("test", 20)):
        rows = []
        for _ in range(sentences):
            words = ["".join(rng.choices("abcdefghij", k=8)) for _ in range(rng.randint(3, 7))]
            lines = [f"{number}\t{word}\t_\tT{tag_of(word)}\t_" for number, word in enumerate(words, 1)]
            rows.append("\n".join(["# a comment", "1-2\tab\t_\t_\t_", *lines, "3.1\tempty\t_\tX\t_"]))
        paths.append(folder / f"{part}.conllu")
        paths[-1].write_text("\n\n".join(rows) + "\n\n", encoding="utf-8")
    return [str(path) for path in paths]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(tagger, "DEVICE", "cpu")


def test_the_tagger_gains_by_vectors_that_tell_and_not_by_others(secret_files):
    telling, silent = (tagger.Treebank(secret_files, 3, TellingVectors(tells=tells)) for tells in (3.0, 0.0))
    everywhere, new, shares = tagger.train(telling, with_model=True, seed=0, epochs=4)
    assert everywhere == new > 95
    assert shares.index(max(shares)) == 1
    for treebank, with_model in ((silent, True), (telling, False)):
        assert tagger.train(treebank, with_model=with_model, seed=0, epochs=1)[0] < 60


def test_only_words_are_read_from_a_treebank(secret_files):
    for words, tags in tagger.read_sentences(secret_files[0], 3):
        assert tags == [f"T{tag_of(word)}" for word in words]
        assert 3 <= len(words) <= 7


def test_percents_are_those_of_a_slow_count(secret_files):
    treebank = tagger.Treebank(secret_files, 3, TellingVectors(tells=1.0))
    torch.manual_seed(0)
    model = tagger.Tagger(treebank, with_model=True).eval()
    hits = total = 0
    for batch in treebank.test:
        for row, length in enumerate(batch.lengths.tolist()):
            alone = batch._replace(
                lengths=batch.lengths[row : row + 1],
                features=batch.features[row : row + 1, :length],
                layers=[layer[row : row + 1, :length] for layer in batch.layers],
            )
            scores = model(alone)[0]
            for place in range(length):
                hits += int(scores[place].argmax()) == int(batch.tags[row, place])
                total += 1
    everywhere, new = tagger.right(model, treebank.test)
    assert total == sum(len(words) for words, _ in tagger.read_sentences(secret_files[2], 3))
    assert everywhere == pytest.approx(100 * hits / total)
    assert new == everywhere  # no word comes twice


def test_what_was_seen_once_is_unknown_and_a_tag_never_seen_is_wrong(tmp_path):
    for part, rows in (("train", "1\t가다\t_\tA\n2\t가다\t_\tA\n3\t먹다\t_\tB"), ("other", "1\t가다\t_\tC")):
        (tmp_path / part).write_text(rows + "\n", encoding="utf-8")
    paths = [str(tmp_path / part) for part in ("train", "other", "other")]
    treebank = tagger.Treebank(paths, 3, TellingVectors(tells=0.0))
    assert "가다" in treebank.features
    assert "먹다" not in treebank.features  # seen once
    assert "-다" in treebank.features
    assert treebank.test[0].tags.tolist() == [[tagger.NEVER_SEEN]]
    assert treebank.test[0].new.tolist() == [[False]]


def test_a_hangul_ending_within_a_syllable_is_a_feature():
    assert set(tagger.features_of("간")) & set(tagger.features_of("큰")) == {"-\u11ab"}  # the last consonant


def test_the_treebank_has_the_sentences_that_the_page_says(tmp_path):
    folder = SHARED / "data/tasks/ud"
    if not folder.exists():
        pytest.skip(f"no Universal Dependencies at {folder}")
    counts = []
    for part in ("train", "dev", "test"):
        unpacked = tmp_path / f"{part}.conllu"
        unpacked.write_bytes(lzma.decompress((folder / f"ko_gsd-ud-{part}.conllu.xz").read_bytes()))
        counts.append(f"{len(list(tagger.read_sentences(str(unpacked), 3))):,}")
    assert "of {}, {} and {} sentences".format(*counts) in re.sub(r"\s+", " ", PAGE)
