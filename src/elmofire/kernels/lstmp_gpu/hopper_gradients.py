"""The gradient of one wave's gates on Hopper, in Gluon: from the gradient of h to those of the gates and memories in one pass.

All operands come and go through shared memory by the copy engine, since the limit is memory: two warps stream, two groups of warps
compute, each on its own tiles of 64 rows. `cells.plan_gates_backward` computes the same with a product and an element-wise kernel.
"""


# ruff: noqa: SIM113  (kernels have no enumerate)

from collections.abc import Callable

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

from elmofire.kernels.lstmp_gpu.buffers import Backward, Forward, Rows
from elmofire.kernels.lstmp_gpu.hopper_gates import processors, sigmoid, split_gates, tanh
from elmofire.kernels.lstmp_gpu.packing import Packed
from elmofire.kernels.lstmp_gpu.sizes import Sizes

ROWS = gl.constexpr(64)
UNITS = gl.constexpr(64)  # a pass over dh serves two blocks of units
DEPTH = gl.constexpr(64)
MOST_PROJECTION = 512  # the block's projection weights stay in shared memory, and wider ones do not fit


@gluon.jit
def stream_hidden(
    dh, projection, dh_ring, weights, full, empty, weights_full, weights_empty, items, wave, cell0, B, waves,
    P: gl.constexpr, C: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    step = 0
    turn = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        cell = cell0 + item // (C // UNITS)
        mbarrier.wait(weights_empty, (turn & 1) ^ 1)
        mbarrier.expect(weights_full, P * UNITS * 2)
        for k in range(P // DEPTH):
            place = [cell * P + k * DEPTH, (item % (C // UNITS)) * UNITS]
            tma.async_copy_global_to_shared(projection, place, weights_full, weights.index(k))
        turn += 1
        for tile in range(B // ROWS):
            for k in range(P // DEPTH):
                stage = step % STAGES
                mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
                mbarrier.expect(full.index(stage), ROWS * DEPTH * 2)
                place = [(cell * waves + wave) * B + tile * ROWS, k * DEPTH]
                tma.async_copy_global_to_shared(dh, place, full.index(stage), dh_ring.index(stage))
                step += 1


@gluon.jit
def stream_gates(gates, c, dc, z_in, c_in, dc_in, full, empty, items, wave, cell0, B, waves, C: gl.constexpr):
    turn = 0  # of one consumer: its half tiles so far
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        cell = cell0 + item // (C // UNITS)
        unit = (item % (C // UNITS)) * UNITS
        for pair in range(B // ROWS // 2):
            for half in range(2):
                for which in gl.static_range(2):
                    row = (2 * pair + which) * ROWS
                    mbarrier.wait(empty.index(which), (turn & 1) ^ 1)
                    mbarrier.expect(full.index(which), ROWS * 32 * (4 * 2 + 4 + 4))
                    at = unit + half * 32
                    tma.async_copy_global_to_shared(
                        gates, [(cell * waves + wave) * B + row, at * 4], full.index(which), z_in.index(which)
                    )
                    tma.async_copy_global_to_shared(
                        c, [(cell * (waves + 1) + wave) * B + row, at], full.index(which), c_in.index(which)
                    )
                    tma.async_copy_global_to_shared(dc, [cell * B + row, at], full.index(which), dc_in.index(which))
                turn += 1


@gluon.jit
def join_gates(i, f, g, o, Z: gl.constexpr):
    """Four times (rows, 32) -> (rows, 128) as packed."""
    pairs = gl.reshape(gl.join(gl.join(i, g), gl.join(f, o)), [i.shape[0], 32, 4])
    return gl.convert_layout(gl.reshape(gl.permute(pairs, [0, 2, 1]), [i.shape[0], 128]), Z, assert_trivial=True)


@gluon.jit
def store_sums(target, dz, stride):
    """Sums over the 16 rows of each warp, a line for each: no exchange between warps."""
    sums = gl.sum(gl.reshape(dz, [4, 16, 128]), axis=1)
    LINES: gl.constexpr = sums.type.layout
    line = gl.expand_dims(gl.arange(0, 4, layout=gl.SliceLayout(1, LINES)), 1)
    column = gl.expand_dims(gl.arange(0, 128, layout=gl.SliceLayout(0, LINES)), 0)
    gl.store(target + line * stride + column, sums)


@gluon.jit
def compute_gradients(
    which: gl.constexpr, gates, dc, dh_ring, weights, z_in, c_in, dc_in, z_out, dc_out,
    ring_full, ring_empty, weights_full, weights_empty, in_full, in_empty, turns, bias_sums, lengths, resets,
    items, wave, cell0, B, T, waves,
    P: gl.constexpr, C: gl.constexpr, D: gl.constexpr, L: gl.constexpr, CLIP: gl.constexpr,
    RAGGED: gl.constexpr, RESETS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    M: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    Z: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    U: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16])
    STEPS: gl.constexpr = P // DEPTH
    row_in_tile = gl.arange(0, ROWS, layout=gl.SliceLayout(1, U))
    turn = 0  # tiles so far
    filled = 0  # half tiles so far
    taken = 0  # items so far
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        cell = cell0 + item // (C // UNITS)
        unit = (item % (C // UNITS)) * UNITS
        t = wave - cell // D
        mbarrier.wait(weights_full, taken & 1)
        for pair in range(B // ROWS // 2):
            row = (2 * pair + which) * ROWS
            step = (2 * turn + which) * STEPS
            mbarrier.wait(turns.index(which), (turn & 1) ^ (1 - which))
            dm = gl.zeros([ROWS, UNITS], gl.float32, M)
            for k in range(STEPS):
                stage = (step + k) % STAGES
                mbarrier.wait(ring_full.index(stage), ((step + k) // STAGES) & 1)
                dm = warpgroup_mma(dh_ring.index(stage), weights.index(k), dm, is_async=True)
                dm = warpgroup_mma_wait(num_outstanding=1, deps=(dm,))
                mbarrier.arrive(ring_empty.index((step + k + STAGES - 1) % STAGES), pred=k > 0)
            dm = warpgroup_mma_wait(num_outstanding=0, deps=(dm,))
            mbarrier.arrive(ring_empty.index((step + STEPS - 1) % STAGES))
            mbarrier.arrive(turns.index(1 - which))
            first, second = gl.split(gl.permute(gl.reshape(dm, [ROWS, 2, 32]), [0, 2, 1]))
            if RESETS:
                reset = gl.load(resets + ((cell % D) * T + t) * B + row + row_in_tile)
                kept = gl.expand_dims(reset == 0, 1)
            if RAGGED:
                running = gl.expand_dims(t < gl.load(lengths + row + row_in_tile), 1)
            for half in gl.static_range(2):
                opened = gl.convert_layout(first if half == 0 else second, U, assert_trivial=True)
                mbarrier.wait(in_full.index(which), filled & 1)
                z = z_in.index(which).load(Z).to(gl.float32)
                before = c_in.index(which).load(U)
                carried = dc_in.index(which).load(U)
                tma.store_wait(0)  # the memory that stores leave from is free again, once all warps are here
                mbarrier.arrive(in_empty.index(which))
                filled += 1
                if RESETS:
                    before = gl.where(kept, before, 0.0)
                i, f, g, o = split_gates(z, U)
                i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
                unclipped = f * before + i * g
                after = unclipped
                if CLIP is not None:
                    after = gl.minimum(gl.maximum(unclipped, -CLIP), CLIP)
                squashed = tanh(after)
                da = carried + opened * o * (1 - squashed * squashed)
                if CLIP is not None:
                    da = gl.where(after == unclipped, da, 0.0)
                do = opened * squashed * o * (1 - o)
                di = da * g * i * (1 - i)
                dg = da * i * (1 - g * g)
                df = da * before * f * (1 - f)
                passed = da * f
                if RESETS:
                    passed = gl.where(kept, passed, 0.0)
                if RAGGED:
                    di = gl.where(running, di, 0.0)
                    df = gl.where(running, df, 0.0)
                    dg = gl.where(running, dg, 0.0)
                    do = gl.where(running, do, 0.0)
                    passed = gl.where(running, passed, carried)
                dz = join_gates(di, df, dg, do, Z)
                z_out.index(which).store(dz.to(gl.bfloat16))
                dc_out.index(which).store(passed)
                fence_async_shared()
                at = unit + half * 32
                tma.async_copy_shared_to_global(gates, [(cell * waves + wave) * B + row, at * 4], z_out.index(which))
                tma.async_copy_shared_to_global(dc, [cell * B + row, at], dc_out.index(which))
                line = (t * (L * D) + cell) * (B // 16) + row // 16
                store_sums(bias_sums + line.to(gl.int64) * (4 * C) + at * 4, dz, 4 * C)
            turn += 1
        mbarrier.arrive(weights_empty)
        taken += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["items", "wave", "cell0"])
def gates_backward(
    dh, projection, gates, c, dc, bias_sums, lengths, resets, items, wave, cell0, B, T, waves,
    P: gl.constexpr, C: gl.constexpr, D: gl.constexpr, L: gl.constexpr, CLIP: gl.constexpr,
    RAGGED: gl.constexpr, RESETS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    dh_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, DEPTH], dh.layout)
    weights = gl.allocate_shared_memory(gl.bfloat16, [P // DEPTH, DEPTH, UNITS], projection.layout)
    z_in = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, 128], gates.layout)
    c_in = gl.allocate_shared_memory(gl.float32, [2, ROWS, 32], c.layout)
    dc_in = gl.allocate_shared_memory(gl.float32, [2, ROWS, 32], dc.layout)
    z_out = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, 128], gates.layout)
    dc_out = gl.allocate_shared_memory(gl.float32, [2, ROWS, 32], dc.layout)
    ring_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ring_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    weights_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    weights_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    in_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    in_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ring_full.index(stage), count=1)
        mbarrier.init(ring_empty.index(stage), count=1)
    mbarrier.init(weights_full, count=1)
    mbarrier.init(weights_empty, count=2)
    for which in gl.static_range(2):
        mbarrier.init(in_full.index(which), count=1)
        mbarrier.init(in_empty.index(which), count=1)
        mbarrier.init(turns.index(which), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (compute_gradients, (
                0, gates, dc, dh_ring, weights, z_in, c_in, dc_in, z_out, dc_out,
                ring_full, ring_empty, weights_full, weights_empty, in_full, in_empty, turns, bias_sums, lengths, resets,
                items, wave, cell0, B, T, waves, P, C, D, L, CLIP, RAGGED, RESETS, STAGES,
            )),
            (compute_gradients, (
                1, gates, dc, dh_ring, weights, z_in, c_in, dc_in, z_out, dc_out,
                ring_full, ring_empty, weights_full, weights_empty, in_full, in_empty, turns, bias_sums, lengths, resets,
                items, wave, cell0, B, T, waves, P, C, D, L, CLIP, RAGGED, RESETS, STAGES,
            )),
            (stream_hidden, (
                dh, projection, dh_ring, weights, ring_full, ring_empty, weights_full, weights_empty,
                items, wave, cell0, B, waves, P, C, STAGES,
            )),
            (stream_gates, (gates, c, dc, z_in, c_in, dc_in, in_full, in_empty, items, wave, cell0, B, waves, C)),
        ],
        [4, 1, 1],
        [232, 24, 24],
    )  # fmt: skip


def plan_gates_backward(s: Sizes, f: Forward, b: Backward, packed: Packed, rows: Rows) -> Callable[[int], None]:
    """What leads from a wave's gradients of h, before the clip, to those of the gates and of the memories before."""
    square = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    wide = gl.NVMMASharedLayout.get_default_for([64, 128], gl.bfloat16)
    memory = gl.NVMMASharedLayout.get_default_for([64, 32], gl.float32)
    descriptors = [
        TensorDescriptor.from_tensor(b.dh.view(-1, s.P_), [64, 64], square),
        TensorDescriptor.from_tensor(packed.projection.view(-1, s.C_), [64, 64], square),
        TensorDescriptor.from_tensor(f.gates.view(-1, 4 * s.C_), [64, 128], wide),
        TensorDescriptor.from_tensor(f.c.view(-1, s.C_), [64, 32], memory),
        TensorDescriptor.from_tensor(b.dc.view(-1, s.C_), [64, 32], memory),
    ]
    most = processors(f.xh.device)

    def run(wave: int) -> None:
        cell0, count = s.active(wave)
        items = s.C_ // 64 * count
        gates_backward[(min(items, most),)](
            *descriptors, b.bias_sums, rows.lengths, rows.resets, items, wave, cell0, s.B_, s.T, s.waves,
            P=s.P_, C=s.C_, D=s.D, L=s.L, CLIP=s.cell_clip, RAGGED=s.ragged, RESETS=s.resets, STAGES=5, num_warps=4,
        )  # fmt: skip

    return run
