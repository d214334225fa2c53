"""From format to format and back: the same bytes where nothing has to change, the same vectors where something has."""

import json
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from formats.strategies import vocabulary_of
from formats.tf_writer import variables_of, write_bundle
from models import FIXTURES, OUR_FIXTURES, lively, needs_shared, tiny, words_only

from elmofire import Embedder, Weights, load_weights, save_weights
from elmofire.formats.published.options_2018 import options_of

SENTENCES = [["The", "cat", "sat", "on", "the", "mat", "."], ["Why", "?"], ["日本語", "café", "x" * 60]]
VARIANTS = sorted(folder for folder in (OUR_FIXTURES / "variants").iterdir() if folder.is_dir())
MODELS = {
    "characters": tiny(),
    "characters and a head": tiny(head=9),
    "one layer": tiny(layers=1),
    "three layers": tiny(layers=3, skip_connections=False),
    "no highway, tanh": tiny(encoder_highways=0, encoder_activation="tanh", cell_clip=None, projection_clip=0.5),
    "no projections": tiny(encoder_width=15, encoder_projection=False, cells=15, projection=15, lstm_projection=False),
    "one direction": tiny(directions=("forward",)),
    "whole words and a head": words_only(9, head=9),
}
every_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())


def arrays_in(file: Path) -> dict[str, bytes]:
    """Every dataset of an HDF5 file with its shape, by h5py alone."""
    found = {}

    def note(name, each):
        if isinstance(each, h5py.Dataset):
            found[name] = (each.shape, each[()].tobytes())

    with h5py.File(file) as opened:
        opened.visititems(note)
    return found


def assert_same_bytes(found: Weights, expected: Weights) -> None:
    assert found.config == expected.config
    assert list(found.arrays) == list(expected.arrays)
    for name in expected.arrays:
        ours, theirs = (np.ascontiguousarray(weights.arrays[name]) for weights in (found, expected))
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes(), name


def assert_same_vectors(found: Weights, expected: Weights) -> None:
    """Not to the last bit: the same numbers may lie in another order in memory, which is another order of adding."""
    ours, theirs = (Embedder(weights, device="cpu").embed(SENTENCES, layers="all") for weights in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)


@every_model
def test_native_to_hdf5_to_native_keeps_every_byte(tmp_path, config):
    weights = lively(config, vocabulary=vocabulary_of(config))
    save_weights(weights, tmp_path / "native")
    save_weights(load_weights(tmp_path / "native"), tmp_path / "hdf5", to="hdf5")
    save_weights(load_weights(tmp_path / "hdf5"), tmp_path / "back")
    assert_same_bytes(load_weights(tmp_path / "back"), weights)
    tensors = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("native", "back")]
    assert tensors[0] == tensors[1]


@every_model
def test_hdf5_to_native_to_hdf5_keeps_every_byte(tmp_path, config):
    save_weights(lively(config, vocabulary=vocabulary_of(config)), tmp_path / "hdf5", to="hdf5")
    save_weights(load_weights(tmp_path / "hdf5"), tmp_path / "native")
    save_weights(load_weights(tmp_path / "native"), tmp_path / "back", to="hdf5")
    names = sorted(file.name for file in (tmp_path / "hdf5").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "back").iterdir())
    for name in names:
        before, after = tmp_path / "hdf5" / name, tmp_path / "back" / name
        if name.endswith(".hdf5"):
            assert arrays_in(after) == arrays_in(before)
        else:
            assert after.read_bytes() == before.read_bytes()


@pytest.mark.parametrize("folder", VARIANTS, ids=lambda folder: folder.name)
def test_files_of_the_2018_trainer_keep_every_byte(tmp_path, folder):
    save_weights(load_weights(folder), tmp_path / "native")
    save_weights(load_weights(tmp_path / "native"), tmp_path / "back", to="hdf5")
    # One-layer models are written under the names that all readers look for.
    before = {
        name.replace("/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/"): array
        for name, array in arrays_in(folder / "weights.hdf5").items()
    }
    assert arrays_in(tmp_path / "back" / "weights.hdf5") == before


@pytest.mark.parametrize("forget_bias", [0.0, 2.5])
def test_another_forget_bias_gives_the_same_vectors(tmp_path, forget_bias):
    weights = lively(tiny(forget_bias=forget_bias))
    save_weights(weights, tmp_path / "hdf5", to="hdf5")
    save_weights(load_weights(tmp_path / "hdf5"), tmp_path / "native")
    for folder in ("hdf5", "native"):
        found = load_weights(tmp_path / folder)
        assert found.config.forget_bias == 1.0
        assert_same_vectors(found, weights)


@pytest.mark.parametrize("storage", ["bfloat16", "float16", "int8"])
def test_numbers_that_were_rounded_once_stay_as_they_are(tmp_path, storage):
    save_weights(lively(tiny()), tmp_path / "small", storage=storage)
    save_weights(load_weights(tmp_path / "small"), tmp_path / "hdf5", to="hdf5")
    assert_same_bytes(load_weights(tmp_path / "hdf5"), load_weights(tmp_path / "small"))


def checkpoint(folder: Path) -> Path:
    write_bundle(folder / "model.ckpt-7", variables_of(lively(tiny())))
    (folder / "options.json").write_text(json.dumps(options_of(tiny())))
    return folder


def packed(folder: Path) -> Path:
    save_weights(lively(tiny()), folder / "unpacked", to="hdf5")
    with zipfile.ZipFile(folder / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (folder / "unpacked").iterdir():
            archive.write(file, file.name)
    return folder / "model.zip"


LOADABLE = {
    "random-small": lambda folder: "random-small",
    "checkpoint": checkpoint,
    "zip": packed,
    **{variant.name: lambda folder, variant=variant: variant for variant in VARIANTS},
}
PUBLISHED = {
    "allennlp": FIXTURES / "allennlp",
    "bilm-tf": FIXTURES / "bilm-tf",
    "tf_checkpoint": FIXTURES / "tf_checkpoint",
    "efml char_only": FIXTURES / "efml_toy" / "char_only",
    "efml word_char": FIXTURES / "efml_toy" / "word_char",
    "tagger archive": FIXTURES / "allennlp_tagger_archive" / "model.tar.gz",
}


def assert_native_keeps_it(what: str | Path, folder: Path) -> None:
    weights = load_weights(what)
    save_weights(weights, folder)
    found = load_weights(folder)
    assert_same_bytes(found, weights)
    assert_same_vectors(found, weights)
    assert found.mixes == weights.mixes
    assert dict(found.training) == dict(weights.training)
    assert found.tokenizer == weights.tokenizer
    words = [each.vocabulary.words if each.vocabulary else None for each in (found, weights)]
    assert words[0] == words[1]


@pytest.mark.parametrize("make", LOADABLE.values(), ids=LOADABLE.keys())
def test_native_keeps_whatever_loads(tmp_path, make):
    (tmp_path / "there").mkdir()
    assert_native_keeps_it(make(tmp_path / "there"), tmp_path / "native")


@needs_shared
@pytest.mark.filterwarnings("ignore:.*no options file")  # the archive has none
@pytest.mark.parametrize("what", PUBLISHED.values(), ids=PUBLISHED.keys())
def test_native_keeps_what_others_published(tmp_path, what):
    assert_native_keeps_it(what, tmp_path / "native")
