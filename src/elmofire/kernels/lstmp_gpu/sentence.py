"""A sentence, or a few, in one launch: all waves in one Triton kernel, whose programs wait for each other between them.

A wave of one sentence takes less time than two launches from Python. All programs must be on the GPU at once to wait for each other,
which a cooperative launch makes sure of. What one program writes, another reads in the same launch: such loads bypass the nearest cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from elmofire.kernels.lstmp_gpu.buffers import Forward, Rows
from elmofire.kernels.lstmp_gpu.cells import UNITS_A_BLOCK, gates_tile
from elmofire.kernels.lstmp_gpu.packing import Packed
from elmofire.kernels.lstmp_gpu.projection import project_tile
from elmofire.kernels.lstmp_gpu.sizes import Sizes, stages

MOST_ROWS = 16


@triton.jit
def wait_for_all(arrivals, target):
    tl.debug_barrier()  # the whole program's stores come before its arrival
    tl.atomic_add(arrivals, 1, sem="release")
    while tl.atomic_add(arrivals, 0, sem="acquire") < target:
        pass
    tl.debug_barrier()


@triton.jit(do_not_specialize=["T"])
def all_waves(
    xh, weight, bias, projection, c, m, outputs, lengths, resets, first, arrivals, T,
    X: tl.constexpr, P: tl.constexpr, C: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
    CELL_CLIP: tl.constexpr, CLIP: tl.constexpr, SKIP: tl.constexpr, RAGGED: tl.constexpr, RESETS: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = C // UNITS_A_BLOCK
    strips: tl.constexpr = P // COLUMNS
    target = 0
    for wave in range(T + L - 1):
        for tile in range(tl.program_id(0), L * D * blocks, tl.num_programs(0)):
            cell = tile // blocks
            t = wave - cell // D
            if (t >= 0) & (t < T):
                gates_tile(
                    0, tile % blocks, cell, xh, weight, bias, c, xh, m, lengths, resets, first, wave, 0, 0,
                    0, ROWS, T, 1, 1, X + P, C, D, L, CELL_CLIP, False, RAGGED, RESETS, PRECISION, ".cg", X, ROWS, DEPTH,
                )  # fmt: skip
        target += tl.num_programs(0)
        wait_for_all(arrivals, target)
        for tile in range(tl.program_id(0), L * D * strips, tl.num_programs(0)):
            cell = tile // strips
            t = wave - cell // D
            if (t >= 0) & (t < T):
                project_tile(
                    0, (tile % strips) * COLUMNS, cell, m, projection, xh, outputs, xh, lengths, resets, lengths, wave, 0,
                    ROWS, T, 1, C, X, P, D, L, CLIP, SKIP, 0.0, False, RAGGED, RESETS, PRECISION, False, ".cg",
                    ROWS, COLUMNS, LONG,
                )  # fmt: skip
        target += tl.num_programs(0)
        wait_for_all(arrivals, target)


def serves(s: Sizes, device: torch.device) -> bool:
    """Is it one tile of rows, on a GPU that can hold all programs at once?"""
    return (
        0 < s.B <= MOST_ROWS
        and s.row_tile == MOST_ROWS
        and not s.dropout
        and device.type == "cuda"
        and not torch.version.hip
    )


def run_all_waves(s: Sizes, f: Forward, packed: Packed, rows: Rows) -> None:
    device = f.xh.device
    arrivals: Tensor = torch.zeros(1, dtype=torch.int32, device=device)
    # The first layer's x is known for all steps: multiplied ahead, its weights are read once and not once a wave.
    x = f.xh[: s.D, : s.T, :, : s.X_].flatten(1, 2)
    ahead = {} if s.dtype == torch.float32 else {"out_dtype": torch.float32}
    first = torch.bmm(x, packed.weight[: s.D, :, : s.X_].transpose(1, 2), **ahead)
    half = s.dtype == torch.bfloat16
    # Two programs a processor hide more of the memory's latency. Registers are for one in float32, with its split products, and shared
    # memory on all but the large processors.
    twice = half and torch.cuda.get_device_capability(device) in ((8, 0), (9, 0), (10, 0), (10, 3))
    programs = (2 if twice else 1) * torch.cuda.get_device_properties(device).multi_processor_count
    long = 256 if half else 128
    depth = 64 if half else 32
    all_waves[(programs,)](
        f.xh, packed.weight, packed.bias, packed.projection, f.c, f.m, f.outputs, rows.lengths, rows.resets, first, arrivals,
        s.T, X=s.X_, P=s.P_, C=s.C_, D=s.D, L=s.L, CELL_CLIP=s.cell_clip, CLIP=s.projection_clip, SKIP=s.skip,
        RAGGED=s.ragged, RESETS=s.resets, PRECISION=s.precision, ROWS=MOST_ROWS, DEPTH=depth,
        COLUMNS=16 if half else 32, LONG=long if s.C_ % long == 0 else 64,
        num_warps=4, num_stages=stages(4, 128, depth, s.dtype, device, rows=MOST_ROWS), launch_cooperative_grid=True,
    )  # fmt: skip
