"""The native format: what is written comes back, other libraries read it, and smaller storage costs what theory says."""

import json
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from formats.strategies import configs, vocabulary_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from models import lively, tiny, words_only

from elmofire import ModelError, Weights, load_weights, save_weights
from elmofire.formats.config import BilmConfig, EncoderConfig, tensor_shapes
from elmofire.formats.native import quantize_rows
from elmofire.formats.tensors import bfloat16_to_float32, float32_to_bfloat16
from elmofire.text.tokenizers import TokenizerInfo
from elmofire.text.vocabulary import Vocabulary

MODELS = {
    "characters": tiny(),
    "one layer": tiny(layers=1),
    "no highway": tiny(encoder_highways=0),
    "no projections": tiny(encoder_width=15, encoder_projection=False, cells=7, projection=7, lstm_projection=False),
    "forward only": tiny(directions=("forward",)),
    "backward only": tiny(directions=("backward",)),
    "whole words": words_only(9),
    "head": tiny(head=9),
    "bias with the forget gate's 1": tiny(forget_bias=0.0),
    "no clips, tanh": tiny(cell_clip=None, projection_clip=None, encoder_activation="tanh", skip_connections=False),
}
every_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())


def assert_same(read: Weights, weights: Weights) -> None:
    assert read.config == weights.config
    assert list(read.arrays) == list(weights.arrays)
    for name, array in weights.arrays.items():
        assert read.arrays[name].dtype == np.float32
        np.testing.assert_array_equal(read.arrays[name].view(np.uint32), array.view(np.uint32), err_msg=name)


@every_model
def test_float32_comes_back_bit_for_bit(tmp_path, config):
    weights = lively(config, vocabulary=vocabulary_of(config))
    save_weights(weights, tmp_path / "model")
    read = load_weights(tmp_path / "model")
    assert_same(read, weights)
    assert (read.vocabulary and read.vocabulary.words) == (weights.vocabulary and weights.vocabulary.words)


@settings(deadline=None, max_examples=40)
@given(configs(), st.integers(0, 2**32))
def test_any_model_comes_back_bit_for_bit(config, seed):
    weights = lively(config, seed=seed, vocabulary=vocabulary_of(config))
    with tempfile.TemporaryDirectory() as folder:
        save_weights(weights, Path(folder) / "model")
        assert_same(load_weights(Path(folder) / "model"), weights)


def test_config_json_is_as_documented(tmp_path):
    weights = Weights(
        config=words_only(3),
        arrays=lively(words_only(3)).arrays,
        vocabulary=Vocabulary(["<S>", "</S>", "<UNK>"]),
        tokenizer=TokenizerInfo("plain", "ko", 1),
        training={"updates": 3, "corpus": "한국어"},
    )
    save_weights(weights, tmp_path / "model")
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    assert list(described) == ["model_type", "format", "model", "tokenizer", "training", "mixes"]
    assert (described["model_type"], described["format"]) == ("elmofire", 1)
    assert described["tokenizer"] == {"name": "plain", "language": "ko", "version": 1}
    assert described["model"]["cells"] == 11
    assert (tmp_path / "model" / "vocab.txt").read_text() == "<S>\n</S>\n<UNK>\n"
    assert {file.name for file in (tmp_path / "model").iterdir()} == {
        *("config.json", "model.safetensors", "vocab.txt", "README.md")
    }
    read = load_weights(tmp_path / "model")
    assert (read.tokenizer, read.training) == (weights.tokenizer, weights.training)


@every_model
def test_the_safetensors_library_reads_what_is_written(tmp_path, config):
    weights = lively(config, vocabulary=vocabulary_of(config))
    save_weights(weights, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    in_numpy, in_torch = safetensors.numpy.load_file(file), safetensors.torch.load_file(file)
    assert set(in_numpy) == set(in_torch) == set(tensor_shapes(config))
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(in_numpy[name], array)
        np.testing.assert_array_equal(in_torch[name].numpy(), array)
    with safetensors.safe_open(file, framework="numpy") as opened:
        assert opened.metadata() == {"format": "pt"}


class TestStorage:
    """Bounds are those of the types: half a unit in the last place, half a step of the scale."""

    def stored(self, tmp_path, storage: str) -> tuple[dict[str, np.ndarray], Weights, Path]:
        weights = lively(tiny(head=9), vocabulary=vocabulary_of(tiny(head=9)))
        save_weights(weights, tmp_path / "model", storage=storage)
        read = load_weights(tmp_path / "model").arrays
        return dict(read), weights, tmp_path / "model" / "model.safetensors"

    @pytest.mark.parametrize(
        ("storage", "type", "relative", "absolute"),
        [
            ("bfloat16", torch.bfloat16, 2.0**-8, 0.0),  # 8 significant bits
            ("float16", torch.float16, 2.0**-11, 2.0**-25),  # 11 bits; below 2^-14 the spacing is 2^-24
        ],
    )
    def test_half_the_bits_round_to_the_nearest(self, tmp_path, storage, type, relative, absolute):
        read, weights, file = self.stored(tmp_path, storage)
        in_torch = safetensors.torch.load_file(file)
        for name, array in weights.arrays.items():
            if array.ndim == 1:
                np.testing.assert_array_equal(read[name], array)
                continue
            assert np.all(np.abs(read[name] - array) <= relative * np.abs(array) + absolute)
            assert in_torch[name].dtype == type
            assert torch.equal(in_torch[name], torch.from_numpy(array).to(type))  # torch rounds in the same way
            np.testing.assert_array_equal(read[name], in_torch[name].float().numpy())

    def test_int8_is_off_by_half_a_step_of_its_rows_scale(self, tmp_path):
        read, weights, file = self.stored(tmp_path, "int8")
        in_numpy = safetensors.numpy.load_file(file)
        for name, array in weights.arrays.items():
            if array.ndim == 1:
                np.testing.assert_array_equal(read[name], array)
                continue
            rows = array.reshape(len(array), -1)
            step = np.abs(rows).max(axis=1, keepdims=True) / 127
            assert np.all(np.abs(read[name].reshape(rows.shape) - rows) <= step * (0.5 + 127 * 2.0**-22))
            assert in_numpy[name].dtype == np.int8
            np.testing.assert_allclose(in_numpy[f"{name}.scale"], step[:, 0], rtol=2.0**-23)

    @settings(deadline=None)
    @given(arrays.arrays(np.uint32, st.integers(1, 20)))
    def test_bfloat16_rounds_as_torch_does_for_all_numbers(self, bits):
        array = bits.view(np.float32)
        array = array[np.isfinite(array)]
        ours = float32_to_bfloat16(array)
        assert torch.equal(
            torch.from_numpy(ours.view(np.int16)).view(torch.bfloat16), torch.from_numpy(array).bfloat16()
        )
        np.testing.assert_array_equal(bfloat16_to_float32(ours), torch.from_numpy(array).bfloat16().float().numpy())

    @settings(deadline=None)
    @given(
        arrays.arrays(
            np.float32,
            st.tuples(st.integers(1, 4), st.integers(1, 4)),
            elements=st.floats(-(2.0**100), 2.0**100, width=32),
        )
    )
    def test_rows_of_any_size_are_quantized_to_half_a_step(self, array):
        quantized, scale = quantize_rows(array)
        assert np.abs(quantized.astype(np.int32)).max() <= 127
        assert np.all(scale > 0)
        largest = np.abs(array).max(axis=1, keepdims=True).astype(np.float64)
        error = np.abs(quantized * scale[:, None].astype(np.float64) - array)
        assert np.all(error <= largest / 127 * 0.5001 + 1e-35)  # rows below 1e-35 are zeros

    @pytest.mark.parametrize("storage", ["float16", "bfloat16"])
    def test_numbers_beyond_the_types_range_are_refused_by_name(self, tmp_path, storage):
        weights = lively(tiny())
        weights.arrays["forward.0.weight_ih"][3, 2] = 3.4e38
        with pytest.raises(ModelError, match=r"forward\.0\.weight_ih"):
            save_weights(weights, tmp_path / "model", storage=storage)
        assert not list(tmp_path.iterdir())

    def test_an_unknown_storage_is_an_error(self, tmp_path):
        with pytest.raises(
            ModelError, match="storage is 'float8', but should be one of float32, bfloat16, float16, int8"
        ):
            save_weights(lively(tiny()), tmp_path / "model", storage="float8")


class TestLaziness:
    BIG = BilmConfig(encoder=EncoderConfig(width=64, filters=((1, 64),)), cells=1024, projection=64)  # 8.6 MB

    def test_loading_reads_no_array(self, tmp_path):
        save_weights(lively(self.BIG), tmp_path / "model")
        load_weights(tmp_path / "model")  # imports are done
        tracemalloc.start()
        try:
            arrays = load_weights(tmp_path / "model").arrays
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
            for name in arrays:
                arrays[name]
            assert tracemalloc.get_traced_memory()[1] < 1 << 20  # float32 is a view of the mapped file
        finally:
            tracemalloc.stop()

    def test_writing_holds_few_arrays_at_a_time(self, tmp_path):
        save_weights(lively(self.BIG), tmp_path / "model")
        weights = load_weights(tmp_path / "model")
        largest = max(array.nbytes for array in weights.arrays.values())
        for storage, held in {"float32": 0, "bfloat16": 3, "int8": 4}.items():
            tracemalloc.start()
            try:
                save_weights(weights, tmp_path / storage, storage=storage)
                assert tracemalloc.get_traced_memory()[1] < held * largest + (1 << 20)
            finally:
                tracemalloc.stop()

    def test_only_the_array_that_is_asked_for_is_looked_at(self, tmp_path):
        weights = lively(tiny())
        weights.arrays["backward.1.bias"][0] = np.nan
        save_weights(weights, tmp_path / "model")
        read = load_weights(tmp_path / "model")
        np.testing.assert_array_equal(read.arrays["backward.0.bias"], weights.arrays["backward.0.bias"])
        with pytest.raises(
            ModelError, match=r"model\.safetensors: backward\.1\.bias: holds values that are not finite"
        ):
            read.arrays["backward.1.bias"]

    def test_an_array_that_the_model_does_not_have_is_a_key_error(self, tmp_path):
        save_weights(lively(tiny()), tmp_path / "model")
        with pytest.raises(KeyError):
            load_weights(tmp_path / "model").arrays["forward.2.bias"]
