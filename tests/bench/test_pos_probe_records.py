"""The probe of parts of speech: what it records of which model, and that a trial leaves the test sentences alone."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from models import lively, tiny

from elmofire.formats.native import write

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def pos_probe():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("pos_probe")


def treebank(words: str) -> str:
    rows = [f"{number}\t{word}\t_\t_\t{word[-1].upper()}" + 5 * "\t_" for number, word in enumerate(words.split(), 1)]
    return "\n".join(rows) + "\n\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A treebank whose tags are words' last letters, word vectors, and two models."""
    for part, words in {"train": "cat dog cat zebra zebra once", "dev": "cat unseen dog", "test": "dog cat"}.items():
        (tmp_path / f"en_ewt-ud-{part}.conllu").write_text(treebank(words) * (20 if part == "train" else 2))
    words = np.frombuffer(b"cat\ndog", dtype=np.uint8)
    np.savez(tmp_path / "glove.npz", words=words, vectors=np.array([[1, 2], [3, 5]], dtype=np.float16))
    for seed, model in enumerate(("one", "other")):
        write(lively(tiny(), seed=seed), tmp_path / model)
    return tmp_path


def run(pos_probe, folder: Path, monkeypatch, *options: str) -> None:
    command = ["pos_probe.py", str(folder / "one"), str(folder), str(folder / "glove.npz"), *options]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(pos_probe, "SEEDS", (1, 2))
    pos_probe.main()


@pytest.fixture
def kept(pos_probe, monkeypatch) -> list[dict]:
    records: list[dict] = []
    monkeypatch.setattr(pos_probe, "keep", lambda name, **figures: records.append({"name": name, **figures}))
    return records


def test_every_record_says_which_model_was_probed(pos_probe, folder, monkeypatch, kept):
    run(pos_probe, folder, monkeypatch, "--also", f"other={folder / 'other'}")
    about = pos_probe.which(pos_probe.load_weights(folder / "one"))
    other = pos_probe.which(pos_probe.load_weights(folder / "other"))
    assert about["identity"] != other["identity"]
    assert {(record["identity"], record["storage"]) for record in kept} == {(about["identity"], "float32")}
    further = [record for record in kept if "other concatenated" in (record.get("representation"), record.get("first"))]
    assert [record["also_identity"] for record in further] == [other["identity"]] * 3
    probed = [record for record in kept if "representation" in record]
    assert {record["tokens"][2] for record in probed} == {4}
    assert all({"dev", "test", "rate", "decay", "epoch", "edges"} <= set(record) for record in probed)
    compared = [(record["first"], record["second"]) for record in kept if "first" in record]
    assert compared == [*pos_probe.COMPARISONS, ("other concatenated", "model concatenated")]


def test_a_trial_scores_dev_keeps_nothing_and_does_not_open_the_test_file(pos_probe, folder, monkeypatch, kept, capsys):
    (folder / "en_ewt-ud-test.conllu").unlink()
    run(pos_probe, folder, monkeypatch, "--trial")
    assert kept == []
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {record["scored"] for record in records} == {"dev"}
    assert all("test" not in record for record in records)
    assert {record["representation"] for record in records if "representation" in record} >= {"glove", "model average"}
    of_dev = {
        name: [r["dev"] for r in records if r.get("representation") == name] for name in ("glove", "model layer 0")
    }
    (compared,) = [r for r in records if (r.get("first"), r.get("second")) == ("model concatenated", "glove")]
    assert compared["means"][1] == pytest.approx(np.mean(of_dev["glove"]), abs=1e-3)


def test_a_treebank_that_is_not_there_is_an_error_in_one_line(pos_probe, folder, monkeypatch):
    (folder / "en_ewt-ud-dev.conllu").unlink()
    with pytest.raises(SystemExit, match=r"error: .*has no en_ewt-ud-dev\.conllu"):
        run(pos_probe, folder, monkeypatch)


def test_words_that_glove_lacks_have_a_feature_and_those_it_has_their_vector(pos_probe, folder):
    probes = pos_probe.Probes(folder, {}, "cpu")
    vectors = pos_probe.glove(folder / "glove.npz", probes)
    tokens = probes.text.tokens
    of = {token: vectors[tokens.index(token)] for token in tokens}
    for token, vector in zip(tokens, vectors, strict=True):
        np.testing.assert_array_equal(vector, of[token])
    given = np.stack([of["cat"], of["dog"]])
    assert (given[:, 2:] == 0).all()
    assert (given[0, :2] < 0).all()  # cats are twice as many as dogs, and lie below them
    assert (given[1, :2] > 0).all()
    lacking = np.stack([of["zebra"], of["once"], of["unseen"]])
    assert (lacking[:, :2] == 0).all()
    assert np.count_nonzero(lacking) == 3
    assert not (of["zebra"] == of["once"]).all()
    assert lacking.max(axis=1) == pytest.approx([2**0.5] * 3)
