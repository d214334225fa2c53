"""How far int16 and int8 are from float32, layer by layer, on weights lively enough that gates and clips matter."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from models import lively

from elmofire.engine import Engine
from elmofire.engine.batches import make_pool, token_ids
from elmofire.engine.compiled import library
from elmofire.errors import InputError
from elmofire.formats.config import HIGHWAYS, BilmConfig, small

SETS = library.available()
TEXT = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "1234",
    "naïve",
    "日本語",
    "readers",
    "sat",
    "on",
    "Mats",
    ".",
]
BOUNDS = {"int16": (5e-3, 0.9999), "int8": (6e-2, 0.99)}  # relative error at most, cosine at least: means over tokens

needs_kernels = pytest.mark.skipif(not SETS, reason="no compiled kernels on this machine")


@pytest.fixture(autouse=True, scope="module")
def memory_given_back():
    yield
    layers.cache_clear()
    weights.cache_clear()


@cache
def weights(size):
    if size in HIGHWAYS:
        return lively(replace(small(), encoder=replace(small().encoder, highway=size)), seed=5)
    return lively({"original": BilmConfig(), "small": small()}[size], seed=5)


@cache
def layers(size, precision, instruction_set):
    model = weights(size)
    engine = Engine(model, precision=precision, instruction_set=instruction_set)
    rng = np.random.default_rng(3)
    sentences = [rng.integers(0, len(TEXT), length) for length in (24, 17, 9, 3)]
    vectors = engine.encode(token_ids(TEXT, model.config, None, model.alphabet))
    return next(iter(engine.run(vectors, [make_pool(sentences, np.arange(len(sentences)))])))


def assert_close(found, expected, precision):
    most, least = BOUNDS[precision]
    for j, (x, y) in enumerate(zip(found, expected, strict=True)):
        x, y = x.astype(np.float64), y.astype(np.float64)
        sizes = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
        error = (np.linalg.norm(x - y, axis=1) / sizes[1]).mean()
        cosine = ((x * y).sum(axis=1) / (sizes[0] * sizes[1])).mean()
        assert error <= most, f"layer {j}: {error:.2e}"
        assert cosine >= least, f"layer {j}: {cosine:.5f}"
        if j or precision == "int8":
            assert error > most / 100, f"layer {j} was not computed in {precision}"


@needs_kernels
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("instruction_set", SETS)
def test_the_small_size_is_as_close_as_promised(instruction_set, precision):
    assert_close(layers("small", precision, instruction_set), layers("small", "float32", "numpy"), precision)


@needs_kernels
@pytest.mark.parametrize("precision", BOUNDS)
def test_the_original_size_is_as_close_as_promised(precision):
    assert_close(layers("original", precision, SETS[0]), layers("original", "float32", "numpy"), precision)


@needs_kernels
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("highway", ["mlp", "learned"])
def test_other_highways_are_as_close(highway, precision):
    assert_close(layers(highway, precision, SETS[0]), layers(highway, "float32", "numpy"), precision)


@needs_kernels
@pytest.mark.parametrize("instruction_set", SETS[1:])
def test_int16_is_the_same_on_every_instruction_set(instruction_set):
    best = layers("small", "int16", SETS[0])
    for x, y in zip(layers("small", "int16", instruction_set), best, strict=True):
        difference = np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1)
        assert difference.mean() <= BOUNDS["int16"][0] / 4  # a number on the edge may be rounded to its other side


@needs_kernels
def test_the_original_size_in_float32_is_numpys():
    for x, y in zip(layers("original", "float32", SETS[0]), layers("original", "float32", "numpy"), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_numpy_has_no_integers():
    with pytest.raises(InputError, match="numpy has float32 only"):
        Engine(weights("small"), precision="int8", instruction_set="numpy")


def test_an_unknown_precision_is_refused_with_those_there_are():
    with pytest.raises(InputError, match=r"int4.*float32, int16, int8"):
        Engine(weights("small"), precision="int4")
