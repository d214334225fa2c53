"""Characters -> one vector per word. The way of a word is written here once; its products are numpy's or compiled ones."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.workers import AtOnce, one_by_one
from elmofire.formats.config import HIGHWAYS, EncoderConfig
from elmofire.formats.weights import Array, Weights


class EncoderProducts(Protocol):
    """Where an encoder's arithmetic is done."""

    chunk_words: int  # that are worked on at a time

    def words(self, rows: NDArray) -> Array:
        """Rows of the word table (n, word_dim)."""
        ...

    def filtered(self, ids: NDArray, lengths: NDArray, at_once: AtOnce) -> Array:
        """Character ids (n, W), of which `lengths` come before the padding -> pooled responses, through their function (n, filters)."""
        ...

    def highway(self, k: int, z: Array, at_once: AtOnce) -> None:
        """Highway k over (n, filters), in place; the products with its matrices may be made at once."""
        ...

    def projected(self, z: Array) -> Array:
        """(n, features) -> (n, E)."""
        ...


class Encoder:
    """How a word goes through the encoder."""

    def __init__(self, config: EncoderConfig, products: EncoderProducts) -> None:
        self.config = config
        self._products = products

    def __call__(self, ids: NDArray, at_once: AtOnce = one_by_one) -> Array:
        """Token ids as `token_ids` makes them (n, columns) -> (n, E)."""
        out = np.empty((len(ids), self.config.width), dtype=np.float32)
        characters = ids[:, 1 if self.config.words else 0 :]
        lengths = spelled_lengths(characters) if self.config.filters else np.zeros(len(ids), dtype=np.int64)
        order = np.argsort(lengths, kind="stable")
        for first in range(0, len(order), self._products.chunk_words):
            rows = order[first : first + self._products.chunk_words]
            out[rows] = self._chunk(ids[rows], characters[rows], lengths[rows], at_once)
        return out

    def _chunk(self, ids: NDArray, characters: NDArray, lengths: NDArray, at_once: AtOnce) -> Array:
        features: list[Array] = []
        if self.config.words:
            words = self._products.words(np.maximum(ids[:, 0] - 1, 0))
            features.append(np.where(ids[:, :1] > 0, words, np.float32(0)))
        if self.config.filters:
            z = self._products.filtered(characters, lengths, at_once)
            for k in range(self.config.highways):
                self._products.highway(k, z, at_once)
            features.append(z)
        z = np.concatenate(features, axis=1) if len(features) > 1 else features[0]
        return self._products.projected(z) if self.config.projection else z


def spelled_lengths(ids: NDArray) -> NDArray[np.int64]:
    """How many columns of each row come before the run of equal ids at its end, which is padding."""
    differs = ids != ids[:, -1:]
    return np.where(differs.any(axis=1), ids.shape[1] - np.argmax(differs[:, ::-1], axis=1), 0)


class NumpyEncoder:
    """The products in numpy: convolutions as matrix products over the positions that a word really has."""

    chunk_words = 128  # their responses to the widest filters, some 60 KB a word, stay near the cache

    def __init__(self, weights: Weights) -> None:
        config, arrays = weights.config.encoder, weights.arrays
        self.config = config
        if config.words:
            self._words = arrays["encoder.words"]
        if config.filters:
            self._characters = character_table(weights)
            # (width * character_dim, count): a window of characters laid out flat times all filters of a width
            self._filters = [
                arrays[f"encoder.convolutions.{k}.weight"].transpose(2, 1, 0).reshape(-1, count)
                for k, (_, count) in enumerate(config.filters)
            ]
            self._filter_bias = filter_bias(weights)
            self._highways = [
                {
                    part: (arrays[f"encoder.highways.{k}.{part}.weight"], arrays[f"encoder.highways.{k}.{part}.bias"])
                    for part in HIGHWAYS[config.highway]
                }
                for k in range(config.highways)
            ]
        if config.projection:
            self._projection = (arrays["encoder.projection.weight"], arrays["encoder.projection.bias"])

    def words(self, rows: NDArray) -> Array:
        return self._words[rows]

    def filtered(self, ids: NDArray, lengths: NDArray, at_once: AtOnce) -> Array:
        # All windows that lie in the padding are alike: one of them, behind the longest word, stands for the rest.
        widest = max(width for width, _ in self.config.filters)
        embedded = self._characters[ids[:, : int(lengths.max()) + widest]]  # (n, positions, character_dim)
        banks = zip(self._filters, self.config.filters, strict=True)
        z = np.concatenate([convolve_and_pool(embedded, filters, width) for filters, (width, _) in banks], axis=1)
        z += self._filter_bias  # constant over positions, so after the maximum
        return np.maximum(z, 0, out=z) if self.config.activation == "relu" else np.tanh(z, out=z)

    def highway(self, k: int, z: Array, at_once: AtOnce) -> None:
        # One by one: numpy's products take the cores that they want by themselves.
        maps = {part: z @ weight.T + bias for part, (weight, bias) in self._highways[k].items()}
        pass_highway(maps, z)

    def projected(self, z: Array) -> Array:
        return z @ self._projection[0].T + self._projection[1]


def character_table(weights: Weights) -> Array:
    """The character table with row 0 for id 0, which is no token: zeros."""
    encoder = weights.config.encoder
    if encoder.one_hot:
        return np.eye(encoder.characters + 1, encoder.characters, k=-1, dtype=np.float32)
    characters = weights.arrays["encoder.characters"]
    return np.concatenate([np.zeros_like(characters[:1]), characters])


def pass_highway(maps: Mapping[str, Array], z: Array) -> None:
    """One highway over (n, filters), in place, from what its affine maps gave; those are used up."""
    transformed = np.maximum(maps["transform"], 0)
    if "gate" not in maps:
        z[:] = transformed
        return
    gate = sigmoid(maps["gate"])
    if "carry" in maps:
        z *= sigmoid(maps["carry"])
        z += gate * transformed
    else:
        z += gate * (transformed - z)


def filter_bias(weights: Weights) -> Array:
    banks = range(len(weights.config.encoder.filters))
    return np.concatenate([weights.arrays[f"encoder.convolutions.{k}.bias"] for k in banks])


def convolve_and_pool(embedded: Array, filters: Array, width: int) -> Array:
    """(n, positions, character_dim) -> the largest response of each filter at any position (n, count)."""
    n, positions, dim = embedded.shape
    windows = np.lib.stride_tricks.sliding_window_view(
        embedded, width, axis=1
    )  # (n, positions - width + 1, dim, width)
    flat = windows.transpose(0, 1, 3, 2).reshape(-1, width * dim)
    return (flat @ filters).reshape(n, positions - width + 1, -1).max(axis=1)


def sigmoid(x: Array) -> Array:
    """By way of tanh, in place: it neither overflows nor needs a branch."""
    x *= np.float32(0.5)
    np.tanh(x, out=x)
    x += np.float32(1)
    x *= np.float32(0.5)
    return x
