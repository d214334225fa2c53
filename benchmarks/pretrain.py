"""The whole training step on real text: data loading, encoder, stacks, sampled softmax, clipping, optimizer. On a GPU.

Run: python benchmarks/pretrain.py CORPUS [CELL...], where CORPUS was made by `elmofire prepare`; cells are named below, and without a
name all run, each in a process of its own without a cache of compiled kernels: the seconds to full speed are from the process's start.
Figures are sustained over the seconds given (SECONDS_SUSTAINED), after a warm-up; memory is what the device had in use at most, in
training and in an evaluation after it, by this process and any other.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import torch
from records import keep

from elmofire.train.corpus.reader import Corpus
from elmofire.train.recipes import find_recipe
from elmofire.train.run.evaluate import evaluate
from elmofire.train.run.ranks import joined
from elmofire.train.run.records import matrix_rate
from elmofire.train.run.session import Session
from elmofire.train.stream.feed import Feed

ALONE = "ELMOFIRE_BENCHMARK_ALONE"  # set in the process of a cell
SECONDS = float(os.environ.get("SECONDS_SUSTAINED", "60"))
CELLS = {
    "original-lanes-20k": ("large", "reading=lanes", "batch_tokens=20480"),
    "original-sentences-10k": ("large", "reading=sentences", "batch_tokens=10240"),
    "small-sentences-5k": ("small", "reading=sentences", "batch_tokens=5120"),
    "medium-sentences-10k": ("medium", "reading=sentences", "batch_tokens=10240"),
    "original-2018": ("original", "batch_tokens=7680"),
    "original-sentences-10k-deterministic": ("large", "reading=sentences", "batch_tokens=10240", "deterministic=true"),
    "original-8gb": ("large", "reading=sentences", "batch_tokens=10240", "memory_gb=8"),
    "small-8gb": ("small", "reading=sentences", "batch_tokens=5120", "memory_gb=8"),
}


def measure(name: str, corpus: Corpus, seconds: float) -> None:
    recipe = find_recipe(CELLS[name][0], [*CELLS[name][1:], "train.updates=1000000", "train.minutes=none"])
    with joined("cuda") as ranks:
        session = Session(recipe, corpus, ranks)
        torch.cuda.synchronize()
        built = seconds_since_start()
        with Feed(session.stream) as feed:
            with MostMemory() as memory:
                speeds = _run(session, feed, seconds)
            with MostMemory() as memory_evaluating:
                if session.held_out is not None:
                    evaluate(session.loss, corpus, session.held_out, recipe, ranks)
            trace = _traced(session, feed)
        peak = matrix_rate(ranks.device, session.precision)
    keep(
        "pretrain",
        cell=name,
        recipe=list(CELLS[name]),
        device=torch.cuda.get_device_name(),
        precision=session.precision,
        corpus_tokens=corpus.train.tokens,
        vocabulary=len(corpus.vocabulary),
        seconds=seconds,
        **speeds,
        seconds_to_full_speed=round(built, 1),
        idle=trace["idle"],
        matrix_tflops=round(peak / 1e12, 1),
        memory_estimate=session.fit.needed,
        memory_predicted=session.fit.predicted,
        memory_used=max(memory.used, memory_evaluating.used),
        memory_used_in_training=memory.used,
        graphs=session.stream.number_of_ways if session.fit.graphs else 0,
        parts=session.fit.parts,
    )
    keep("pretrain_trace", cell=name, device=torch.cuda.get_device_name(), **trace)


def seconds_since_start() -> float:
    """Of this process, Python's and torch's own start included."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class MostMemory(threading.Thread):
    """The most that the device had in use, looked at a hundred times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.used, self._ended = 0, threading.Event()

    def run(self) -> None:
        """Look until told to stop."""
        while not self._ended.wait(0.01):
            free, total = torch.cuda.mem_get_info()
            self.used = max(self.used, total - free)

    def __enter__(self) -> "MostMemory":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def _run(session: Session, feed: Feed, seconds: float) -> dict:
    """Train for so many seconds."""
    windows, tokens, updates, cells = [], 0, 0, 0
    for update in itertools.islice(feed, 50):
        session.stepper(update, 1e-4)
    torch.cuda.synchronize()
    start = last = time.perf_counter()
    waited = feed.waited
    while last - start < seconds:
        update = next(feed)
        session.stepper(update, 1e-4)
        tokens += update.tokens[0]
        updates += 1
        cells += sum(batch.inputs[0].size for batch in update.parts)
        if updates % 100 == 0:
            torch.cuda.synchronize()
            now = time.perf_counter()
            windows.append(10 * (now - last))
            last = now
    return {
        "tokens_per_second": round(tokens / (last - start)),
        "updates": updates,
        "tokens_per_update": round(tokens / updates),
        "filled": round(tokens / cells, 4),
        "milliseconds_per_update": round(1e3 * (last - start) / updates, 3),
        "milliseconds_of_100": {"least": round(min(windows), 3), "most": round(max(windows), 3)},
        "waited": round((feed.waited - waited) / (last - start), 5),
    }


def _traced(session: Session, feed: Feed, updates: int = 30) -> dict:
    """Of an update: milliseconds, those of kernels and copies by name, and before which of them the GPU ran nothing."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for update in itertools.islice(feed, updates):
            session.stepper(update, 1e-4)
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name[:100])
        for event in trace.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    times, gaps, counts = defaultdict[str, float](float), defaultdict[str, float](float), Counter[str]()
    start = end = spans[0][0]
    for first, last, name in spans:
        times[name] += last - first
        counts[name] += 1
        gaps[name] += max(0.0, first - end)
        end = max(end, last)

    def each(microseconds: dict[str, float]) -> dict[str, float]:
        longest = sorted(microseconds.items(), key=lambda item: -item[1])
        return {name: round(time / updates / 1e3, 4) for name, time in longest if time >= updates / 10}

    return {
        "milliseconds": round((end - start) / updates / 1e3, 3),
        "idle": round(sum(gaps.values()) / (end - start), 4),
        "launches": round(len(spans) / updates),
        "milliseconds_of": each(times),
        "launches_of": {name: round(counts[name] / updates, 1) for name in each(times)},
        "idle_before": each(gaps),
    }


def cold(folder: str, name: str) -> bool:
    """One cell in a process that finds nothing compiled -> whether it ended well; the others run in any case."""
    with tempfile.TemporaryDirectory() as nothing:
        alone = {**os.environ, "TRITON_CACHE_DIR": nothing, ALONE: "1"}
        return subprocess.run([sys.executable, __file__, folder, name], env=alone).returncode == 0


if __name__ == "__main__":
    names = sys.argv[2:] or list(CELLS)
    if ALONE in os.environ:
        measure(names[0], Corpus.open(sys.argv[1]), SECONDS)
    elif failed := [name for name in names if not cold(sys.argv[1], name)]:
        sys.exit(f"failed: {', '.join(failed)}")
