"""One LSTM layer with projection over a pool, in numpy. Its leaf functions are what compiled kernels stand in for."""

from typing import NamedTuple

import numpy as np

from elmofire.engine.batches import Ints, Pool
from elmofire.engine.encoder import sigmoid
from elmofire.formats.config import BilmConfig
from elmofire.formats.weights import Array, Weights

_WINDOW_ROWS = 1024  # input gates are computed for so many rows at a time: 64 MB in the original size


class Layer(NamedTuple):
    """One layer of one direction; gates in the order input, forget, candidate, output."""

    weight_ih: Array  # (4C, E or P)
    weight_hh: Array  # (4C, P)
    bias: Array  # (4C,) with the forget gate's constant
    weight_hr: Array | None  # (P, C)
    cell_clip: float | None
    projection_clip: float | None
    residual: bool

    @classmethod
    def of(cls, weights: Weights, direction: str, k: int) -> "Layer":
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


def bias_with_forget(bias: Array, config: BilmConfig) -> Array:
    bias = bias.astype(np.float32)  # a copy: files keep their own
    bias[config.cells : 2 * config.cells] += np.float32(config.forget_bias)
    return bias


def run_layer(layer: Layer, pool: Pool, inputs: Array, index: Ints | None, h: Array, c: Array) -> Array:
    """All steps of one layer -> its outputs (rows, P). `h` and `c` (B, ..) are the state, moved on in place.

    Row r's input is `inputs[index[r]]`, or `inputs[r]` without an index: where rows share an input, its gates are computed once.
    """
    outputs = np.empty((len(pool.tokens), h.shape[1]), dtype=np.float32)
    gates = np.empty((pool.active(0), len(layer.bias)), dtype=np.float32)
    for first, last in pool.windows(_WINDOW_ROWS):
        start, end = int(pool.starts[first]), int(pool.starts[last])
        if index is None:
            input_gates, rows = gates_of(inputs[start:end], layer), None
        else:
            distinct, rows = np.unique(index[start:end], return_inverse=True)
            input_gates = gates_of(inputs[distinct], layer)
        for step in range(first, last):
            a, b = int(pool.starts[step]), int(pool.starts[step + 1])
            n = b - a
            wanted = slice(a - start, b - start) if rows is None else rows[a - start : b - start]
            np.matmul(h[:n], layer.weight_hh.T, out=gates[:n])
            gates[:n] += input_gates[wanted]
            update_cells(gates[:n], c[:n], layer.cell_clip)
            project(gates[:n], c[:n], layer, out=h[:n])
            outputs[a:b] = h[:n]
    if layer.residual:
        outputs += inputs if index is None else inputs[index]
    return outputs


def gates_of(inputs: Array, layer: Layer) -> Array:
    """What the inputs alone contribute to the gates."""
    gates = inputs @ layer.weight_ih.T
    gates += layer.bias
    return gates


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


def project(gates: Array, c: Array, layer: Layer, *, out: Array) -> None:
    """The cells through the output gate and the projection."""
    m = np.tanh(c)
    m *= gates[:, 3 * c.shape[1] :]
    if layer.weight_hr is None:
        out[:] = m
        return
    np.matmul(m, layer.weight_hr.T, out=out)
    if layer.projection_clip is not None:
        np.clip(out, -layer.projection_clip, layer.projection_clip, out=out)
