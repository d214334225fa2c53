"""`elmofire embed` understands the flags of AllenNLP's `elmo` command."""

import json

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from models import lively, tiny

from elmofire import Embedder, load_weights, open_embeddings, save_weights
from elmofire.cli import cli
from elmofire.errors import ElmofireError

TOKENS = [["the", "cat", "sat"], ["and", "/", "or"], ["why"]]


@pytest.fixture
def here(tmp_path):
    save_weights(lively(tiny()), tmp_path / "model", to="hdf5")
    (tmp_path / "text.txt").write_text("the cat sat\nand / or\nwhy\n")
    return tmp_path


def run(here, *flags, text="text.txt", model=True):
    pair = ["--options-file", here / "model/options.json", "--weight-file", here / "model/weights.hdf5"]
    arguments = ["embed", here / text, "--output", here / "out.hdf5", "--pretokenized", "-q", *flags]
    return CliRunner().invoke(cli, [str(argument) for argument in [*arguments, *(pair if model else [])]])


@pytest.mark.parametrize("choice", ["all", "top", "average"])
def test_layers_files_and_device(here, choice):
    done = run(here, f"--{choice}", "--cuda-device", "-1", "--batch-size", "2")
    assert done.exit_code == 0, done.output
    expected = Embedder(load_weights(here / "model")).embed(TOKENS, layers=choice)
    with h5py.File(here / "out.hdf5") as file:
        assert sorted(file) == ["0", "1", "2", "sentence_to_index"]
        assert json.loads(file["sentence_to_index"][0]) == {"the cat sat": "0", "and / or": "1", "why": "2"}
        for number, array in enumerate(expected):
            np.testing.assert_allclose(file[str(number)][()], array, rtol=1e-5, atol=2e-6)


def test_sentences_are_forgotten(here):
    assert run(here, "--forget-sentences").exit_code == 0
    with h5py.File(here / "out.hdf5") as file:
        assert sorted(file) == ["0", "1", "2"]
        assert not any(dataset.attrs for dataset in file.values())
    embeddings = open_embeddings(here / "out.hdf5")
    assert len(embeddings) == 3
    assert embeddings.tokens(0) is None


def test_sentences_are_the_names(here):
    assert run(here, "--use-sentence-keys", "--top").exit_code == 0
    expected = Embedder(load_weights(here / "model")).embed(TOKENS, layers="top")
    embeddings = open_embeddings(here / "out.hdf5")
    with h5py.File(here / "out.hdf5") as file:
        assert "sentence_to_index" not in file
        for number, (tokens, array) in enumerate(zip(TOKENS, expected, strict=True)):
            np.testing.assert_allclose(file[" ".join(tokens)][()], array, rtol=1e-5, atol=2e-6)
            np.testing.assert_array_equal(embeddings[number], file[" ".join(tokens)][()])
            assert embeddings.tokens(number) == tokens


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--all", "--top"], "--all and --top exclude each other"),
        (["--all", "--layers", "top"], "--all and --layers exclude each other"),
        (["--model", "random-small"], "--model excludes"),
        (["--cuda-device", "0", "--device", "cpu"], "--device excludes --cuda-device"),
        (["--cuda-device", "99"], "cuda:99"),
        (["--batch-size", "0"], "batch-size"),
        (["--use-sentence-keys", "--output", "out.npz"], "are for HDF5 files"),
    ],
    ids=" ".join,
)
def test_what_contradicts_itself_is_an_error(here, flags, said):
    done = run(here, *flags)
    assert done.exit_code != 0
    assert said in (done.output + str(done.exception))
    assert isinstance(done.exception, ElmofireError | SystemExit)
    assert not (here / "out.hdf5").exists()


def test_one_file_of_the_pair_is_not_enough(here):
    done = run(here, "--options-file", "options.json", model=False)
    assert "one of them is missing" in str(done.exception)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("bad.txt", "why\nwhy\n", "sentence 1 ('why') is there twice"),
        ("bad.txt", "a\n\n", "sentence 1 ('') cannot be the name"),
        ("bad.txt", "a\na/b\n", "sentence 1 ('a/b') cannot be the name"),
        ("bad.jsonl", '["a"]\n["b", "\\u0000", "c"]\n', "cannot be the name"),
    ],
    ids=["twice", "empty", "below another", "NUL"],
)
def test_a_sentence_that_cannot_be_a_name_is_an_error(here, file, text, said):
    (here / file).write_text(text)
    done = run(here, "--use-sentence-keys", text=file)
    assert said in str(done.exception)
    assert isinstance(done.exception, ElmofireError)
    assert not (here / "out.hdf5").exists()
