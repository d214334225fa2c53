"""The waves of one call: which kernel runs when. Forward from the first wave to the last, backward the other way round."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from elmofire.kernels.lstmp_gpu import cells, one_row, projection, sentence
from elmofire.kernels.lstmp_gpu.buffers import Backward, Forward, Rows
from elmofire.kernels.lstmp_gpu.packing import Layer, Packed, unpack_gradients
from elmofire.kernels.lstmp_gpu.sizes import Sizes


class Kernels(NamedTuple):
    """The kernels that have a variant for Hopper: each is planned once a call, and run once a wave."""

    gates: Callable[[Sizes, Forward, Packed, Rows], Callable[[int], None]]
    gates_backward: Callable[[Sizes, Forward, Backward, Packed, Rows], Callable[[int], None]]
    hopper: bool


TRITON = Kernels(cells.plan_gates, cells.plan_gates_backward, hopper=False)


def forward(
    s: Sizes,
    kernels: Kernels,
    inputs: Tensor,
    packed: Packed,
    hidden: Tensor,
    memory: Tensor,
    rows: Rows,
    *,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Forward]:
    """Outputs (D, L, T, B, P), the state after the last step (D, L, B, P) and (D, L, B, C), and the buffers."""
    f = Forward.make(s, inputs.device, save=save)
    slots = f.c.shape[1]
    f.xh[: s.D, : s.T, : s.B, : s.E].copy_(inputs)
    for layer in range(s.L):
        start = f.xh[_cells(s, layer), layer, : s.B, s.X_ : s.X_ + s.P]
        start.copy_(hidden[:, layer])
        if s.resets:
            start.masked_fill_(rows.resets[:, 0, : s.B, None] != 0, 0)
        f.c[_cells(s, layer), layer % slots, : s.B, : s.C].copy_(memory[:, layer])
    if not save and one_row.serves(s):
        one_row.run_all_steps(s, f, packed, rows)
    elif not save and sentence.serves(s, inputs.device):
        sentence.run_all_waves(s, f, packed, rows)
    else:
        gates = kernels.gates(s, f, packed, rows)
        project = projection.plan_projection(s, f, packed, rows, hopper=kernels.hopper)
        for wave in range(s.waves):
            gates(wave)
            project(wave)
    hidden_after = [f.xh[_cells(s, layer), s.T + layer, : s.B, s.X_ : s.X_ + s.P] for layer in range(s.L)]
    if save:
        last = [f.c[_cells(s, layer), s.T + layer, : s.B, : s.C] for layer in range(s.L)]
        memory_after = torch.stack(last, dim=1)
    else:
        memory_after = f.c[:, 0].unflatten(0, (s.L, s.D)).transpose(0, 1)[:, :, : s.B, : s.C]
    return (
        f.outputs[:, :, :, : s.B, : s.P],
        torch.stack(hidden_after, dim=1).float(),
        memory_after,
        f,
    )


def backward(
    s: Sizes,
    kernels: Kernels,
    f: Forward,
    packed: Packed,
    rows: Rows,
    d_outputs: Tensor,
    d_hidden: Tensor,
    d_memory: Tensor,
    layers: Sequence[Layer],
) -> tuple[Tensor, Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor, Tensor]]]:
    """Gradients of the inputs, of the state before the first step, and of each cell's weight_ih, weight_hh, bias and weight_hr."""
    b = Backward.make(s, d_outputs, tiles=s.B_ // cells.BACKWARD_ROWS)
    if s.padded:
        b.dc.zero_()
    for layer in range(s.L):
        last = b.d[s.T + layer, _cells(s, layer), :, s.X_ :]
        if s.padded:
            last.zero_()
        last[:, : s.B, : s.P].copy_(d_hidden[:, layer])
        b.dc[_cells(s, layer), : s.B, : s.C].copy_(d_memory[:, layer])
    of_hidden = projection.plan_projection_backward(s, f, b, rows)
    of_gates = kernels.gates_backward(s, f, b, packed, rows)
    for wave in reversed(range(s.waves)):
        of_hidden(wave)
        of_gates(wave)
        cell0, count = s.active(wave)
        here = slice(cell0, cell0 + count)
        _sum_over_gates(f.gates[here, wave], packed.weight[here], out=b.d[wave, here])

    d_inputs = b.d[: s.T, : s.D, : s.B, : s.E].transpose(0, 1)
    starts = torch.stack([b.d[layer, _cells(s, layer), : s.B, s.X_ : s.X_ + s.P] for layer in range(s.L)], dim=1)
    starts = starts.float()
    if s.resets:
        starts = starts.masked_fill(rows.resets[:, None, 0, : s.B, None] != 0, 0.0)
    if s.ragged:  # rows without a single step
        starts = starts + b.carry.unflatten(0, (s.L, s.D)).transpose(0, 1)[:, :, : s.B, : s.P]
    d_start_memory = b.dc.unflatten(0, (s.L, s.D)).transpose(0, 1)[:, :, : s.B, : s.C]
    return d_inputs, starts, d_start_memory, _weight_gradients(s, f, b, layers)


def _weight_gradients(
    s: Sizes, f: Forward, b: Backward, layers: Sequence[Layer]
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """All steps of a cell in one product, the directions of a layer side by side."""
    if not layers:  # packed once and for all: they do not change
        return []
    # In two stages, as kernels/sums.py says why.
    d_bias = b.bias_sums.sum(dim=0).sum(dim=1)
    gradients = []
    for layer in range(s.L):
        here, steps = _cells(s, layer), slice(layer, layer + s.T)
        gates, xh, dh, m = (
            buffer[here, steps].flatten(1, 2) for buffer in (f.gates, f.xh, b.dh, f.m)
        )  # each (D, T * B, ..)
        d_weight, d_projection = _product(gates, xh), _product(dh, m)
        for direction in range(s.D):
            cell = layer * s.D + direction
            of_gates = unpack_gradients(s, d_weight[direction], d_bias[cell], layers[cell])
            gradients.append((*of_gates, d_projection[direction, : s.P, : s.C]))
    return gradients


def _sum_over_gates(gates: Tensor, weight: Tensor, *, out: Tensor) -> None:
    """(n, B, 4C) and (n, 4C, K) -> (n, B, K). In float32 one long sum would lose digits: eight shorter ones are added up."""
    if gates.dtype != torch.float32:
        torch.bmm(gates, weight, out=out)
        return
    parts = torch.matmul(gates.unflatten(2, (8, -1)).transpose(1, 2), weight.unflatten(1, (8, -1)))
    torch.sum(parts, dim=1, out=out)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """(D, n, a) and (D, n, b) -> (D, a, b) in float32: sums over thousands of rows do not fit bfloat16."""
    left = left.transpose(1, 2)
    if left.dtype == torch.float32:
        return torch.bmm(left, right)
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


def _cells(s: Sizes, layer: int) -> slice:
    return slice(layer * s.D, (layer + 1) * s.D)
