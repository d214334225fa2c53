"""All that needs a GPU, in one command: its tests, the LSTM stacks, embedding, and whole training steps where a corpus is given.

Run: python benchmarks/gpu.py [--corpus CORPUS] [STEP...]; steps are named below, and without a name all of them run. Each is a process of
its own with a limit of time, and one that fails ends no other. It needs torch, triton, numpy, safetensors, click, filelock and h5py, the
tests pytest with xdist and timeout, and hypothesis. Published vectors are tested where ELMOFIRE_SHARED names the folder that has them in
`fixtures`. Logs of the tests are kept beside the figures, in benchmarks/results.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from records import RESULTS, commit

HERE = Path(__file__).parent
TRAINING = ["original-lanes-20k", "original-sentences-10k", "small-sentences-5k", "original-8gb"]
ENGINE_TESTS = [
    "tests/gpu/test_gpu.py", "tests/parity", "tests/engine/test_contract.py", "tests/properties", "tests/formats/test_manylangs.py",
]  # fmt: skip


class Step(NamedTuple):
    """A command, and how many seconds it may take."""

    command: list[str]
    limit: int
    log: str = ""  # in results


def tests(*chosen: str) -> list[str]:
    # pytest-benchmark, where it is installed, warns beside xdist, and warnings are errors here.
    return ["-m", "pytest", "-q", "-p", "no:benchmark", "-n", str(os.cpu_count() or 1), *chosen]


def steps(corpus: str | None) -> dict[str, Step]:
    found = {
        "tests-kernels": Step(
            tests("tests/kernels", "--ignore", "tests/kernels/test_other_gpus.py"), 300, "gpu-kernels.log"
        ),
        "tests-engines": Step(tests(*ENGINE_TESTS, "-k", "cuda or gpu"), 200, "gpu-tests.log"),
        "tests-training": Step(tests("tests/gpu/test_training.py"), 200, "gpu-training-tests.log"),
        "lstmp": Step(["benchmarks/lstmp.py", "cuda", "train", "inference", "inference-float32"], 240),
        "profiles": Step(["benchmarks/lstmp_profile.py"], 120),
        "embed": Step(["benchmarks/embed.py", "cuda", "original-gpu"], 200),
    }
    if corpus:
        found |= {
            f"training-{name}": Step(["benchmarks/pretrain.py", str(Path(corpus).resolve()), name], 200)
            for name in TRAINING
        }
    return found


def run(name: str, step: Step) -> str:
    """How the step ended, in a word or two."""
    print(f"-- {name}", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *step.command], cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=step.limit)
        ended = "ended well" if process.returncode == 0 else f"FAILED ({process.returncode})"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # its workers too
        said, _ = process.communicate()
        ended = f"TOOK LONGER than {step.limit} s"
    if step.log:
        import triton

        card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        head = f"# {name} on {card}, torch {torch.__version__}, triton {triton.__version__}, commit {commit()}.\n"
        (RESULTS / step.log).write_text(head + said.replace(f"{HERE.parents[1]}/", "../"), encoding="utf-8")
    print(said, flush=True)
    return f"{ended}, {time.monotonic() - began:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run all that needs a GPU.")
    parser.add_argument("--corpus", help="a folder made by `elmofire prepare`, for the training steps")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="these alone")
    arguments = parser.parse_args()
    known = steps(arguments.corpus)
    if unknown := [name for name in arguments.steps if name not in known]:
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(known)}")
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device here")
    ended = {name: run(name, known[name]) for name in arguments.steps or known}
    for name, how in ended.items():
        print(f"{name:34} {how}")
    return int(any(not how.startswith("ended well") for how in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
