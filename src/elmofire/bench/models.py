"""Weights to measure with where no model is given: random, but lively, so that clips fire, layers differ and errors show."""

import zlib

import numpy as np

from elmofire.engine.batches import token_ids
from elmofire.engine.encoder import Encoder, NumpyEncoder
from elmofire.errors import InputError
from elmofire.formats.config import BilmConfig, small, tensor_shapes
from elmofire.formats.weights import Weights
from elmofire.text.vocabulary import Vocabulary

SIZES = ("small", "original")
_WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "it", "rained", "1234", "日本語", "café", "."]


def sized(size: str) -> BilmConfig:
    """The sizes of a published model by its name.

    >>> sized("original").cells, sized("small").cells
    (4096, 1024)
    """
    if size not in SIZES:
        raise InputError(f"the size is {size!r}, but should be {' or '.join(SIZES)}")
    return small() if size == "small" else BilmConfig()


def lively(config: BilmConfig, *, seed: int = 0, vocabulary: Vocabulary | None = None) -> Weights:
    """Gates of standard deviation 1/sqrt(2P), projections 2/sqrt(cells), layer 0 of about unit variance.

    >>> f"{lively(sized('small'), seed=1).arrays['forward.0.weight_hr'].std():.3f}"
    '0.062'
    """
    arrays = {}
    for name, shape in tensor_shapes(config).items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        arrays[name] = (rng.standard_normal(shape) * _deviation(name, shape, config)).astype(np.float32)
    weights = Weights(config=config, arrays=arrays, vocabulary=vocabulary)
    if config.encoder.projection:
        ids = token_ids(_WORDS, config, vocabulary, weights.alphabet)
        spread = Encoder(config.encoder, NumpyEncoder(weights))(ids).std()
        if spread > 1e-6:  # a few filters behind a relu may be silent for all words
            arrays["encoder.projection.weight"] /= spread
            arrays["encoder.projection.bias"] /= spread
    return weights


def _deviation(name: str, shape: tuple[int, ...], config: BilmConfig) -> float:
    part = name.split(".")
    if name in ("encoder.characters", "encoder.words"):
        return 1.0
    if part[-1] == "bias":
        return 0.1
    if part[1] == "convolutions":
        return (shape[1] * shape[2]) ** -0.5
    if part[0] == "encoder":
        return shape[1] ** -0.5
    if part[-1] == "weight_hr":
        return 2 * config.cells**-0.5
    return (2 * config.projection) ** -0.5
