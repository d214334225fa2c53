"""Which layers a caller wants, and how they become one array."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.mixing import Mix
from elmofire.errors import InputError
from elmofire.formats.config import BilmConfig
from elmofire.formats.weights import Array

LayerChoice = str | int | Sequence[float]
Padded = tuple[Array, NDArray[np.bool_]]  # vectors, and where there are any


@dataclass(frozen=True)
class Selection:
    """Layers 0..depth have to be computed; `shares` mix them, or all are kept."""

    depth: int
    shares: tuple[float, ...] | None  # one per layer 0..depth; None: all layers
    width: int

    def mix(self, *, boundaries: bool) -> Mix:
        return Mix(self.depth, self.shares, boundaries)

    @property
    def pooled_shape(self) -> tuple[int, ...]:
        """Of what is left when tokens become one."""
        return (self.width,) if self.shares is not None else (self.depth + 1, self.width)

    def padded(self, vectors: list[Array]) -> Padded:
        """One array (sentences, [layers,] tokens, width), zeros past each sentence's end, and where tokens are."""
        lengths = np.array([array.shape[-2] for array in vectors], dtype=np.int64)
        longest = int(lengths.max(initial=0))
        *inner, width = self.pooled_shape
        array = np.zeros((len(vectors), *inner, longest, width), dtype=np.float32)
        for number, found in enumerate(vectors):
            array[number, ..., : lengths[number], :] = found
        return array, np.arange(longest) < lengths[:, None]

    def empty(self) -> Array:
        """The vectors of no tokens."""
        *inner, width = self.pooled_shape
        return np.zeros((*inner, 0, width), dtype=np.float32)


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
        given = "1 mix weight" if len(weights) == 1 else f"{len(weights)} mix weights"
        raise InputError(f"layers has {given}, but this model has {layers + 1} layers (0 to {layers})")
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
