"""One sentence alone in float32: all steps of a layer in one launch, by vector products.

Tensor cores multiply tiles of rows, of which one row fills a sixteenth, and float32 costs them three products; what limits one row is the
weights' way to the processors. So rows of weights are multiplied as they arrive. Layers follow each other, since what a layer reads from
below is then known for all steps and is multiplied ahead: a step reads the recurrent weights alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from elmofire.kernels.lstmp_gpu.buffers import Forward, Rows
from elmofire.kernels.lstmp_gpu.cells import GATES_A_BLOCK, UNITS_A_BLOCK, finish_gates
from elmofire.kernels.lstmp_gpu.packing import Packed
from elmofire.kernels.lstmp_gpu.projection import finish_hidden
from elmofire.kernels.lstmp_gpu.sentence import MOST_ROWS, wait_for_all
from elmofire.kernels.lstmp_gpu.sizes import Sizes

_STRIP = 4  # columns of h that one program computes
# Two programs of eight warps a processor keep enough loads on their way to hide the memory's latency, if their registers fit.
_PROGRAMS_A_PROCESSOR = 2
_WARPS, _REGISTERS = 8, 128


@triton.jit
def times_rows(vector, weights, LENGTH: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """Products of a vector that another program has written with some rows of weights -> (ROWS,)."""
    depth = tl.arange(0, DEPTH)
    there = weights + tl.arange(0, ROWS)[:, None] * STRIDE + depth[None, :]
    sums = tl.zeros([ROWS, DEPTH], dtype=tl.float32)
    for start in range(0, LENGTH, DEPTH):
        sums += tl.load(there + start) * tl.load(vector + start + depth, cache_modifier=".cg")[None, :]
    return tl.sum(sums, axis=1)


@triton.jit(do_not_specialize=["layer", "T", "B"])
def all_steps(
    xh, weight, bias, projection, c, m, outputs, lengths, resets, ahead, arrivals, layer, T, B,
    X: tl.constexpr, P: tl.constexpr, C: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
    CELL_CLIP: tl.constexpr, CLIP: tl.constexpr, SKIP: tl.constexpr, RAGGED: tl.constexpr, RESETS: tl.constexpr,
    DEPTH: tl.constexpr, STRIP: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """The first row of one layer's buffers, whose B rows are padding but for it."""
    K: tl.constexpr = X + P
    blocks: tl.constexpr = C // UNITS_A_BLOCK
    strips: tl.constexpr = P // STRIP
    target = 0
    for t in range(T):
        wave = layer + t
        for past in range(0, D * blocks, tl.num_programs(0)):
            tile = past + tl.program_id(0)
            if tile < D * blocks:
                direction = tile // blocks
                block = tile % blocks
                cell = layer * D + direction
                h = xh + ((cell.to(tl.int64) * (T + L) + wave) * B) * K + X
                w = weight + (cell.to(tl.int64) * 4 * C + block * GATES_A_BLOCK) * K + X
                columns = block * GATES_A_BLOCK + tl.arange(0, GATES_A_BLOCK)
                z = tl.load(ahead + (direction * T + t).to(tl.int64) * (4 * C) + columns)
                z += times_rows(h, w, P, K, GATES_A_BLOCK, DEPTH)
                finish_gates(
                    z[None, :], 0, block, cell, bias, c, xh, m, lengths, resets, wave, 0, 0, 0, B, T, 1, 1,
                    C, D, L, CELL_CLIP, False, RAGGED, RESETS, ".cg", 1,
                )  # fmt: skip
        target += tl.num_programs(0)
        wait_for_all(arrivals, target)
        for past in range(0, D * strips, tl.num_programs(0)):
            tile = past + tl.program_id(0)
            if tile < D * strips:
                cell = layer * D + tile // strips
                column = (tile % strips) * STRIP
                opened = m + (cell.to(tl.int64) * B) * C
                h = times_rows(opened, projection + (cell.to(tl.int64) * P + column) * C, C, C, STRIP, LONG)
                finish_hidden(
                    h[None, :], 0, column, cell, xh, outputs, xh, lengths, resets, lengths, wave, B, T,
                    X, P, D, L, CLIP, SKIP, 0.0, False, RAGGED, RESETS, ".cg", 1, STRIP,
                )  # fmt: skip
        target += tl.num_programs(0)
        wait_for_all(arrivals, target)


def serves(s: Sizes) -> bool:
    """Is it one row in float32, on a GPU that can hold all programs at once? Triton's interpreter has one program."""
    alone = s.B == 1 and s.row_tile == MOST_ROWS
    return alone and s.dtype == torch.float32 and not s.dropout and not torch.version.hip


def run_all_steps(s: Sizes, f: Forward, packed: Packed, rows: Rows) -> None:
    # One a layer, 16 bytes apart: another alignment would be compiled once more.
    arrivals: Tensor = torch.zeros(s.L, 4, dtype=torch.int32, device=f.xh.device)
    programs = _programs(s, f.xh.device)
    for layer in range(s.L):
        here = slice(layer * s.D, (layer + 1) * s.D)
        x = f.xh[here, layer : layer + s.T, 0, : s.X_]
        ahead = torch.bmm(x, packed.weight[here, :, : s.X_].transpose(1, 2))
        all_steps[(programs,)](
            f.xh, packed.weight, packed.bias, packed.projection, f.c, f.m, f.outputs, rows.lengths, rows.resets, ahead,
            arrivals[layer], layer, s.T, s.B_,
            X=s.X_, P=s.P_, C=s.C_, D=s.D, L=s.L, CELL_CLIP=s.cell_clip, CLIP=s.projection_clip, SKIP=s.skip,
            RAGGED=s.ragged, RESETS=s.resets, DEPTH=64, STRIP=_STRIP,
            LONG=_divisor(s.C_, 2048), num_warps=_WARPS, maxnreg=_REGISTERS,
            launch_cooperative_grid=True,
        )  # fmt: skip


def _programs(s: Sizes, device: torch.device) -> int:
    """As many as can be on the GPU at once, if there is something to do for all of them."""
    if device.type != "cuda":
        return 1
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return min(_PROGRAMS_A_PROCESSOR * processors, s.D * max(s.C_ // UNITS_A_BLOCK.value, s.P_ // _STRIP))


def _divisor(size: int, most: int) -> int:
    """The largest power of two that divides a multiple of 64, up to `most`."""
    return min(size & -size, most)
