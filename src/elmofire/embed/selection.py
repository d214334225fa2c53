"""Which layers a caller wants, and how they become one array."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Ints
from elmofire.engine.spill import room
from elmofire.errors import InputError
from elmofire.formats.config import BilmConfig
from elmofire.formats.weights import Array

LayerChoice = str | int | Sequence[float]
Padded = tuple[Array, NDArray[np.bool_]]  # vectors, and where there are any

_CHUNK_BYTES = 1 << 18  # of each layer, where layers are put together


@dataclass(frozen=True)
class Selection:
    """Layers 0..depth have to be computed; `shares` mix them, or all are kept."""

    depth: int
    shares: tuple[float, ...] | None  # one per layer 0..depth; None: all layers
    width: int

    def combine(self, layers: list[Array], first: int, last: int) -> Array:
        """Rows first..last of layers (each (rows, D)) -> (last - first, D), or (L + 1, last - first, D) for all of them."""
        if self.shares is not None and self.shares[-1] == 1.0 and not any(self.shares[:-1]):
            return layers[-1][first:last]
        count = last - first
        shape = (count, self.width) if self.shares is not None else (len(layers), count, self.width)
        combined = room(shape, rows=count)
        # Some rows at a time, so that what is in between stays in the cache, however long the sentence.
        at_once = max(1, _CHUNK_BYTES // (4 * self.width))
        for start in range(0, count, at_once):
            here, there = slice(start, start + at_once), slice(first + start, min(first + start + at_once, last))
            if self.shares is None:
                for kept, layer in zip(combined, layers, strict=True):
                    kept[here] = layer[there]
                continue
            mixed = combined[here]
            np.multiply(layers[0][there], self.shares[0], out=mixed)
            for share, layer in zip(self.shares[1:], layers[1:], strict=True):
                mixed += share * layer[there]
        return combined

    def cut(self, layers: list[Array], sentences: Iterable[Ints]) -> list[Array]:
        """The same for sentences whose rows lie apart, of a pool that is no larger than it may be."""
        if self.shares is None:
            return [np.stack([layer[rows] for layer in layers]) for rows in sentences]
        combined = self.combine(layers, 0, len(layers[-1]))
        return [combined[rows] for rows in sentences]

    def pooled_shape(self, layers: int) -> tuple[int, ...]:
        """Of what is left when tokens become one."""
        return (self.width,) if self.shares is not None else (layers + 1, self.width)

    def padded(self, vectors: list[Array]) -> Padded:
        """One array (sentences, [layers,] tokens, width), zeros past each sentence's end, and where tokens are."""
        lengths = np.array([array.shape[-2] for array in vectors], dtype=np.int64)
        longest = int(lengths.max(initial=0))
        inner = vectors[0].shape[:-2] if vectors else ()
        array = np.zeros((len(vectors), *inner, longest, self.width), dtype=np.float32)
        for number, found in enumerate(vectors):
            array[number, ..., : lengths[number], :] = found
        return array, np.arange(longest) < lengths[:, None]

    def empty(self, layers: int) -> Array:
        """The vectors of no tokens."""
        return np.zeros((0, self.width) if self.shares is not None else (layers + 1, 0, self.width), dtype=np.float32)


def select(choice: LayerChoice, config: BilmConfig) -> Selection:
    """Understand `layers=`: "average", "top", "all", the number of a layer, or mix weights before the softmax."""
    layers = config.layers
    if isinstance(choice, str):
        if choice == "top":
            choice = layers
        elif choice == "average":
            return _mixed((1 / (layers + 1),) * (layers + 1), config)
        elif choice == "all":
            _one_width(config)
            return Selection(layers, None, config.width)
        else:
            raise InputError(f"layers is {choice!r}, but should be average, top, all, a layer's number, or mix weights")
    if isinstance(choice, int | np.integer) and not isinstance(choice, bool):
        if not 0 <= choice <= layers:
            raise InputError(f"layers is {choice}, but this model has layers 0 to {layers}")
        return Selection(int(choice), (0.0,) * int(choice) + (1.0,), config.layer_widths[int(choice)])
    try:
        weights = np.asarray(choice, dtype=np.float64)
    except (TypeError, ValueError):
        weights = np.zeros(())
    if weights.ndim != 1 or not np.isfinite(weights).all():
        raise InputError(f"layers is {choice!r}, but should be average, top, all, a layer's number, or mix weights")
    if len(weights) != layers + 1:
        raise InputError(
            f"layers has {len(weights)} mix weights, but this model has {layers + 1} layers (0 to {layers})"
        )
    powers = np.exp(weights - weights.max())
    return _mixed(tuple((powers / powers.sum()).tolist()), config)


def _mixed(shares: tuple[float, ...], config: BilmConfig) -> Selection:
    _one_width(config)
    return Selection(config.layers, shares, config.width)


def _one_width(config: BilmConfig) -> None:
    if len(set(config.layer_widths)) > 1:
        raise InputError(
            f"the layers of this model have different widths {config.layer_widths}, so they can be neither mixed nor stacked",
            hint='ask for one: layers="top", or its number',
        )
