"""Triton kernels of one wave: the projection with everything that follows it, and the gradient that comes back to it."""


# ruff: noqa: SIM102  (a condition known at compile time stands alone: joined to another it would be evaluated on the GPU)

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from elmofire.kernels.lstmp_gpu.buffers import Backward, Forward, Rows
from elmofire.kernels.lstmp_gpu.packing import Packed
from elmofire.kernels.lstmp_gpu.sizes import Sizes, stages


@triton.jit
def dropout_scale(seed, direction, layer, t, rows, columns, L, T, B, P, DROPOUT: tl.constexpr):
    """What multiplies the input of a layer: 0 or 1 / (1 - p), from the place alone, so that the backward pass finds it again."""
    place = (((direction * L + layer) * T + t).to(tl.int64) * B + rows[:, None]) * P + columns[None, :]
    return tl.where(tl.rand(seed, place) >= DROPOUT, 1.0 / (1.0 - DROPOUT), 0.0)


@triton.jit
def project_tile(
    row,  # first of the tile
    column,
    cell,
    m,  # (cells, m_slots, B, C)
    weight,  # (cells, P, C)
    xh,  # (cells, waves + 1, B, X + P): h goes to the cell's next wave, and y to the next layer's
    outputs,  # (D, L, T, B, P) float32
    inside,  # (cells, waves, B, P): where the clip did not act
    lengths,
    resets,
    seed,
    wave,
    m_at,
    B,
    T,
    m_slots,
    C: tl.constexpr,
    X: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    CLIP: tl.constexpr,
    SKIP: tl.constexpr,
    DROPOUT: tl.constexpr,
    SAVE: tl.constexpr,
    RAGGED: tl.constexpr,
    RESETS: tl.constexpr,
    PRECISION: tl.constexpr,
    COPIED: tl.constexpr,  # m and weight are descriptors for the copy engine, of two dimensions
    CACHE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Some rows and columns of a cell's h, and all that follows from them."""
    rows = row + tl.arange(0, ROWS)
    columns = column + tl.arange(0, COLUMNS)
    h = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    if COPIED:
        m_row = (cell * m_slots + m_at) * B + row
        for k in range(0, C, DEPTH):
            h = tl.dot(m.load([m_row, k]), weight.load([cell * P + column, k]).T, h, input_precision=PRECISION)
    else:
        depth = tl.arange(0, DEPTH)
        a = m + ((cell.to(tl.int64) * m_slots + m_at) * B) * C + rows[:, None] * C + depth[None, :]
        w = weight + (cell.to(tl.int64) * P) * C + columns[None, :] * C + depth[:, None]
        for k in range(0, C, DEPTH):
            h = tl.dot(tl.load(a + k, cache_modifier=CACHE), tl.load(w + k), h, input_precision=PRECISION)
    finish_hidden(
        h, row, column, cell, xh, outputs, inside, lengths, resets, seed, wave, B, T,
        X, P, D, L, CLIP, SKIP, DROPOUT, SAVE, RAGGED, RESETS, CACHE, ROWS, COLUMNS,
    )  # fmt: skip


@triton.jit
def finish_hidden(
    h,  # (ROWS, COLUMNS): the products
    row, column, cell, xh, outputs, inside, lengths, resets, seed, wave, B, T,
    X: tl.constexpr, P: tl.constexpr, D: tl.constexpr, L: tl.constexpr, CLIP: tl.constexpr, SKIP: tl.constexpr,
    DROPOUT: tl.constexpr, SAVE: tl.constexpr, RAGGED: tl.constexpr, RESETS: tl.constexpr, CACHE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What follows from a tile's products: outputs, the next step's h, and what the next layer reads."""
    rows = row + tl.arange(0, ROWS)
    columns = column + tl.arange(0, COLUMNS)
    layer = cell // D
    t = wave - layer
    width: tl.constexpr = X + P
    slot = (cell.to(tl.int64) * (T + L) + wave) * B
    here = rows[:, None] * width + columns[None, :]
    if CLIP is not None:
        if SAVE:
            kept = inside + ((cell.to(tl.int64) * (T + L - 1) + wave) * B) * P + rows[:, None] * P + columns[None, :]
            tl.store(kept, (tl.abs(h) <= CLIP).to(tl.uint8))
        h = tl.minimum(tl.maximum(h, -CLIP), CLIP)
    y = h
    if SKIP:
        if layer > 0:
            y += tl.load(xh + slot * width + here, cache_modifier=CACHE).to(tl.float32)
    if RAGGED:
        running = (t < tl.load(lengths + rows))[:, None]
        h = tl.where(running, h, tl.load(xh + slot * width + here + X, cache_modifier=CACHE).to(tl.float32))
        y = tl.where(running, y, 0.0)
    place = ((((cell % D) * L + layer) * T + t).to(tl.int64) * B + rows[:, None]) * P + columns[None, :]
    tl.store(outputs + place, y)
    if RESETS:
        following = tl.load(
            resets + ((cell % D) * T + t + 1) * B + rows, mask=rows < tl.where(t + 1 < T, B, 0), other=0
        )
        h = tl.where(following[:, None] != 0, 0.0, h)
    tl.store(xh + (slot + B) * width + here + X, h.to(xh.dtype.element_ty))
    if L > 1:
        if layer + 1 < L:
            if DROPOUT > 0:
                y *= dropout_scale(tl.load(seed), cell % D, layer + 1, t, rows, columns, L, T, B, P, DROPOUT)
            above = ((cell + D).to(tl.int64) * (T + L) + wave + 1) * B
            tl.store(xh + above * width + here, y.to(xh.dtype.element_ty))


@triton.jit(do_not_specialize=["wave", "cell0", "m_at"])
def project_forward(
    m, weight, xh, outputs, inside, lengths, resets, seed, wave, cell0, m_at, B, T, m_slots,
    C: tl.constexpr, X: tl.constexpr, P: tl.constexpr, D: tl.constexpr, L: tl.constexpr, CLIP: tl.constexpr,
    SKIP: tl.constexpr, DROPOUT: tl.constexpr, SAVE: tl.constexpr, RAGGED: tl.constexpr, RESETS: tl.constexpr,
    PRECISION: tl.constexpr, COPIED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """All tiles of a wave."""
    row_tiles = B // ROWS
    row = (tl.program_id(0) % row_tiles) * ROWS
    column = ((tl.program_id(0) // row_tiles) % (P // COLUMNS)) * COLUMNS
    cell = cell0 + tl.program_id(0) // (row_tiles * (P // COLUMNS))
    project_tile(
        row, column, cell, m, weight, xh, outputs, inside, lengths, resets, seed, wave, m_at, B, T, m_slots,
        C, X, P, D, L, CLIP, SKIP, DROPOUT, SAVE, RAGGED, RESETS, PRECISION, COPIED, "", ROWS, COLUMNS, DEPTH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["wave", "cell0"])
def project_backward(
    d,  # (waves + 1, cells, B, X + P): gradients of what the cells read at each wave
    d_outputs,  # (D, L, T, B, P) float32
    d_between,  # (2, cells, B, P): gradients of the middle layers' outputs, of this wave and the one after
    carry,  # (cells, B, P): gradients on their way through the steps past a row's end
    inside,
    dh,  # (cells, waves, B, P): gradients before the clip
    lengths,
    resets,
    seed,
    wave,
    cell0,
    B,
    T,
    X: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    CLIP: tl.constexpr,
    SKIP: tl.constexpr,
    DROPOUT: tl.constexpr,
    RAGGED: tl.constexpr,
    RESETS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row_tiles = B // ROWS
    rows = (tl.program_id(0) // (P // COLUMNS)) % row_tiles * ROWS + tl.arange(0, ROWS)
    columns = (tl.program_id(0) % (P // COLUMNS)) * COLUMNS + tl.arange(0, COLUMNS)
    cell = cell0 + tl.program_id(0) // (row_tiles * (P // COLUMNS))
    layer = cell // D
    direction = cell % D
    t = wave - layer
    cells: tl.constexpr = L * D
    width: tl.constexpr = X + P
    here = rows[:, None] * width + columns[None, :]
    narrow = rows[:, None] * P + columns[None, :]

    following = d + ((wave + 1).to(tl.int64) * cells + cell) * B * width
    recurrent = tl.load(following + here + X).to(tl.float32)
    if RESETS:
        cut = tl.load(resets + (direction * T + t + 1) * B + rows, mask=rows < tl.where(t + 1 < T, B, 0), other=0)
        recurrent = tl.where(cut[:, None] != 0, 0.0, recurrent)
    if RAGGED:
        recurrent += tl.load(carry + (cell.to(tl.int64) * B) * P + narrow)
    dy = tl.load(d_outputs + (((direction * L + layer) * T + t).to(tl.int64) * B) * P + narrow)
    if L > 1:
        if layer + 1 < L:
            dx = tl.load(following + (D * B).to(tl.int64) * width + here).to(tl.float32)
            if SKIP:
                if layer + 2 == L:
                    dx += tl.load(d_outputs + (((direction * L + layer + 1) * T + t).to(tl.int64) * B) * P + narrow)
                else:
                    dx += tl.load(d_between + ((((wave + 1) % 2) * cells + cell + D).to(tl.int64) * B) * P + narrow)
            if DROPOUT > 0:
                dx *= dropout_scale(tl.load(seed), direction, layer + 1, t, rows, columns, L, T, B, P, DROPOUT)
            dy += dx
    if RAGGED:
        running = (t < tl.load(lengths + rows))[:, None]
        dy = tl.where(running, dy, 0.0)
        tl.store(carry + (cell.to(tl.int64) * B) * P + narrow, tl.where(running, 0.0, recurrent))
        recurrent = tl.where(running, recurrent, 0.0)
    if SKIP and L > 2:
        tl.store(d_between + (((wave % 2) * cells + cell).to(tl.int64) * B) * P + narrow, dy)
    total = recurrent + dy
    slot = ((cell.to(tl.int64) * (T + L - 1) + wave) * B) * P
    if CLIP is not None:
        total = tl.where(tl.load(inside + slot + narrow) != 0, total, 0.0)
    tl.store(dh + slot + narrow, total.to(dh.dtype.element_ty))


def plan_projection(s: Sizes, f: Forward, packed: Packed, rows: Rows, *, hopper: bool) -> Callable[[int], None]:
    """What computes a wave's outputs, its hidden states, and what the next layers read."""
    tile = _tile(s, hopper=hopper)
    tile["num_stages"] = stages(
        tile["num_stages"], tile["COLUMNS"], tile["DEPTH"], s.dtype, f.xh.device, rows=tile["ROWS"]
    )
    m, weight = f.m, packed.projection
    if hopper:
        m = TensorDescriptor.from_tensor(m.view(-1, s.C_), [tile["ROWS"], tile["DEPTH"]])
        weight = TensorDescriptor.from_tensor(weight.view(-1, s.C_), [tile["COLUMNS"], tile["DEPTH"]])

    def run(wave: int) -> None:
        cell0, count = s.active(wave)
        project_forward[(s.B_ // tile["ROWS"] * (s.P_ // tile["COLUMNS"]) * count,)](
            m, weight, f.xh, f.outputs, f.inside, rows.lengths, rows.resets, rows.seed,
            wave, cell0, wave % f.m.shape[1], s.B_, s.T, f.m.shape[1],
            C=s.C_, X=s.X_, P=s.P_, D=s.D, L=s.L, CLIP=s.projection_clip, SKIP=s.skip, DROPOUT=s.dropout, SAVE=f.save,
            RAGGED=s.ragged, RESETS=s.resets, PRECISION=s.precision, COPIED=hopper, **tile,
        )  # fmt: skip

    return run


def _tile(s: Sizes, *, hopper: bool) -> dict[str, int]:
    """A wave has few outputs and many units to sum: smaller tiles for smaller batches, so that all processors have one."""
    rows = min(s.row_tile, 64)
    if s.dtype == torch.float32:
        return {"ROWS": rows, "COLUMNS": 32, "DEPTH": 64, "num_warps": 4, "num_stages": 4}
    if s.B_ >= 1024 and s.P_ % 128 == 0 and hopper:  # 160 KB of a processor's memory
        return {"ROWS": 128, "COLUMNS": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 5}
    if s.B_ >= 1024 and s.P_ % 128 == 0:
        return {"ROWS": rows, "COLUMNS": 128, "DEPTH": 64, "num_warps": 4, "num_stages": 4}
    if s.B_ >= 512:
        return {"ROWS": rows, "COLUMNS": 64, "DEPTH": 64, "num_warps": 4, "num_stages": 6}
    return {"ROWS": rows, "COLUMNS": 32, "DEPTH": 128 if s.C_ % 128 == 0 else 64, "num_warps": 4, "num_stages": 4}


def plan_projection_backward(s: Sizes, f: Forward, b: Backward, rows: Rows) -> Callable[[int], None]:
    """What sums all gradients of a wave's hidden states, before the clip."""
    tile = min(s.row_tile, 16)

    def run(wave: int) -> None:
        cell0, count = s.active(wave)
        project_backward[(s.B_ // tile * (s.P_ // 64) * count,)](
            b.d, b.outputs, b.between, b.carry, f.inside, b.dh, rows.lengths, rows.resets, rows.seed,
            wave, cell0, s.B_, s.T,
            X=s.X_, P=s.P_, D=s.D, L=s.L, CLIP=s.projection_clip, SKIP=s.skip, DROPOUT=s.dropout,
            RAGGED=s.ragged, RESETS=s.resets, ROWS=tile, COLUMNS=64, num_warps=4,
        )  # fmt: skip

    return run
