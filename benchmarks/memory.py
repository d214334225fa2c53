"""Memory of embedding: does a process grow with new words for ever, and does one long line take more than many short ones?

Run: python benchmarks/memory.py

First 10,000 calls with two new words each, after the cache is full. Then the command on a million tokens, as a file of 100,000 sentences,
as 32 long lines and as one line: the most memory of its own (RssAnon) that each process had. Vectors lie in files, which the system may
keep in memory or not; they are not counted.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from records import keep

from elmofire import Embedder

TOKENS = 1_000_000
MODEL = "random-small"


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def new_words_for_ever() -> None:
    elmo = Embedder.load(MODEL, device="cpu")
    number = 0
    while elmo._cache.used < 0.99 * elmo._cache.limit:
        elmo.embed([[f"fill{number}-{k}" for k in range(1000)]], layers=0)
        number += 1
    elmo.embed([["warm", "up"]])
    before = resident()
    for call in range(10_000):
        elmo.embed([[f"new{call}", f"word{call}"]])
    keep(
        "memory",
        calls=10_000,
        cache_mb=elmo._cache.limit >> 20,
        cached_words=len(elmo._cache),
        grown_mb=round((resident() - before) / 2**20, 2),
    )


def lines_of_all_lengths() -> None:
    """Words with the frequencies of a text: the r-th one is 1/r as frequent as the first."""
    words = [f"word{rank}" for rank in range(1, 50_001)]
    text = random.Random(13).choices(words, weights=[1 / rank for rank in range(1, 50_001)], k=TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "text.txt")
        for sentences in (TOKENS // 10, 32, 1):
            length = TOKENS // sentences
            lines = (" ".join(text[first : first + length]) for first in range(0, TOKENS, length))
            file.write_text("".join(line + "\n" for line in lines))
            peak = peak_of(file, Path(folder, "vectors.npz"))
            keep(
                "memory",
                model=MODEL,
                precision="float32",
                sentences=sentences,
                tokens=TOKENS,
                peak_anonymous_mb=round(peak / 2**20, 1),
            )


def peak_of(path: Path, output: Path) -> int:
    """The most memory of its own, in bytes, that the command had on the way."""
    command = ["embed", "--model", MODEL, "--device", "cpu", "--pretokenized", "--quiet", "--output", str(output)]
    process, peak = subprocess.Popen([sys.executable, "-m", "elmofire", *command, str(path)]), 0
    while process.poll() is None:
        for row in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if row.startswith("RssAnon"):
                peak = max(peak, int(row.split()[1]) << 10)
        time.sleep(0.005)
    if process.returncode:
        raise SystemExit(f"the command failed with {process.returncode}")
    return peak


if __name__ == "__main__":
    new_words_for_ever()
    lines_of_all_lengths()
