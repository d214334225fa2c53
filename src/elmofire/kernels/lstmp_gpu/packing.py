"""Weights in the kernels' order, and their gradients back in the model's.

Gates are packed by blocks of 32 units: 32 rows of the input gate, 32 of the forget gate, 32 of the candidate, 32 of the output gate, so that
a tile of 128 columns holds whole units. A row reads x and h side by side. What the sizes are padded by is zero.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from elmofire.kernels.lstmp_gpu.sizes import Sizes


class Packed(NamedTuple):
    """Weights of all cells."""

    weight: Tensor  # (cells, 4C, X + P)
    bias: Tensor  # (cells, 4C) float32
    projection: Tensor  # (cells, P, C)


Layer = tuple[Tensor, Tensor, Tensor, Tensor | None]  # weight_ih, weight_hh, bias, weight_hr


@triton.jit
def move_gates(
    packed, weight_ih, weight_hh, width, h_width, cells, PACK: tl.constexpr, X: tl.constexpr, K: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """One gate of one block, some columns: into the packed order, or out of it."""
    block, gate = tl.program_id(0) // 4, tl.program_id(0) % 4
    unit = block * 32 + tl.arange(0, 32)
    column = tl.program_id(1) * COLUMNS
    columns = column + tl.arange(0, COLUMNS)
    there = packed + (tl.program_id(0) * 32 + tl.arange(0, 32))[:, None].to(tl.int64) * K + columns[None, :]
    row = (gate * cells + unit)[:, None].to(tl.int64)
    if column < X:
        here = weight_ih + row * width + columns[None, :]
        real = (unit < cells)[:, None] & (columns < width)[None, :]
        if PACK:
            tl.store(there, tl.load(here, mask=real, other=0.0).to(packed.dtype.element_ty))
        else:
            tl.store(here, tl.load(there).to(weight_ih.dtype.element_ty), mask=real)
    else:
        here = weight_hh + row * h_width + (columns - X)[None, :]
        real = (unit < cells)[:, None] & (columns - X < h_width)[None, :]
        if PACK:
            tl.store(there, tl.load(here, mask=real, other=0.0).to(packed.dtype.element_ty))
        else:
            tl.store(here, tl.load(there).to(weight_hh.dtype.element_ty), mask=real)


def pack(s: Sizes, layers: Sequence[Layer]) -> Packed:
    """Layers by cell. An LSTM without projection is one whose projection is the identity."""
    device = layers[0][0].device
    exact = (s.C, s.P) == (s.C_, s.P_)
    make = torch.empty if exact else torch.zeros
    weight = torch.empty(s.cells, 4 * s.C_, s.K_, dtype=s.dtype, device=device)
    bias = make(s.cells, 4 * s.C_, dtype=torch.float32, device=device)
    projection = make(s.cells, s.P_, s.C_, dtype=s.dtype, device=device)
    for cell, (weight_ih, weight_hh, b, weight_hr) in enumerate(layers):
        _move(s, weight[cell], weight_ih.contiguous(), weight_hh.contiguous(), pack=True)
        gates = b.new_zeros(4, s.C_) if s.C != s.C_ else b.unflatten(0, (4, s.C))
        if s.C != s.C_:
            gates[:, : s.C] = b.unflatten(0, (4, s.C))
        bias[cell].unflatten(0, (-1, 4, 32)).copy_(gates.unflatten(1, (-1, 32)).transpose(0, 1))
        if weight_hr is None:
            projection[cell].zero_().diagonal()[: s.P].fill_(1)
        else:
            projection[cell, : s.P, : s.C].copy_(weight_hr)
    return Packed(weight, bias, projection)


def unpack_gradients(s: Sizes, weight: Tensor, bias: Tensor, layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one cell's gates, like `layer`'s own weight_ih, weight_hh and bias."""
    weight_ih, weight_hh, b = (torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in layer[:3])
    _move(s, weight, weight_ih, weight_hh, pack=False)
    b.unflatten(0, (4, s.C)).copy_(bias.unflatten(0, (-1, 4, 32)).transpose(0, 1).flatten(1, 2)[:, : s.C])
    return weight_ih, weight_hh, b


def _move(s: Sizes, packed: Tensor, weight_ih: Tensor, weight_hh: Tensor, *, pack: bool) -> None:
    move_gates[(s.C_ // 8, s.K_ // 64)](
        packed, weight_ih, weight_hh, weight_ih.shape[1], s.P, s.C, PACK=pack, X=s.X_, K=s.K_, COLUMNS=64, num_warps=4
    )
