"""The LSTM layers over a pool, a window of steps at a time. A layer's arithmetic is numpy's or compiled."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Ints, Pool
from elmofire.engine.encoder import sigmoid
from elmofire.engine.workers import AtOnce, one_by_one
from elmofire.formats.config import BilmConfig
from elmofire.formats.weights import Array, Weights

# At a time: input gates of so many distinct tokens are 128 MB in the original size, and there are rarely half as many.
_WINDOW_ROWS = 2048

Carried = list[tuple[Array, Array]]  # h (B, P) and c (B, at least C) of each layer


class Layer(Protocol):
    """One layer of one direction."""

    @property
    def residual(self) -> bool:
        """Whether the input is added to the output."""
        ...

    @property
    def memory_room(self) -> int:
        """Columns of c, of which the first are the cells."""
        ...

    def steps(self, inputs: Array, which: Ints | None, starts: Ints, h: Array, c: Array) -> Callable[[], Array]:
        """A call for the steps over the rows `starts[0]` .. `starts[-1]`: outputs (rows, P), `h` and `c` (B, ..) moved on in place.

        Row r, counted from `starts[0]`, has the input `inputs[which[r]]`, or `inputs[r]` without `which`: where rows share an
        input, its part of the gates is computed once.
        """
        ...


class Direction(NamedTuple):
    """The layers of one direction, and their state."""

    stack: Sequence[Layer]
    backward: bool
    carried: Carried


class _Window:
    """Some steps of one direction on their way up the layers."""

    def __init__(self, direction: Direction, pool: Pool, starts: Ints, vectors: Array) -> None:
        rows = slice(int(starts[0]), int(starts[-1]))
        self.rows = pool.mirror[rows] if direction.backward else rows
        self.layers = [vectors[tokens := pool.tokens[self.rows]]]
        self._direction, self._starts = direction, starts
        self._inputs, self._which = self.layers[0], None
        if direction.stack:  # the first layer's input gates, once for each distinct token
            distinct, self._which = np.unique(tokens, return_inverse=True)
            self._inputs = vectors[distinct]

    def steps(self, k: int) -> Callable[[], Array]:
        """The call of layer k, the one above those that have passed."""
        h, c = self._direction.carried[k]
        return self._direction.stack[k].steps(self._inputs, self._which, self._starts, h, c)

    def passed(self, k: int, outputs: Array) -> None:
        if self._direction.stack[k].residual:
            outputs += self.layers[-1]
        self.layers.append(outputs)
        self._inputs, self._which = outputs, None


def run_stacks(
    directions: Sequence[Direction], pool: Pool, vectors: Array, at_once: AtOnce = one_by_one
) -> Iterator[list[tuple[NDArray | slice, list[Array]]]]:
    """Window by window, for each direction the pool's rows and what all layers give for them, inputs (layer 0) first.

    Row r's input is `vectors[pool.tokens[r]]`. The state goes on from window to window, so that memory is a window's. Directions
    keep step, so that the calls of a layer can be made at once.
    """
    for first, last in pool.windows(_WINDOW_ROWS):
        starts = pool.starts[first : last + 1]
        windows = [_Window(direction, pool, starts, vectors) for direction in directions]
        for k in range(len(directions[0].stack)):
            for window, outputs in zip(windows, at_once([window.steps(k) for window in windows]), strict=True):
                window.passed(k, outputs)
        yield [(window.rows, window.layers) for window in windows]


class NumpyLayer(NamedTuple):
    """A layer in numpy; gates in the order input, forget, candidate, output."""

    weight_ih: Array  # (4C, E or P)
    weight_hh: Array  # (4C, P)
    bias: Array  # (4C,) with the forget gate's constant
    weight_hr: Array | None  # (P, C)
    cell_clip: float | None
    projection_clip: float | None
    residual: bool

    @classmethod
    def of(cls, weights: Weights, direction: str, k: int) -> "NumpyLayer":
        config, arrays = weights.config, weights.arrays
        return cls(
            arrays[f"{direction}.{k}.weight_ih"],
            arrays[f"{direction}.{k}.weight_hh"],
            bias_with_forget(arrays[f"{direction}.{k}.bias"], config),
            arrays[f"{direction}.{k}.weight_hr"] if config.lstm_projection else None,
            config.cell_clip,
            config.projection_clip,
            residual=config.skip_connections and k > 0,
        )

    @property
    def memory_room(self) -> int:
        return len(self.bias) // 4

    def steps(self, inputs: Array, which: Ints | None, starts: Ints, h: Array, c: Array) -> Callable[[], Array]:
        return partial(self._run, inputs, which, starts, h, c)

    def _run(self, inputs: Array, which: Ints | None, starts: Ints, h: Array, c: Array) -> Array:
        gates = inputs @ self.weight_ih.T
        gates += self.bias
        starts = starts - starts[0]
        outputs = np.empty((int(starts[-1]), h.shape[1]), dtype=np.float32)
        room = np.empty((int(starts[1]), len(self.bias)), dtype=np.float32)
        for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            n = b - a
            np.matmul(h[:n], self.weight_hh.T, out=room[:n])
            room[:n] += gates[a:b] if which is None else gates[which[a:b]]
            update_cells(room[:n], c[:n], self.cell_clip)
            self._project(room[:n], c[:n], out=h[:n])
            outputs[a:b] = h[:n]
        return outputs

    def _project(self, gates: Array, c: Array, *, out: Array) -> None:
        """The cells through the output gate and the projection."""
        m = np.tanh(c)
        m *= gates[:, 3 * c.shape[1] :]
        if self.weight_hr is None:
            out[:] = m
            return
        np.matmul(m, self.weight_hr.T, out=out)
        if self.projection_clip is not None:
            np.clip(out, -self.projection_clip, self.projection_clip, out=out)


def bias_with_forget(bias: Array, config: BilmConfig) -> Array:
    bias = bias.astype(np.float32)  # a copy: files keep their own
    bias[config.cells : 2 * config.cells] += np.float32(config.forget_bias)
    return bias


def update_cells(gates: Array, c: Array, clip: float | None) -> None:
    """Apply the gates' functions in place, and move the cells (n, C) on."""
    cells = c.shape[1]
    sigmoid(gates[:, : 2 * cells])
    np.tanh(gates[:, 2 * cells : 3 * cells], out=gates[:, 2 * cells : 3 * cells])
    sigmoid(gates[:, 3 * cells :])
    i, f, g = (gates[:, k * cells : (k + 1) * cells] for k in range(3))
    c *= f
    i *= g
    c += i
    if clip is not None:
        np.clip(c, -clip, clip, out=c)
