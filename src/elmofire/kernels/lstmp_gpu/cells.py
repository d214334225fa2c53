"""Triton kernels of one wave: the gates' product with the cell update, and its gradient. They run on every GPU that Triton knows.

A wave is one step of every active cell; a cell is one layer of one direction (`cell = layer * D + direction`), and the layers lag by one
step each, so that all cells of a wave are independent and share a launch. Gates are packed by blocks of 32 units: 32 columns of the
input gate, 32 of the forget gate, 32 of the candidate, 32 of the output gate. Rows, units and widths are padded by the caller.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from elmofire.kernels.lstmp_gpu.buffers import Backward, Forward, Rows
from elmofire.kernels.lstmp_gpu.packing import Packed
from elmofire.kernels.lstmp_gpu.sizes import Sizes, stages

UNITS_A_BLOCK = tl.constexpr(32)
GATES_A_BLOCK = tl.constexpr(128)


@triton.jit
def tanh(x):
    """Near zero by its series: the difference of two numbers close to one would keep few of their digits."""
    far = tl.exp(-2 * tl.abs(x))
    far = (1 - far) / (1 + far)
    y = x * x
    near = -1382 / 155925 * y + 62 / 2835
    near = near * y - 17 / 315
    near = near * y + 2 / 15
    near = near * y - 1 / 3
    return tl.where(y < 0.09, x + x * y * near, tl.where(x < 0, -far, far))


@triton.jit
def split_gates(z, ROWS: tl.constexpr):
    """(rows, 128) -> input, forget, candidate, output, each (rows, 32)."""
    pairs = tl.permute(tl.reshape(z, [ROWS, 4, 32]), [0, 2, 1])
    even, odd = tl.split(tl.reshape(pairs, [ROWS, 32, 2, 2]))
    i, g = tl.split(even)
    f, o = tl.split(odd)
    return i, f, g, o


@triton.jit
def gates_tile(
    row,  # first of the tile
    block,  # of 32 units
    cell,
    xh,  # (cells, waves + 1, B, K): what a cell reads at a wave
    weight,  # (cells, 4C, K)
    bias,  # (cells, 4C)
    c,  # (cells, c_slots, B, C)
    gates,  # (cells, waves, B, 4C): kept before their functions, for the backward pass
    m,  # (cells, m_slots, B, C): the cells behind the output gate
    lengths,  # (B,)
    resets,  # (D, T, B)
    first,  # (D, T, B, 4C): what x contributes in the first layer, if it was multiplied ahead
    wave,
    c_from,
    c_to,
    m_at,
    B,
    T,
    c_slots,
    m_slots,
    K: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    CLIP: tl.constexpr,
    SAVE: tl.constexpr,
    RAGGED: tl.constexpr,
    RESETS: tl.constexpr,
    PRECISION: tl.constexpr,
    CACHE: tl.constexpr,
    AHEAD: tl.constexpr,  # width of the x that was multiplied ahead, or 0
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The gates of some rows and one block of units, and what the cells make of them."""
    t = wave - cell // D
    rows = row + tl.arange(0, ROWS)
    columns = block * GATES_A_BLOCK + tl.arange(0, GATES_A_BLOCK)
    depth = tl.arange(0, DEPTH)

    waves = T + L - 1
    a = xh + ((cell.to(tl.int64) * (waves + 1) + wave) * B) * K + rows[:, None] * K + depth[None, :]
    w = weight + (cell.to(tl.int64) * 4 * C) * K + columns[None, :] * K + depth[:, None]
    z = tl.zeros([ROWS, GATES_A_BLOCK], dtype=tl.float32)
    if AHEAD > 0:
        start = 0
        if cell < D:
            start = AHEAD
            ahead = first + ((cell * T + t) * B + rows).to(tl.int64)[:, None] * (4 * C) + columns[None, :]
            z = tl.load(ahead).to(tl.float32)
        for k in range(start, K, DEPTH):
            z = tl.dot(tl.load(a + k, cache_modifier=CACHE), tl.load(w + k), z, input_precision=PRECISION)
    else:
        for k in range(0, K, DEPTH):
            z = tl.dot(tl.load(a + k, cache_modifier=CACHE), tl.load(w + k), z, input_precision=PRECISION)
    finish_gates(
        z, row, block, cell, bias, c, gates, m, lengths, resets, wave, c_from, c_to, m_at, B, T, c_slots, m_slots,
        C, D, L, CLIP, SAVE, RAGGED, RESETS, CACHE, ROWS,
    )  # fmt: skip


@triton.jit
def finish_gates(
    z,  # (ROWS, 128): the products
    row, block, cell, bias, c, gates, m, lengths, resets, wave, c_from, c_to, m_at, B, T, c_slots, m_slots,
    C: tl.constexpr, D: tl.constexpr, L: tl.constexpr, CLIP: tl.constexpr, SAVE: tl.constexpr, RAGGED: tl.constexpr,
    RESETS: tl.constexpr, CACHE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What the cells make of a tile's products: new memories, and m."""
    t = wave - cell // D
    rows = row + tl.arange(0, ROWS)
    columns = block * GATES_A_BLOCK + tl.arange(0, GATES_A_BLOCK)
    units = block * UNITS_A_BLOCK + tl.arange(0, UNITS_A_BLOCK)
    waves = T + L - 1
    z += tl.load(bias + cell * 4 * C + columns)[None, :]
    if SAVE:
        kept = gates + ((cell.to(tl.int64) * waves + wave) * B) * 4 * C
        tl.store(kept + rows[:, None] * (4 * C) + columns[None, :], z.to(gates.dtype.element_ty))

    place = rows[:, None] * C + units[None, :]
    before = tl.load(c + ((cell.to(tl.int64) * c_slots + c_from) * B) * C + place, cache_modifier=CACHE)
    if RESETS:
        before = tl.where(tl.load(resets + ((cell % D) * T + t) * B + rows)[:, None] != 0, 0.0, before)
    i, f, g, o = split_gates(z, ROWS)
    after = tl.sigmoid(f) * before + tl.sigmoid(i) * tanh(g)
    if CLIP is not None:
        after = tl.minimum(tl.maximum(after, -CLIP), CLIP)
    if RAGGED:
        after = tl.where((t < tl.load(lengths + rows))[:, None], after, before)
    tl.store(c + ((cell.to(tl.int64) * c_slots + c_to) * B) * C + place, after)
    opened = tl.sigmoid(o) * tanh(after)
    tl.store(m + ((cell.to(tl.int64) * m_slots + m_at) * B) * C + place, opened.to(m.dtype.element_ty))


@triton.jit(do_not_specialize=["wave", "cell0", "c_from", "c_to", "m_at"])
def gates_forward(
    xh, weight, bias, c, gates, m, lengths, resets, wave, cell0, c_from, c_to, m_at, B, T, c_slots, m_slots,
    K: tl.constexpr, C: tl.constexpr, D: tl.constexpr, L: tl.constexpr, CLIP: tl.constexpr, SAVE: tl.constexpr,
    RAGGED: tl.constexpr, RESETS: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """All tiles of a wave. Row tiles follow each other first, so that they share the block's weights."""
    row_tiles = B // ROWS
    row = (tl.program_id(0) % row_tiles) * ROWS
    block = (tl.program_id(0) // row_tiles) % (C // UNITS_A_BLOCK)
    cell = cell0 + tl.program_id(0) // (row_tiles * (C // UNITS_A_BLOCK))
    gates_tile(
        row, block, cell, xh, weight, bias, c, gates, m, lengths, resets, xh, wave, c_from, c_to, m_at, B, T, c_slots, m_slots,
        K, C, D, L, CLIP, SAVE, RAGGED, RESETS, PRECISION, "", 0, ROWS, DEPTH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["wave", "cell0"])
def gates_backward(
    gates,  # (cells, waves, B, 4C): overwritten by their gradients
    c,  # (cells, waves + 1, B, C)
    dm,  # (active cells, B, C)
    dc,  # (cells, B, C): gradient of the memory, moved on in place
    bias_sums,  # (T, cells, B / ROWS, 4C): gradients summed over the tile's rows
    lengths,
    resets,
    wave,
    cell0,
    B,
    T,
    C: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    CLIP: tl.constexpr,
    RAGGED: tl.constexpr,
    RESETS: tl.constexpr,
    ROWS: tl.constexpr,
):
    row_tiles = B // ROWS
    block = tl.program_id(0) % (C // UNITS_A_BLOCK)
    tile = (tl.program_id(0) // (C // UNITS_A_BLOCK)) % row_tiles
    active = tl.program_id(0) // (row_tiles * (C // UNITS_A_BLOCK))
    cell = cell0 + active
    t = wave - cell // D
    rows = tile * ROWS + tl.arange(0, ROWS)
    units = block * UNITS_A_BLOCK + tl.arange(0, UNITS_A_BLOCK)
    unit = tl.arange(0, UNITS_A_BLOCK)
    place = rows[:, None] * C + units[None, :]

    z = gates + ((cell.to(tl.int64) * (T + L - 1) + wave) * B) * 4 * C
    z += rows[:, None] * (4 * C) + block * GATES_A_BLOCK + unit[None, :]
    i = tl.sigmoid(tl.load(z).to(tl.float32))
    f = tl.sigmoid(tl.load(z + 32).to(tl.float32))
    g = tanh(tl.load(z + 64).to(tl.float32))
    o = tl.sigmoid(tl.load(z + 96).to(tl.float32))
    before = tl.load(c + ((cell.to(tl.int64) * (T + L) + wave) * B) * C + place)
    carried = tl.load(dc + (cell.to(tl.int64) * B) * C + place)
    opened = tl.load(dm + (active.to(tl.int64) * B) * C + place).to(tl.float32)
    if RESETS:
        kept = (tl.load(resets + ((cell % D) * T + t) * B + rows) == 0)[:, None]
        before = tl.where(kept, before, 0.0)

    unclipped = f * before + i * g
    inside = unclipped == unclipped
    after = unclipped
    if CLIP is not None:
        inside = tl.abs(unclipped) <= CLIP
        after = tl.minimum(tl.maximum(unclipped, -CLIP), CLIP)
    squashed = tanh(after)
    da = tl.where(inside, carried + opened * o * (1 - squashed * squashed), 0.0)
    do = opened * squashed * o * (1 - o)
    di = da * g * i * (1 - i)
    dg = da * i * (1 - g * g)
    df = da * before * f * (1 - f)
    passed = da * f
    if RESETS:
        passed = tl.where(kept, passed, 0.0)
    if RAGGED:
        running = (t < tl.load(lengths + rows))[:, None]
        di, df, dg, do = (
            tl.where(running, di, 0.0),
            tl.where(running, df, 0.0),
            tl.where(running, dg, 0.0),
            tl.where(running, do, 0.0),
        )
        passed = tl.where(running, passed, carried)
    tl.store(z, di.to(gates.dtype.element_ty))
    tl.store(z + 32, df.to(gates.dtype.element_ty))
    tl.store(z + 64, dg.to(gates.dtype.element_ty))
    tl.store(z + 96, do.to(gates.dtype.element_ty))
    tl.store(dc + (cell.to(tl.int64) * B) * C + place, passed)
    sums = bias_sums + ((t * (L * D) + cell) * row_tiles + tile).to(tl.int64) * 4 * C + block * GATES_A_BLOCK + unit
    tl.store(sums, tl.sum(di, axis=0))
    tl.store(sums + 32, tl.sum(df, axis=0))
    tl.store(sums + 64, tl.sum(dg, axis=0))
    tl.store(sums + 96, tl.sum(do, axis=0))


def plan_gates(s: Sizes, f: Forward, packed: Packed, rows: Rows) -> Callable[[int], None]:
    """What computes the gates and memories of a wave."""
    tile = min(s.row_tile, 128)
    # Split products keep three operands in the place of one: twice the warps have the registers for them.
    depth, warps = (32, 8 if tile == 128 else 4) if s.dtype == torch.float32 else (64, 4)
    ahead = stages(3, 128, depth, s.dtype, f.xh.device, rows=tile)

    def run(wave: int) -> None:
        cell0, count = s.active(wave)
        gates_forward[(s.B_ // tile * (s.C_ // 32) * count,)](
            f.xh, packed.weight, packed.bias, f.c, f.gates, f.m, rows.lengths, rows.resets,
            wave, cell0, wave % f.c.shape[1], (wave + 1) % f.c.shape[1], wave % f.m.shape[1],
            s.B_, s.T, f.c.shape[1], f.m.shape[1],
            K=s.K_, C=s.C_, D=s.D, L=s.L, CLIP=s.cell_clip, SAVE=f.save, RAGGED=s.ragged, RESETS=s.resets,
            PRECISION=s.precision, ROWS=tile, DEPTH=depth, num_warps=warps, num_stages=ahead,
        )  # fmt: skip

    return run


BACKWARD_ROWS = 16  # of a tile, and so of one line of the bias's sums


def plan_gates_backward(s: Sizes, f: Forward, b: Backward, packed: Packed, rows: Rows) -> Callable[[int], None]:
    """What leads from a wave's gradients of h, before the clip, to those of the gates and of the memories before."""

    def run(wave: int) -> None:
        cell0, count = s.active(wave)
        here = slice(cell0, cell0 + count)
        dm = torch.bmm(b.dh[here, wave], packed.projection[here])
        gates_backward[(s.B_ // BACKWARD_ROWS * (s.C_ // 32) * count,)](
            f.gates, f.c, dm, b.dc, b.bias_sums, rows.lengths, rows.resets, wave, cell0, s.B_, s.T,
            C=s.C_, D=s.D, L=s.L, CLIP=s.cell_clip, RAGGED=s.ragged, RESETS=s.resets, ROWS=BACKWARD_ROWS, num_warps=4,
        )  # fmt: skip

    return run
