"""The plain Triton kernels, as they are launched, are compiled for GPUs that are not here, and fit into the memory of their processors.

In a process of its own, since kernels of this one are for Triton's interpreter.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed")

SCRIPT = """
import sys
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

backend, arch, warp, room, precision, rows = sys.argv[1:]
room, rows, dtype = int(room), int(rows), getattr(torch, precision)
if backend == "hip":
    torch.version.hip = "7"

from elmofire.kernels.lstmp_gpu import cells, one_row, projection, row_tile, sizes
from elmofire.kernels.lstmp_gpu.buffers import Forward

sizes._shared_memory = lambda device: room
operand = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}[dtype]
SIGNATURE = dict.fromkeys(["xh", "weight", "projection", "gates", "m"], operand)
SIGNATURE |= dict.fromkeys(["bias", "c", "outputs", "ahead"], "*fp32") | dict.fromkeys(["resets", "inside"], "*u8")
SIGNATURE |= {"lengths": "*i32", "seed": "*i64", "arrivals": "*i32"}
OPTIONS = ("num_warps", "num_stages", "maxnreg", "launch_cooperative_grid")


class Launched:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self

    def __call__(self, *given, **chosen):
        options = {name: chosen.pop(name) for name in OPTIONS if name in chosen}
        names = self.kernel.arg_names
        signature = {name: "constexpr" if name in chosen else SIGNATURE.get(name, "i32") for name in names}
        constants = {(names.index(name),): value for name, value in chosen.items()}
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=constants)
        target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp))
        print(self.kernel.__name__, triton.compile(source, target=target, options=options).metadata.shared)


cells.gates_forward, projection.project_forward = Launched(cells.gates_forward), Launched(projection.project_forward)
here = SimpleNamespace(device=torch.device("cuda"), shape=(4, 2))
for save in (True, False):
    s = sizes.Sizes(
        D=2, L=2, T=20, B=rows, E=512, P=512, C=4096, row_tile=row_tile(rows), dtype=dtype, cell_clip=3.0,
        projection_clip=3.0, skip=True, dropout=0.1 if save else 0.0, ragged=not save, resets=save,
    )
    f = SimpleNamespace(xh=here, c=here, m=here, gates=here, outputs=here, inside=here, save=save)
    packed = SimpleNamespace(weight=here, bias=here, projection=here)
    tokens = SimpleNamespace(lengths=here, resets=here, seed=here)
    cells.plan_gates(s, f, packed, tokens)(1)
    projection.plan_projection(s, f, packed, tokens, hopper=False)(1)

s = sizes.Sizes(
    D=1, L=1, T=2, B=1, E=512, P=512, C=4096, row_tile=row_tile(1), dtype=dtype, cell_clip=3.0, ragged=True, resets=True
)
if one_row.serves(s):
    one_row.all_steps = Launched(one_row.all_steps)
    packed.weight = torch.zeros(1, 4 * s.C_, s.K_, dtype=dtype)
    one_row.run_all_steps(s, Forward.make(s, torch.device("cpu"), save=False), packed, tokens)
"""
# What a program may have of a processor's memory.
GPUS = {
    "turing": ("cuda", "75", "32", 64 * 1024),
    "ada": ("cuda", "89", "32", 99 * 1024),
    "blackwell": ("cuda", "100", "32", 227 * 1024),
    "mi300": ("hip", "gfx942", "64", 64 * 1024),
}
CASES = [("turing", "float32", 128), ("ada", "bfloat16", 1024), ("ada", "float32", 16), ("blackwell", "bfloat16", 128)]
CASES += [("mi300", "bfloat16", 1024), ("mi300", "float32", 128)]


@pytest.mark.parametrize(("gpu", "precision", "rows"), CASES)
def test_kernels_are_compiled_for_other_gpus_and_fit_their_processors(tmp_path, gpu, precision, rows):
    backend, arch, warp, room = GPUS[gpu]
    given = [sys.executable, "-c", SCRIPT, backend, arch, warp, str(room), precision, str(rows)]
    alone = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run(given, capture_output=True, text=True, env=alone, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    compiled = [line.split() for line in ended.stdout.splitlines()]
    of_one_row = ["all_steps"] if (backend, precision) == ("cuda", "float32") else []
    assert [name for name, _ in compiled] == [*2 * ["gates_forward", "project_forward"], *of_one_row]
    assert all(0 < int(shared) <= room for _, shared in compiled), compiled
