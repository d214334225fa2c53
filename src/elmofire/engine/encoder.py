"""Characters -> one vector per word, in numpy: convolutions as matrix products over the positions that a word really has."""

import numpy as np
from numpy.typing import NDArray

from elmofire.formats.weights import Array, Weights

_CHUNK_WORDS = 128  # at a time: their responses to the widest filters, some 60 KB a word, stay near the cache


class Encoder:
    """The arrays of the encoder, and how a word goes through them."""

    def __init__(self, weights: Weights) -> None:
        config, arrays = weights.config.encoder, weights.arrays
        self.config = config
        self.words = arrays["encoder.words"] if config.words else None
        if config.filters:
            characters = arrays["encoder.characters"]
            self.characters = np.concatenate([np.zeros_like(characters[:1]), characters])  # id 0: no token
            # (width * character_dim, count): a window of characters laid out flat times all filters of a width
            self.filters = [
                arrays[f"encoder.convolutions.{k}.weight"].transpose(2, 1, 0).reshape(-1, count)
                for k, (_, count) in enumerate(config.filters)
            ]
            self.filter_bias = np.concatenate(
                [arrays[f"encoder.convolutions.{k}.bias"] for k in range(len(config.filters))]
            )
            self.highways = [
                tuple(
                    arrays[f"encoder.highways.{k}.{name}"]
                    for name in ("gate.weight", "gate.bias", "transform.weight", "transform.bias")
                )
                for k in range(config.highways)
            ]
        if config.projection:
            self.projection = (arrays["encoder.projection.weight"], arrays["encoder.projection.bias"])

    def __call__(self, ids: NDArray) -> Array:
        """Token ids as `token_ids` makes them (n, columns) -> (n, E)."""
        features: list[Array] = []
        if self.words is not None:
            features.append(np.where(ids[:, :1] > 0, self.words[np.maximum(ids[:, 0] - 1, 0)], np.float32(0)))
            ids = ids[:, 1:]
        if self.config.filters:
            features.append(self._spelled(ids))
        z = np.concatenate(features, axis=1) if len(features) > 1 else features[0]
        return z @ self.projection[0].T + self.projection[1] if self.config.projection else z

    def _spelled(self, ids: NDArray) -> Array:
        """Character ids (n, W) -> what the filters and highways make of them (n, filters)."""
        lengths = spelled_lengths(ids)
        order = np.argsort(lengths, kind="stable")
        widest = max(width for width, _ in self.config.filters)
        out = np.empty((len(ids), self.config.filter_count), dtype=np.float32)
        for first in range(0, len(order), _CHUNK_WORDS):
            rows = order[first : first + _CHUNK_WORDS]
            # All windows that lie in the padding are alike: one of them, behind the longest word, stands for the rest.
            columns = min(ids.shape[1], int(lengths[rows[-1]]) + widest)
            out[rows] = self._filtered(ids[rows, :columns])
        return out

    def _filtered(self, ids: NDArray) -> Array:
        embedded = self.characters[ids]  # (n, positions, character_dim)
        banks = zip(self.filters, self.config.filters, strict=True)
        z = np.concatenate([convolve_and_pool(embedded, filters, width) for filters, (width, _) in banks], axis=1)
        z += self.filter_bias  # constant over positions, so after the maximum
        z = np.maximum(z, 0, out=z) if self.config.activation == "relu" else np.tanh(z, out=z)
        for gate_weight, gate_bias, weight, bias in self.highways:
            gate = sigmoid(z @ gate_weight.T + gate_bias)
            transformed = np.maximum(z @ weight.T + bias, 0)
            z += gate * (transformed - z)
        return z


def spelled_lengths(ids: NDArray) -> NDArray[np.int64]:
    """How many columns of each row come before the run of equal ids at its end, which is padding."""
    differs = ids != ids[:, -1:]
    return np.where(differs.any(axis=1), ids.shape[1] - np.argmax(differs[:, ::-1], axis=1), 0)


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
