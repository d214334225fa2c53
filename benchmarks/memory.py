"""Does a process grow while it embeds new words for ever? 10,000 calls with two new words each, after the cache is full.

Run: python benchmarks/memory.py
"""

import os
from pathlib import Path

from records import keep

from elmofire import Embedder


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    elmo = Embedder.load("random-small", device="cpu")
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


if __name__ == "__main__":
    main()
