"""Where a training step of the LSTM stacks spends its time on a GPU: python benchmarks/lstmp_profile.py [BATCH...]

Times of kernels as torch's profiler sees them, outside of a graph, at the original size; 20 steps are 21 waves.
"""

import sys

import torch
from records import keep
from torch.profiler import ProfilerActivity, profile

from elmofire.bench.stacks import Shape, by_path, random_problem

REPEATS = 3


def main(*batches: str) -> None:
    for batch in map(int, batches or ("128", "512", "1024")):
        shape = Shape(batch=batch)
        runner = by_path("gluon").prepare(random_problem(shape, "cuda"), "bfloat16")
        leaves = list(runner.leaves.values())

        def step(runner=runner, leaves=leaves) -> None:
            outputs, _ = runner.forward()
            torch.autograd.grad(outputs, leaves, runner.gradient)

        for _ in range(2):
            step()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(REPEATS):
                step()
            torch.cuda.synchronize()
        found = [(e.self_device_time_total / REPEATS, e.count / REPEATS, e.key) for e in profiled.key_averages()]
        for microseconds, launches, kernel in sorted(found, reverse=True)[:12]:
            figures = {"microseconds": round(microseconds), "launches": round(launches), "kernel": kernel[:60]}
            keep("lstmp_profile", device=torch.cuda.get_device_name(), batch=batch, steps=shape.steps, **figures)


if __name__ == "__main__":
    main(*sys.argv[1:])
