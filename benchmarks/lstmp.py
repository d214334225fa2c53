"""The LSTM stacks in torch: `kernels.lstmp` by every path, torch.nn.LSTM(proj_size=...) and the plain loop.

Run: python benchmarks/lstmp.py cuda|cpu [CELL...]; cells are named below. It needs torch, numpy and safetensors alone.
"""

import os
import sys

from records import keep

from elmofire.bench.lstmp import Setting, bench_lstmp
from elmofire.bench.stacks import Shape

ORIGINAL = {"cells": 4096, "projection": 512}
SMALL = {"cells": 1024, "projection": 128}


def cells(device: str) -> dict[str, tuple[list[Shape], Setting]]:
    if device == "cpu":
        shapes = [Shape(batch=32, steps=20, **SMALL)]
        return {mode: (shapes, Setting(mode=mode)) for mode in ("train", "inference")}
    batches = (128, 512, 1024)

    def setting(precision: str, mode: str) -> Setting:
        return Setting(device=device, precision=precision, mode=mode)

    return {
        "train": ([Shape(batch=b, **ORIGINAL) for b in batches], setting("bfloat16", "train")),
        "inference": ([Shape(batch=b, steps=32, **ORIGINAL) for b in (128, 1024)], setting("bfloat16", "inference")),
        "sentence": ([Shape(batch=1, steps=25, **ORIGINAL)], setting("bfloat16", "inference")),
        "inference-float32": (
            [Shape(batch=1, steps=25, **ORIGINAL), Shape(batch=128, steps=32, **ORIGINAL)],
            setting("float32", "inference"),
        ),
        "train-float32": ([Shape(batch=128, **ORIGINAL)], setting("float32", "train")),
        "train-small": ([Shape(batch=b, **SMALL) for b in batches], setting("bfloat16", "train")),
    }


def main(device: str, *names: str) -> None:
    found = cells(device)
    if unknown := set(names) - set(found):
        sys.exit(f"no cell {', '.join(unknown)}; there are {', '.join(found)}")
    refused = []
    for name, (shapes, setting) in found.items():
        if name in names or not names:
            load = round(os.getloadavg()[0], 1)
            for record in bench_lstmp(shapes, setting, say=lambda line: print(line, file=sys.stderr)):
                keep("lstmp", cell=name, seed=0, load=load, **record)
                refused += [f"{record['contender']}: {record['refused']}"] if record.get("refused") else []
    if refused:
        sys.exit("; ".join(refused))


if __name__ == "__main__":
    main(*sys.argv[1:])
