"""2018's format against the written rules, applied here by h5py and numpy alone: which dataset is which array, and how it lies."""

import json
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from formats.strategies import configs, vocabulary_of
from hypothesis import given, settings
from hypothesis import strategies as st
from models import FIXTURES, OUR_FIXTURES, lively, needs_shared, tiny, words_only

from elmofire import Embedder, ModelError, load_weights, save_weights

VARIANTS = sorted(folder.name for folder in (OUR_FIXTURES / "variants").iterdir() if folder.is_dir())


def gates(array: np.ndarray, axis: int) -> np.ndarray:
    """TensorFlow's blocks i, j, f, o as torch's i, f, g, o."""
    i, j, f, o = np.split(array, 4, axis=axis)
    return np.concatenate([i, f, j, o], axis=axis)


def by_the_rules(folder: Path, options: dict) -> dict[str, np.ndarray]:
    """The arrays of a model by our names, straight from the file."""
    width = options["lstm"]["projection_dim"]
    ours: dict[str, np.ndarray] = {}
    with h5py.File(folder / "weights.hdf5") as file:
        if "char_cnn" in options:
            ours["encoder.characters"] = file["char_embed"][()]
            for k in range(len(options["char_cnn"]["filters"])):
                ours[f"encoder.convolutions.{k}.weight"] = file[f"CNN/W_cnn_{k}"][0].transpose(2, 1, 0)
                ours[f"encoder.convolutions.{k}.bias"] = file[f"CNN/b_cnn_{k}"][()]
            for k in range(options["char_cnn"].get("n_highway", 0)):
                for name, theirs in {"transform": "transform", "gate": "carry"}.items():
                    ours[f"encoder.highways.{k}.{name}.weight"] = file[f"CNN_high_{k}/W_{theirs}"][()].T
                    ours[f"encoder.highways.{k}.{name}.bias"] = file[f"CNN_high_{k}/b_{theirs}"][()]
            if "CNN_proj" in file:
                ours["encoder.projection.weight"] = file["CNN_proj/W_proj"][()].T
                ours["encoder.projection.bias"] = file["CNN_proj/b_proj"][()]
        else:
            ours["encoder.words"] = file["embedding"][()]
        for d, direction in enumerate(("forward", "backward")):
            for k in range(options["lstm"]["n_layers"]):
                cells = [f"RNN_{d}/RNN/MultiRNNCell/Cell{k}/LSTMCell", f"RNN_{d}/RNN/LSTMCell"]
                cell = file[next(name for name in cells if name in file)]
                ours[f"{direction}.{k}.weight_ih"] = gates(cell["W_0"][:width].T, 0)
                ours[f"{direction}.{k}.weight_hh"] = gates(cell["W_0"][width:].T, 0)
                ours[f"{direction}.{k}.bias"] = gates(cell["B"][()], 0)
                if "W_P_0" in cell:
                    ours[f"{direction}.{k}.weight_hr"] = cell["W_P_0"][()].T
    if (folder / "softmax_weights.hdf5").exists():
        with h5py.File(folder / "softmax_weights.hdf5") as file:
            ours["head.weight"], ours["head.bias"] = file["softmax/W"][()], file["softmax/b"][()]
    return ours


def assert_by_the_rules(folder: Path, arrays) -> None:
    expected = by_the_rules(folder, json.loads((folder / "options.json").read_text()))
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_files_of_the_2018_trainer_are_read_by_the_rules(variant):
    weights = load_weights(OUR_FIXTURES / "variants" / variant)
    assert_by_the_rules(OUR_FIXTURES / "variants" / variant, weights.arrays)
    assert weights.config.forget_bias == 1.0  # added at run time, not in the file


def test_one_layer_models_have_names_of_their_own():
    folder = OUR_FIXTURES / "variants" / "one_layer_relu"
    with h5py.File(folder / "weights.hdf5") as file:
        assert "RNN_0/RNN/LSTMCell/W_0" in file
    assert load_weights(folder).config.layers == 1


@needs_shared
@pytest.mark.parametrize("model", ["allennlp", "bilm-tf"])
def test_published_files_are_read_by_the_rules(tmp_path, model):
    for ours, theirs in {"options.json": "options.json", "weights.hdf5": "lm_weights.hdf5"}.items():
        (tmp_path / ours).write_bytes((FIXTURES / model / theirs).read_bytes())
    pair = (FIXTURES / model / "options.json", FIXTURES / model / "lm_weights.hdf5")
    assert_by_the_rules(tmp_path, load_weights(pair).arrays)


MODELS = {
    "characters": tiny(),
    "one layer": tiny(layers=1),
    "no highway": tiny(encoder_highways=0),
    "no projections": tiny(encoder_width=15, encoder_projection=False, cells=15, projection=15, lstm_projection=False),
    "projections that change no width": tiny(encoder_width=15, cells=15, projection=15),
    "whole words": words_only(9),
    "head": tiny(head=9),
    "whole words and a head": words_only(9, head=9),
    "no clips, tanh": tiny(cell_clip=None, projection_clip=0.5, encoder_activation="tanh", skip_connections=False),
}
every_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())


@every_model
def test_what_is_written_lies_by_the_rules(tmp_path, config):
    weights = lively(config, vocabulary=vocabulary_of(config))
    save_weights(weights, tmp_path / "model", to="hdf5")
    assert_by_the_rules(tmp_path / "model", weights.arrays)


@every_model
def test_native_to_hdf5_and_back_gives_the_same_files(tmp_path, config):
    save_weights(lively(config, vocabulary=vocabulary_of(config)), tmp_path / "native")
    save_weights(load_weights(tmp_path / "native"), tmp_path / "hdf5", to="hdf5")
    save_weights(load_weights(tmp_path / "hdf5"), tmp_path / "back")
    for file in (tmp_path / "native").iterdir():
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()


@settings(deadline=None, max_examples=40)
@given(configs(as_in_2018=True), st.integers(0, 2**32))
def test_any_model_goes_to_hdf5_and_back(config, seed):
    weights = lively(config, seed=seed, vocabulary=vocabulary_of(config))
    with tempfile.TemporaryDirectory() as folder:
        save_weights(weights, Path(folder) / "model", to="hdf5")
        read = load_weights(Path(folder) / "model")
        assert read.config == config
        for name, array in weights.arrays.items():
            np.testing.assert_array_equal(read.arrays[name].view(np.uint32), array.view(np.uint32), err_msg=name)


@pytest.mark.parametrize(
    ("layers", "bare"), [(1, False), (1, True), (2, False)], ids=["MultiRNNCell", "LSTMCell", "two layers"]
)
def test_one_direction_has_the_names_of_the_trainer(tmp_path, layers, bare):
    config = tiny(layers=layers, directions=("forward",))
    weights = lively(config)
    save_weights(weights, tmp_path / "model", to="hdf5")
    with h5py.File(tmp_path / "model" / "weights.hdf5", "r+") as file:
        cell = file["rnn/MultiRNNCell/Cell0/LSTMCell"]
        np.testing.assert_array_equal(gates(cell["kernel"][:6].T, 0), weights.arrays["forward.0.weight_ih"])
        np.testing.assert_array_equal(gates(cell["bias"][()], 0), weights.arrays["forward.0.bias"])
        np.testing.assert_array_equal(cell["projection/kernel"][()].T, weights.arrays["forward.0.weight_hr"])
        if bare:
            file.move("rnn/MultiRNNCell/Cell0/LSTMCell", "rnn/LSTMCell")
            del file["rnn/MultiRNNCell"]
    read = load_weights(tmp_path / "model")
    assert read.config == config
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)


@pytest.mark.parametrize("characters", [261, 262])
def test_both_counts_of_characters_are_the_same_model(tmp_path, characters):
    save_weights(lively(tiny()), tmp_path / "model", to="hdf5")
    options = json.loads((tmp_path / "model" / "options.json").read_text())
    assert options["char_cnn"]["n_characters"] == 262
    options["char_cnn"]["n_characters"] = characters
    (tmp_path / "model" / "options.json").write_text(json.dumps(options))
    assert load_weights(tmp_path / "model").config == tiny()


def test_a_bias_that_holds_the_forget_gates_1_gives_it_back_to_the_file(tmp_path):
    config = tiny(forget_bias=0.0)
    weights = lively(config)
    save_weights(weights, tmp_path / "model", to="hdf5")
    with h5py.File(tmp_path / "model" / "weights.hdf5") as file:
        stored = gates(file["RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/B"][()], 0)
    expected = weights.arrays["forward.1.bias"].copy()
    expected[11:22] -= 1
    np.testing.assert_array_equal(stored, expected)
    before, after = Embedder(weights), Embedder.load(tmp_path / "model")
    np.testing.assert_allclose(after.embed([["the", "cat"]])[0], before.embed([["the", "cat"]])[0], atol=1e-6)


@pytest.mark.parametrize("type", ["<f2", "<f8", ">f4"])
def test_other_floating_point_numbers_become_float32(tmp_path, type):
    save_weights(lively(tiny()), tmp_path / "model", to="hdf5")
    with h5py.File(tmp_path / "model" / "weights.hdf5", "r+") as file:
        expected = file["char_embed"][()].astype(type)
        del file["char_embed"]
        file["char_embed"] = expected
    read = load_weights(tmp_path / "model").arrays["encoder.characters"]
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, expected.astype(np.float32))


def test_only_the_array_that_is_asked_for_is_read(tmp_path):
    weights = lively(tiny())
    weights.arrays["backward.1.weight_hh"][0, 0] = np.inf
    save_weights(weights, tmp_path / "model", to="hdf5")
    read = load_weights(tmp_path / "model")
    np.testing.assert_array_equal(read.arrays["backward.1.weight_ih"], weights.arrays["backward.1.weight_ih"])
    with pytest.raises(ModelError, match=r"weights\.hdf5: RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0: holds values"):
        read.arrays["backward.1.weight_hh"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (tiny(directions=("backward",)), "backward direction alone"),
        (tiny(encoder_width=7), "as wide as the LSTM's output: 7 is not 6"),
    ],
    ids=["backward only", "another width"],
)
def test_a_model_that_the_format_cannot_hold_is_refused(tmp_path, config, said):
    with pytest.raises(ModelError, match=said):
        save_weights(lively(config), tmp_path / "model", to="hdf5")
    assert not list(tmp_path.iterdir())


def test_it_is_always_float32(tmp_path):
    with pytest.raises(ModelError, match="always stored as float32"):
        save_weights(lively(tiny()), tmp_path / "model", to="hdf5", storage="int8")
