"""Where the LSTM stacks spend their time on a GPU: python benchmarks/lstmp_profile.py [CASE...]

Times of kernels as torch's profiler sees them, outside of a graph, at the original size; T steps are T + 1 waves.
"""

import sys
from collections import Counter

import torch
from records import keep
from torch.profiler import ProfilerActivity, profile

from elmofire.bench.stacks import Shape, by_path, random_problem

REPEATS = 3
# mode, rows, steps, the path that is taken for them, and the precision
CASES = {
    "train-128": ("train", 128, 20, "gluon", "bfloat16"),
    "train-512": ("train", 512, 20, "gluon", "bfloat16"),
    "train-1024": ("train", 1024, 20, "gluon", "bfloat16"),
    "train-1024-triton": ("train", 1024, 20, "triton", "bfloat16"),
    "inference-128": ("inference", 128, 32, "gluon", "bfloat16"),
    "inference-1024": ("inference", 1024, 32, "gluon", "bfloat16"),
    "sentence": ("inference", 1, 25, "triton", "bfloat16"),
    "sentence-float32": ("inference", 1, 25, "triton", "float32"),
}


def measure(mode: str, rows: int, steps: int, path: str, precision: str) -> None:
    runner = by_path(path).prepare(random_problem(Shape(batch=rows, steps=steps), "cuda"), precision)
    leaves = list(runner.leaves.values())

    def step() -> None:
        with torch.set_grad_enabled(mode == "train"):
            outputs, _ = runner.forward()
        if mode == "train":
            torch.autograd.grad(outputs, leaves, runner.gradient)

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(REPEATS):
            step()
        torch.cuda.synchronize()
    times, launches = Counter[str](), Counter[str]()
    for event in profiled.key_averages():
        name = event.key[:60]  # of which several kernels may be variants
        times[name] += event.self_device_time_total / REPEATS
        launches[name] += event.count / REPEATS
    for kernel, microseconds in times.most_common():
        figures = {"microseconds": round(microseconds), "launches": round(launches[kernel]), "kernel": kernel}
        about = {"mode": mode, "path": path, "precision": precision, "batch": rows, "steps": steps}
        keep("lstmp_profile", device=torch.cuda.get_device_name(), **about, **figures)


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        measure(*CASES[name])
