"""The gates of one wave on Hopper, in Gluon: two groups of warps take turns at the tensor cores.

While one multiplies its tile, the other does what follows its own: the gates' functions, the memories, and the stores. A third role, one
warp, streams the operands through a ring of shared memory. `cells.gates_forward` computes the same, one tile after another.
"""


# ruff: noqa: SIM113  (kernels have no enumerate)

from collections.abc import Callable

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from elmofire.kernels.lstmp_gpu.buffers import Forward, Rows
from elmofire.kernels.lstmp_gpu.packing import Packed
from elmofire.kernels.lstmp_gpu.sizes import Sizes

ROWS = gl.constexpr(128)
COLUMNS = gl.constexpr(128)  # four gates of 32 units
UNITS = gl.constexpr(32)
DEPTH = gl.constexpr(64)


@gluon.jit
def tanh(x):
    """One instruction; its error of 2^-11 is below that of bfloat16 operands."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def sigmoid(x):
    return 0.5 * tanh(0.5 * x) + 0.5


@gluon.jit
def split_gates(z, UNIT_LAYOUT: gl.constexpr):
    """(rows, 128) -> input, forget, candidate, output (rows, 32): the packed order makes this a renaming of registers."""
    pairs = gl.permute(gl.reshape(z, [z.shape[0], 4, 32]), [0, 2, 1])
    even, odd = gl.split(gl.reshape(pairs, [z.shape[0], 32, 2, 2]))
    i, g = gl.split(even)
    f, o = gl.split(odd)
    i = gl.convert_layout(i, UNIT_LAYOUT, assert_trivial=True)
    f = gl.convert_layout(f, UNIT_LAYOUT, assert_trivial=True)
    g = gl.convert_layout(g, UNIT_LAYOUT, assert_trivial=True)
    o = gl.convert_layout(o, UNIT_LAYOUT, assert_trivial=True)
    return i, f, g, o


@gluon.jit
def place_of(tile, cell0, B, C: gl.constexpr):
    """Row tiles follow each other first, so that they share the block's weights through the cache."""
    row_tiles = B // ROWS
    return (tile % row_tiles) * ROWS, (tile // row_tiles) % (C // UNITS), cell0 + tile // (row_tiles * (C // UNITS))


@gluon.jit
def load_tiles(
    xh, weight, x_ring, w_ring, full, empty, tiles, wave, cell0, B, waves,
    K: gl.constexpr, C: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row, block, cell = place_of(tile, cell0, B, C)
        x_row = (cell * (waves + 1) + wave) * B + row
        w_row = cell * (4 * C) + block * COLUMNS
        for k in range(K // DEPTH):
            stage = step % STAGES
            mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
            mbarrier.expect(full.index(stage), (ROWS + COLUMNS) * DEPTH * 2)
            tma.async_copy_global_to_shared(xh, [x_row, k * DEPTH], full.index(stage), x_ring.index(stage))
            tma.async_copy_global_to_shared(weight, [w_row, k * DEPTH], full.index(stage), w_ring.index(stage))
            step += 1


@gluon.jit
def compute_tiles(
    which: gl.constexpr, gates, x_ring, w_ring, staging, full, empty, turns, bias, c, m, lengths, resets,
    tiles, wave, cell0, c_from, c_to, m_at, B, T, c_slots, m_slots, waves,
    K: gl.constexpr, C: gl.constexpr, D: gl.constexpr, CLIP: gl.constexpr, SAVE: gl.constexpr,
    RAGGED: gl.constexpr, RESETS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    Z: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    U: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16])
    STEPS: gl.constexpr = K // DEPTH
    row_in_tile = gl.arange(0, ROWS, layout=gl.SliceLayout(1, U))
    unit_in_tile = gl.arange(0, UNITS, layout=gl.SliceLayout(0, U))
    column_in_tile = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, Z))
    turn = 0
    for tile in range(gl.program_id(0) + which * gl.num_programs(0), tiles, 2 * gl.num_programs(0)):
        row, block, cell = place_of(tile, cell0, B, C)
        t = wave - cell // D
        # Asked for before the product, here when it ends.
        place = gl.expand_dims(row + row_in_tile, 1) * C + gl.expand_dims(block * UNITS + unit_in_tile, 0)
        before = gl.load(c + ((cell.to(gl.int64) * c_slots + c_from) * B) * C + place)
        b = gl.load(bias + cell * (4 * C) + block * COLUMNS + column_in_tile)
        if RESETS:
            reset = gl.load(resets + ((cell % D) * T + t) * B + row + row_in_tile)
            before = gl.where(gl.expand_dims(reset != 0, 1), 0.0, before)

        step = (2 * turn + which) * STEPS
        mbarrier.wait(turns.index(which), (turn & 1) ^ (1 - which))
        z = gl.zeros([ROWS, COLUMNS], gl.float32, Z)
        for k in range(STEPS):
            stage = (step + k) % STAGES
            mbarrier.wait(full.index(stage), ((step + k) // STAGES) & 1)
            z = warpgroup_mma(x_ring.index(stage), w_ring.index(stage).permute((1, 0)), z, is_async=True)
            z = warpgroup_mma_wait(num_outstanding=1, deps=(z,))
            mbarrier.arrive(empty.index((step + k + STAGES - 1) % STAGES), pred=k > 0)
        z = warpgroup_mma_wait(num_outstanding=0, deps=(z,))
        mbarrier.arrive(empty.index((step + STEPS - 1) % STAGES))
        if SAVE:
            tma.store_wait(0)  # the staging memory is free again
        mbarrier.arrive(turns.index(1 - which))

        z += gl.expand_dims(b, 0)
        if SAVE:
            staging.index(which).store(z.to(gl.bfloat16))
            fence_async_shared()
            tma.async_copy_shared_to_global(
                gates, [(cell * waves + wave) * B + row, block * COLUMNS], staging.index(which)
            )
        i, f, g, o = split_gates(z, U)
        after = sigmoid(f) * before + sigmoid(i) * tanh(g)
        if CLIP is not None:
            after = gl.minimum(gl.maximum(after, -CLIP), CLIP)
        if RAGGED:
            running = t < gl.load(lengths + row + row_in_tile)
            after = gl.where(gl.expand_dims(running, 1), after, before)
        gl.store(c + ((cell.to(gl.int64) * c_slots + c_to) * B) * C + place, after)
        opened = sigmoid(o) * tanh(after)
        gl.store(m + ((cell.to(gl.int64) * m_slots + m_at) * B) * C + place, opened.to(gl.bfloat16))
        turn += 1
    if SAVE:
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["tiles", "wave", "cell0", "c_from", "c_to", "m_at"])
def gates_forward(
    xh, weight, gates, bias, c, m, lengths, resets, tiles, wave, cell0, c_from, c_to, m_at, B, T, c_slots, m_slots, waves,
    K: gl.constexpr, C: gl.constexpr, D: gl.constexpr, CLIP: gl.constexpr, SAVE: gl.constexpr,
    RAGGED: gl.constexpr, RESETS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    x_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, DEPTH], xh.layout)
    w_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, COLUMNS, DEPTH], weight.layout)
    staging = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS if SAVE else 8, COLUMNS], gates.layout)
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
                0, gates, x_ring, w_ring, staging, full, empty, turns, bias, c, m, lengths, resets,
                tiles, wave, cell0, c_from, c_to, m_at, B, T, c_slots, m_slots, waves,
                K, C, D, CLIP, SAVE, RAGGED, RESETS, STAGES,
            )),
            (compute_tiles, (
                1, gates, x_ring, w_ring, staging, full, empty, turns, bias, c, m, lengths, resets,
                tiles, wave, cell0, c_from, c_to, m_at, B, T, c_slots, m_slots, waves,
                K, C, D, CLIP, SAVE, RAGGED, RESETS, STAGES,
            )),
            (load_tiles, (xh, weight, x_ring, w_ring, full, empty, tiles, wave, cell0, B, waves, K, C, STAGES)),
        ],
        [4, 1],
        [232, 24],
    )  # fmt: skip


def plan_gates(s: Sizes, f: Forward, packed: Packed, rows: Rows) -> Callable[[int], None]:
    """What computes the gates and memories of a wave."""
    narrow = gl.NVMMASharedLayout.get_default_for([128, 64], gl.bfloat16)
    wide = gl.NVMMASharedLayout.get_default_for([128, 128], gl.bfloat16)
    xh = TensorDescriptor.from_tensor(f.xh.view(-1, s.K_), [128, 64], narrow)
    weight = TensorDescriptor.from_tensor(packed.weight.view(-1, s.K_), [128, 64], narrow)
    # Not written where gates are not kept; a descriptor needs some memory all the same.
    kept = f.gates.view(-1, 4 * s.C_) if f.save else f.xh.view(-1, s.K_)
    gates = TensorDescriptor.from_tensor(kept, [128, 128], wide)
    most = processors(f.xh.device)

    def run(wave: int) -> None:
        cell0, count = s.active(wave)
        tiles = s.B_ // 128 * (s.C_ // 32) * count
        gates_forward[(min(tiles, most),)](
            xh, weight, gates, packed.bias, f.c, f.m, rows.lengths, rows.resets,
            tiles, wave, cell0, wave % f.c.shape[1], (wave + 1) % f.c.shape[1], wave % f.m.shape[1],
            s.B_, s.T, f.c.shape[1], f.m.shape[1], s.waves,
            K=s.K_, C=s.C_, D=s.D, CLIP=s.cell_clip, SAVE=f.save, RAGGED=s.ragged, RESETS=s.resets,
            STAGES=5 if f.save else 6, num_warps=4,
        )  # fmt: skip

    return run


def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
