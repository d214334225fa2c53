"""Inference on Hopper by halves of waves, in Gluon: one launch computes the gates of one direction and projects the other.

The projection of a wave is a small product that leaves half of the processors idle, and all of them while its launch ends and the next
one begins. Directions do not depend on each other, so that each one's projection runs among the other's gates: half 2w has the gates of the
forward direction at wave w and the backward one's projection of wave w - 1, half 2w + 1 the gates of the backward direction and the
forward one's projection, both at w. A tile of either is 128 rows by 128 columns, and goes through the ring and the turns of `hopper_gates`.
"""


# ruff: noqa: SIM102  (a condition known at compile time stands alone: joined to another it would be evaluated on the GPU)

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from elmofire.kernels.lstmp_gpu.buffers import Forward, Rows
from elmofire.kernels.lstmp_gpu.hopper_gates import (
    COLUMNS,
    DEPTH,
    ROWS,
    UNITS,
    multiply,
    place_of,
    sigmoid,
    split_gates,
    stream,
    tanh,
    updated,
)
from elmofire.kernels.lstmp_gpu.hopper_gates import processors as processors_of
from elmofire.kernels.lstmp_gpu.packing import Packed
from elmofire.kernels.lstmp_gpu.sizes import Sizes

LEAST_ROWS = 256  # with fewer, a projection's tile takes longer than all gates
STAGES = 6


@gluon.jit
def shares(gates, projections, LONGER: gl.constexpr):
    """How many projections this program has, how many gates, and where the latter begin. A projection is as long as LONGER gates."""
    programs = gl.num_programs(0)
    mine = gl.program_id(0)
    rest = projections % programs  # of a last round, in which the other programs have gates already
    if mine < rest:
        filling = 0
    else:
        filling = gl.minimum(LONGER, (gl.maximum(gates - mine + rest, 0) + programs - rest - 1) // (programs - rest))
    after = gates - LONGER * (programs - rest)
    even = (gl.maximum(after - mine, 0) + programs - 1) // programs
    return projections // programs + (mine < rest).to(gl.int32), filling + even, filling


@gluon.jit
def gates_tile(number, filling, projections, LONGER: gl.constexpr):
    """The tile that is this program's gates of that number."""
    programs = gl.num_programs(0)
    rest = projections % programs
    if number < filling:
        tile = number * (programs - rest) + gl.program_id(0) - rest
    else:
        tile = LONGER * (programs - rest) + (number - filling) * programs + gl.program_id(0)
    return tile


@gluon.jit
def load_tiles(
    xh, weight, m, projection, x_ring, w_ring, full, empty, gates, wave, cell0, projections, p_cell0, B, waves,
    K: gl.constexpr, C: gl.constexpr, P: gl.constexpr, D: gl.constexpr, LONGER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    of_projections, of_gates, filling = shares(gates, projections, LONGER)
    step = 0
    for number in range(of_projections):
        row, block, cell = place_of(number * gl.num_programs(0) + gl.program_id(0), B, P // COLUMNS)
        cell = p_cell0 + D * cell
        stream(
            m, projection, cell * B + row, cell * P + block * COLUMNS, x_ring, w_ring, full, empty, step, C // DEPTH,
            STAGES,
        )  # fmt: skip
        step += C // DEPTH
    for number in range(of_gates):
        row, block, cell = place_of(gates_tile(number, filling, projections, LONGER), B, C // UNITS)
        cell = cell0 + D * cell
        x_row = (cell * (waves + 1) + wave) * B + row
        stream(
            xh, weight, x_row, cell * (4 * C) + block * COLUMNS, x_ring, w_ring, full, empty, step, K // DEPTH, STAGES
        )
        step += K // DEPTH


@gluon.jit
def project(
    h, row, column, cell, wave, h_and_x, outputs, lengths, resets, B, T, U: gl.constexpr,
    X: gl.constexpr, P: gl.constexpr, D: gl.constexpr, L: gl.constexpr, CLIP: gl.constexpr, SKIP: gl.constexpr,
    RAGGED: gl.constexpr, RESETS: gl.constexpr,
):  # fmt: skip
    """What follows from a strip (128, 32) of the projection, as in `projection.project_tile`."""
    rows = row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, U))
    columns = column + gl.arange(0, UNITS, layout=gl.SliceLayout(0, U))
    layer = cell // D
    t = wave - layer
    WIDTH: gl.constexpr = X + P
    here = gl.expand_dims(rows, 1) * WIDTH + gl.expand_dims(columns, 0)
    slot = (cell.to(gl.int64) * (T + L) + wave) * B
    if CLIP is not None:
        h = gl.minimum(gl.maximum(h, -CLIP), CLIP)
    y = h
    if SKIP:
        if layer > 0:
            y += gl.load(h_and_x + slot * WIDTH + here).to(gl.float32)
    if RAGGED:
        running = gl.expand_dims(t < gl.load(lengths + rows), 1)
        h = gl.where(running, h, gl.load(h_and_x + slot * WIDTH + here + X).to(gl.float32))
        y = gl.where(running, y, 0.0)
    narrow = gl.expand_dims(rows, 1) * P + gl.expand_dims(columns, 0)
    gl.store(outputs + ((((cell % D) * L + layer) * T + t).to(gl.int64) * B) * P + narrow, y)
    if RESETS:
        following = gl.load(
            resets + ((cell % D) * T + t + 1) * B + rows, mask=rows < gl.where(t + 1 < T, B, 0), other=0
        )
        h = gl.where(gl.expand_dims(following != 0, 1), 0.0, h)
    gl.store(h_and_x + (slot + B) * WIDTH + here + X, h.to(gl.bfloat16))
    if layer + 1 < L:
        above = ((cell + D).to(gl.int64) * (T + L) + wave + 1) * B
        gl.store(h_and_x + above * WIDTH + here, y.to(gl.bfloat16))


@gluon.jit
def compute_tiles(
    which: gl.constexpr, x_ring, w_ring, full, empty, turns, bias, c, m, h_and_x, outputs, lengths, resets,
    gates, wave, cell0, projections, p_wave, p_cell0, B, T,
    K: gl.constexpr, X: gl.constexpr, C: gl.constexpr, P: gl.constexpr, D: gl.constexpr, L: gl.constexpr,
    CELL_CLIP: gl.constexpr, CLIP: gl.constexpr, SKIP: gl.constexpr, RAGGED: gl.constexpr, RESETS: gl.constexpr,
    LONGER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    Z: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    U: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16])
    row_in_tile = gl.arange(0, ROWS, layout=gl.SliceLayout(1, U))
    column_in_tile = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, Z))
    place = gl.expand_dims(row_in_tile, 1) * C + gl.expand_dims(gl.arange(0, UNITS, layout=gl.SliceLayout(0, U)), 0)
    of_projections, of_gates, filling = shares(gates, projections, LONGER)
    turn = 0
    for number in range(which, of_projections, 2):
        row, block, cell = place_of(number * gl.num_programs(0) + gl.program_id(0), B, P // COLUMNS)
        mbarrier.wait(turns.index(which), (turn & 1) ^ (1 - which))
        h = multiply(x_ring, w_ring, full, empty, number * (C // DEPTH), Z, C // DEPTH, STAGES)
        mbarrier.arrive(turns.index(1 - which))
        strips = split_gates(h, U)  # a whole tile's addresses would not fit the registers
        for strip in gl.static_range(4):
            project(
                strips[strip], row, block * COLUMNS + strip * UNITS, p_cell0 + D * cell, p_wave, h_and_x, outputs,
                lengths, resets, B, T, U, X, P, D, L, CLIP, SKIP, RAGGED, RESETS,
            )  # fmt: skip
        turn += 1
    for number in range((which + of_projections) % 2, of_gates, 2):
        row, block, cell = place_of(gates_tile(number, filling, projections, LONGER), B, C // UNITS)
        cell = cell0 + D * cell
        t = wave - cell // D
        # Asked for before the product, here when it ends.
        first = (cell.to(gl.int64) * B + row) * C + block * UNITS
        before = gl.load(c + first + place)
        b = gl.load(bias + cell * (4 * C) + block * COLUMNS + column_in_tile)
        if RESETS:
            reset = gl.load(resets + ((cell % D) * T + t) * B + row + row_in_tile)
            before = gl.where(gl.expand_dims(reset != 0, 1), 0.0, before)
        step = of_projections * (C // DEPTH) + number * (K // DEPTH)
        mbarrier.wait(turns.index(which), (turn & 1) ^ (1 - which))
        z = multiply(x_ring, w_ring, full, empty, step, Z, K // DEPTH, STAGES)
        mbarrier.arrive(turns.index(1 - which))
        z += gl.expand_dims(b, 0)
        after, o = updated(z, before, t, lengths + row + row_in_tile, U, CELL_CLIP, RAGGED)
        gl.store(c + first + place, after)
        gl.store(m + first + place, (sigmoid(o) * tanh(after)).to(gl.bfloat16))
        turn += 1


@gluon.jit(do_not_specialize=["gates", "wave", "cell0", "projections", "p_wave", "p_cell0"])
def half_forward(
    xh, weight, m_tiles, projection, bias, c, m, h_and_x, outputs, lengths, resets,
    gates, wave, cell0, projections, p_wave, p_cell0, B, T, waves,
    K: gl.constexpr, X: gl.constexpr, C: gl.constexpr, P: gl.constexpr, D: gl.constexpr, L: gl.constexpr,
    CELL_CLIP: gl.constexpr, CLIP: gl.constexpr, SKIP: gl.constexpr, RAGGED: gl.constexpr, RESETS: gl.constexpr,
    LONGER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Tiles of gates at `wave`, from cell `cell0` on, and tiles of the projection at `p_wave`, from `p_cell0` on: every D-th cell."""
    x_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, DEPTH], xh.layout)
    w_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, COLUMNS, DEPTH], weight.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    for which in gl.static_range(2):
        mbarrier.init(turns.index(which), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (compute_tiles, (
                0, x_ring, w_ring, full, empty, turns, bias, c, m, h_and_x, outputs, lengths, resets,
                gates, wave, cell0, projections, p_wave, p_cell0, B, T,
                K, X, C, P, D, L, CELL_CLIP, CLIP, SKIP, RAGGED, RESETS, LONGER, STAGES,
            )),
            (compute_tiles, (
                1, x_ring, w_ring, full, empty, turns, bias, c, m, h_and_x, outputs, lengths, resets,
                gates, wave, cell0, projections, p_wave, p_cell0, B, T,
                K, X, C, P, D, L, CELL_CLIP, CLIP, SKIP, RAGGED, RESETS, LONGER, STAGES,
            )),
            (load_tiles, (
                xh, weight, m_tiles, projection, x_ring, w_ring, full, empty,
                gates, wave, cell0, projections, p_cell0, B, waves, K, C, P, D, LONGER, STAGES,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def serves(s: Sizes) -> bool:
    """Nothing is kept, and there are two directions whose projections are whole tiles."""
    return s.D == 2 and s.B_ >= LEAST_ROWS and s.P_ % 128 == 0 and not (s.dropout and s.L > 1)


def run_all_waves(s: Sizes, f: Forward, packed: Packed, rows: Rows) -> None:
    """All waves of a call; memories and their m are in place."""
    narrow = gl.NVMMASharedLayout.get_default_for([128, 64], gl.bfloat16)

    def tiles_of(tensor: torch.Tensor) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(tensor.view(-1, tensor.shape[-1]), [128, 64], narrow)

    xh, weight, m, projection = (tiles_of(tensor) for tensor in (f.xh, packed.weight, f.m, packed.projection))
    processors = processors_of(f.xh.device)
    for half in range(2 * s.waves + 1):
        wave, direction = divmod(half, 2)
        p_wave, p_direction = divmod(half - 1, 2)
        cell0, cells = s.active(wave) if wave < s.waves else (0, 0)
        p_cell0, p_cells = s.active(p_wave) if half else (0, 0)
        gates = s.B_ // 128 * (s.C_ // 32) * (cells // 2)
        projections = s.B_ // 128 * (s.P_ // 128) * (p_cells // 2)
        half_forward[(min(max(gates, projections), processors),)](
            xh, weight, m, projection, packed.bias, f.c, f.m, f.xh, f.outputs, rows.lengths, rows.resets,
            gates, wave, cell0 + direction, projections, p_wave, p_cell0 + p_direction, s.B_, s.T, s.waves,
            K=s.K_, X=s.X_, C=s.C_, P=s.P_, D=s.D, L=s.L, CELL_CLIP=s.cell_clip, CLIP=s.projection_clip, SKIP=s.skip,
            RAGGED=s.ragged, RESETS=s.resets, LONGER=max(1, round(s.C_ / s.K_)), STAGES=STAGES, num_warps=4,
        )  # fmt: skip
