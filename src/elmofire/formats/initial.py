"""How a biLM starts: every initial value in one place, as the 2018 trainer drew them.

| array | value |
| --- | --- |
| character table | uniform(-1, 1) |
| convolutions | relu: uniform(-0.05, 0.05); tanh: normal(0, sqrt(1 / (width * character_dim))); bias 0 |
| highways | normal(0, sqrt(1 / filters)); gate bias -2, so that the layer starts near the identity; transform bias 0 |
| carry gates of their own | as the highways' other weights; bias +2, so that they start by carrying |
| projection of the encoder | normal(0, sqrt(1 / filters)); bias 0 |
| LSTM input and recurrent weights | Glorot uniform on the packed matrix: limit sqrt(6 / (inputs + projection + 4 * cells)) |
| LSTM bias | 0 (`forget_bias` comes on top at run time) |
| LSTM projection | Glorot uniform: limit sqrt(6 / (cells + projection)) |
| head | normal(0, 1 / sqrt(projection)); bias 0 |
| word table | Glorot uniform: limit sqrt(6 / (words + width)) |
"""

import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from elmofire.formats.config import BilmConfig, tensor_shapes
from elmofire.formats.weights import Array, Weights
from elmofire.text.vocabulary import Vocabulary


def initial_weights(config: BilmConfig, *, seed: int, vocabulary: Vocabulary | None = None) -> Weights:
    """An untrained biLM. The same config and seed give the same numbers, whichever arrays are asked for first."""
    return Weights(config=config, arrays=InitialArrays(config, seed), vocabulary=vocabulary)


class InitialArrays(Mapping[str, Array]):
    """Arrays that are drawn when asked for, each from a generator of its own."""

    def __init__(self, config: BilmConfig, seed: int) -> None:
        self._config = config
        self._shapes = tensor_shapes(config)
        self._seed = seed

    def __getitem__(self, name: str) -> Array:
        rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        return _draw(name, self._shapes[name], self._config, rng)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def _draw(name: str, shape: tuple[int, ...], config: BilmConfig, rng: np.random.Generator) -> Array:
    def uniform(limit: float) -> Array:
        return (rng.random(shape, dtype=np.float32) * 2 - 1) * np.float32(limit)

    def normal(deviation: float) -> Array:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    part = name.split(".")
    if part[-1] == "bias":
        return np.full(shape, {"gate": -2.0, "carry": 2.0}.get(part[-2], 0.0), dtype=np.float32)
    if name == "encoder.characters":
        return uniform(1.0)
    if name == "encoder.words":
        return uniform((6 / sum(shape)) ** 0.5)
    if part[1] == "convolutions":
        return uniform(0.05) if config.encoder.activation == "relu" else normal((1 / (shape[1] * shape[2])) ** 0.5)
    if part[0] == "encoder":
        return normal((1 / config.encoder.filter_count) ** 0.5)
    if part[0] == "head":
        return normal((1 / config.projection) ** 0.5)
    if part[-1] == "weight_hr":
        return uniform((6 / sum(shape)) ** 0.5)
    inputs = config.encoder.width if part[1] == "0" else config.projection
    return uniform((6 / (inputs + config.projection + 4 * config.cells)) ** 0.5)
