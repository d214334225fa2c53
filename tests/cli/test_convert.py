"""`elmofire convert` as a shell sees it: what it says, what it writes, and how it ends when it cannot."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from models import FIXTURES, lively, needs_shared, tiny, words_only

from elmofire import load_weights, save_weights
from elmofire.formats.config import EncoderConfig
from elmofire.formats.weights import ENGLISH, LearnedMix
from elmofire.text.tokenizers import TokenizerInfo
from elmofire.text.vocabulary import Vocabulary

WORDS = Vocabulary(["<S>", "</S>", "<UNK>", "the", "cat"])


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "elmofire", "convert", *map(str, arguments)], capture_output=True, text=True
    )


@pytest.fixture
def model(tmp_path):
    save_weights(lively(tiny(head=5), vocabulary=WORDS), tmp_path / "model")
    return tmp_path / "model"


def test_it_says_what_was_read_and_what_was_written(model, tmp_path):
    done = run(model, tmp_path / "out", "--to", "hdf5")
    assert (done.returncode, done.stderr) == (0, "")
    read, written = done.stdout.splitlines()
    count = f"{tiny().parameters:,} parameters"
    assert read == f"read     {model}: native, {count}, a head of 5 words, a vocabulary of 5"
    assert written.startswith(f"written  {tmp_path / 'out'}: hdf5, float32, ")
    expected, found = load_weights(model), load_weights(tmp_path / "out")
    for name in expected.arrays:
        np.testing.assert_array_equal(found.arrays[name], expected.arrays[name])


def test_quiet_leaves_the_note_out(tmp_path):
    trained = replace(lively(tiny()), training={"update": 3})
    save_weights(trained, tmp_path / "model")
    line = (tmp_path / "model", tmp_path / "out", "--to", "hdf5")
    assert "the training record" in run(*line).stderr
    assert run(*line[:1], tmp_path / "other", *line[2:], "--quiet").stderr == ""


def test_programs_get_one_object(model, tmp_path):
    done = run(model, tmp_path / "out", "--to", "native", "--storage", "int8", "--json")
    assert json.loads(done.stdout) == {
        "read": {
            "model": str(model),
            "format": "native",
            "parameters": tiny().parameters,
            "head": 5,
            "vocabulary": 5,
            "mixes": 0,
        },
        "written": {
            "folder": str(tmp_path / "out"),
            "format": "native",
            "storage": "int8",
            "bytes": sum(file.stat().st_size for file in (tmp_path / "out").iterdir()),
        },
    }


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "float16", "int8"])
def test_a_smaller_storage_is_a_smaller_file(model, tmp_path, storage):
    assert run(model, tmp_path / "out", "--to", "native", "--storage", storage).returncode == 0
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (tmp_path / "out", model)]
    assert sizes[0] == sizes[1] if storage == "float32" else sizes[0] < 0.8 * sizes[1]
    found, expected = (load_weights(folder).arrays["backward.1.weight_ih"] for folder in (tmp_path / "out", model))
    np.testing.assert_allclose(found, expected, atol=0 if storage == "float32" else 0.02)


@needs_shared
def test_a_checkpoint_becomes_files_of_2018(tmp_path):
    done = run(FIXTURES / "tf_checkpoint", tmp_path / "out", "--to", "hdf5")
    assert done.returncode == 0, done.stderr
    assert "tensorflow, 42,172 parameters, a head of 32 words, no vocabulary" in done.stdout
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "options.json",
        "weights.hdf5",
        "softmax_weights.hdf5",
    }


@needs_shared
def test_options_may_be_named(tmp_path):
    for file in (FIXTURES / "tf_checkpoint").glob("model.ckpt-300.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    without = run(tmp_path / "model.ckpt-300", tmp_path / "out", "--to", "native")
    assert without.returncode == 2
    assert "options.json is missing beside model.ckpt-300.index" in without.stderr
    options = FIXTURES / "tf_checkpoint" / "options.json"
    assert run(tmp_path / "model.ckpt-300", tmp_path / "out", "--to", "native", "--options", options).returncode == 0
    assert load_weights(tmp_path / "out").config == load_weights(FIXTURES / "tf_checkpoint").config


def test_a_pair_is_read_too(model, tmp_path):
    assert run(model, tmp_path / "hdf5", "--to", "hdf5").returncode == 0
    pair = f"{tmp_path / 'hdf5' / 'options.json'},{tmp_path / 'hdf5' / 'weights.hdf5'}"
    done = run(pair, tmp_path / "out", "--to", "native")
    assert done.returncode == 0, done.stderr
    assert "hdf5, " in done.stdout


BEYOND = {
    "of the backward direction alone": tiny(directions=("backward",)),
    "as wide as the LSTM's output: 7 is not 6": tiny(encoder_width=7),
    "a word table beside its characters": tiny(encoder_words=5, encoder_word_dim=3),
    "no projection behind a word table": replace(
        tiny(), encoder=EncoderConfig(width=6, filters=(), words=5, word_dim=4, projection=True)
    ),
    "its highways are 'tied', but this model's are 'learned'": tiny(encoder_highway="learned"),
    "but this model's are one-hot": tiny(encoder_one_hot=True, encoder_character_dim=261),
}


@pytest.mark.parametrize(("said", "config"), BEYOND.items())
def test_what_hdf5_cannot_hold_is_said(tmp_path, said, config):
    save_weights(lively(config, vocabulary=WORDS), tmp_path / "model")
    done = run(tmp_path / "model", tmp_path / "out", "--to", "hdf5")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: the 2018 format cannot hold this model: " in done.stderr
    assert said in done.stderr
    assert "hint: write it as native" in done.stderr
    assert not (tmp_path / "out").exists()


@needs_shared
def test_characters_that_are_no_bytes_are_beyond_hdf5_too(tmp_path):
    done = run(FIXTURES / "efml_toy" / "word_char", tmp_path / "out", "--to", "hdf5")
    assert done.returncode == 2
    assert "its characters are bytes, but this model's are code points" in done.stderr
    assert "a word table beside its characters" in done.stderr


def test_mixes_that_have_no_place_are_spoken_of(tmp_path):
    mix = LearnedMix(name="task", weights=(0.0, 1.0, 2.0), gamma=1.0)
    save_weights(replace(lively(tiny()), mixes=(mix,)), tmp_path / "model")
    kept = run(tmp_path / "model", tmp_path / "native", "--to", "native")
    assert (kept.returncode, kept.stderr) == (0, "")
    assert "a learned mix" in kept.stdout
    lost = run(tmp_path / "model", tmp_path / "hdf5", "--to", "hdf5")
    assert lost.returncode == 0
    assert lost.stderr == "note: left out, as the hdf5 format cannot hold them: the learned mixes\n"


def test_a_tokenizer_and_a_training_record_that_have_no_place_are_spoken_of(tmp_path):
    plain, record = TokenizerInfo("plain", "fi", 1), {"update": 7}
    save_weights(replace(lively(tiny()), tokenizer=plain, training=record), tmp_path / "model")
    kept = run(tmp_path / "model", tmp_path / "native", "--to", "native")
    assert (kept.returncode, kept.stderr) == (0, "")
    lost = run(tmp_path / "model", tmp_path / "hdf5", "--to", "hdf5")
    assert lost.returncode == 0
    assert lost.stderr.endswith(": the tokenizer (plain 1, fi), the training record\n")
    assert (load_weights(tmp_path / "native").tokenizer, load_weights(tmp_path / "native").training) == (plain, record)
    assert (load_weights(tmp_path / "hdf5").tokenizer, load_weights(tmp_path / "hdf5").training) == (ENGLISH, {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "out", "--to", "native"], "nowhere: no such file or folder"),
        (["model", "out"], "Missing option '--to'"),
        (["model", "out", "--to", "pickle"], "'pickle' is not one of 'native', 'hdf5'"),
        (["model", "out", "--to", "hdf5", "--storage", "int8"], "hdf5 is always stored as float32, not int8"),
        (["model", "kept", "--to", "native"], "exists and is not just a model of this format"),
    ],
)
def test_mistakes_are_one_error_and_exit_code_2(model, tmp_path, arguments, said):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "thesis.txt").write_text("years of work")
    places = [tmp_path / each if each in ("model", "out", "kept") else each for each in arguments]
    done = run(*places)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["thesis.txt"]


def test_a_model_of_whole_words_goes_both_ways(tmp_path):
    weights = lively(words_only(5), vocabulary=WORDS)
    save_weights(weights, tmp_path / "model")
    assert run(tmp_path / "model", tmp_path / "hdf5", "--to", "hdf5").returncode == 0
    assert run(tmp_path / "hdf5", tmp_path / "back", "--to", "native").returncode == 0
    for file in (tmp_path / "model").iterdir():
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()
