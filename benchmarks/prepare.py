"""Preparing the English corpus: minutes, memory, and bits a token when it is packed.

Run: python benchmarks/prepare.py [FOLDER], with enwiki-1, enwiki-2, books and heldout as .txt.bz3 in FOLDER (../shared/data/corpora)

Twice from the compressed files, which must give the same bytes, then from plain files, which must give the same words and tells the memory
without bzip3's. Memory is the most that the command and its workers had of their own (RssAnon) at the same time. A check for 13-grams of
the held-out text runs along.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from records import keep

from elmofire.text.readers import read_lines
from elmofire.train.corpus.reader import Corpus

FILES = ["enwiki-1", "enwiki-2", "books"]
OPTIONS = ["--documents", "blocks", "--titles", "^= .* =$", "--vocabulary", "100000", "--ngram", "13", "--quiet"]
HELD_OUT = "heldout"
PROCESSES = 2


class Taken(NamedTuple):
    """What a command took."""

    seconds: float
    processor_seconds: float  # of all cores, whatever else the machine does
    peak: int  # bytes


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        here = Path(made)
        for run in ("first", "second"):
            taken = timed(*line(folder, ".txt.bz3", here / run))
            told(Corpus.open(here / run), run, taken, compressed=True)
        if differing := different(here / "first", here / "second"):
            raise SystemExit(f"the second run gave other bytes: {differing}")
        for name in [*FILES, HELD_OUT]:
            with (here / f"{name}.txt").open("w", encoding="utf-8") as file:
                file.writelines(f"{text}\n" for text in read_lines(str(folder / f"{name}.txt.bz3")))
        taken = timed(*line(here, ".txt", here / "plain"))
        told(Corpus.open(here / "plain"), "plain", taken, compressed=False)
        if differing := different(here / "first", here / "plain") - {"corpus.json"}:
            raise SystemExit(f"plain files gave other bytes: {differing}")

        corpus, archive = here / "first", here / "archive"
        packing = timed("prepare", "pack", str(corpus), str(archive), "--processes", str(PROCESSES))
        unpacking = timed("prepare", "unpack", str(archive), str(here / "back"), "--processes", str(PROCESSES))
        if differing := different(corpus, here / "back"):
            raise SystemExit(f"unpacking gave other bytes: {differing}")
        size = sum(file.stat().st_size for file in archive.iterdir())
        opened = Corpus.open(corpus)
        tokens = opened.train.tokens + opened.heldout[HELD_OUT].tokens
        keep(
            "prepare",
            step="pack",
            processes=PROCESSES,
            tokens=tokens,
            bytes=size,
            pieces=len(list(archive.iterdir())),
            bits_per_token=round(8 * size / tokens, 3),
            pack_seconds=round(packing.seconds, 1),
            pack_processor_seconds=round(packing.processor_seconds, 1),
            pack_peak_mb=round(packing.peak / 2**20),
            unpack_seconds=round(unpacking.seconds, 1),
            unpack_processor_seconds=round(unpacking.processor_seconds, 1),
            unpack_peak_mb=round(unpacking.peak / 2**20),
        )


def line(folder: Path, suffix: str, output: Path) -> list[str]:
    texts = [str(folder / f"{name}{suffix}") for name in FILES]
    held_out = str(folder / f"{HELD_OUT}{suffix}")
    texts += ["--held-out-text", f"{HELD_OUT}={held_out}", "--check-against", held_out]
    return ["prepare", *texts, *OPTIONS, "--processes", str(PROCESSES), "--output", str(output)]


def told(corpus: Corpus, run: str, taken: Taken, *, compressed: bool) -> None:
    keep(
        "prepare",
        step="prepare",
        run=run,
        compressed=compressed,
        processes=PROCESSES,
        minutes=round(taken.seconds / 60, 2),
        processor_minutes=round(taken.processor_seconds / 60, 2),
        peak_mb=round(taken.peak / 2**20),
        sentences=corpus.train.sentences,
        tokens=corpus.train.tokens,
        types=corpus.table["report"]["words"]["types"],
        coverage=corpus.table["report"]["words"]["coverage"],
        overlaps=corpus.table["report"]["overlaps"][0]["sentences"],
    )


def timed(*command: str) -> Taken:
    start, before, peak = time.monotonic(), processor_seconds(), 0
    process = subprocess.Popen([sys.executable, "-m", "elmofire", *command], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, sum(map(own_memory, family(process.pid))))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"the command failed with {process.returncode}")
    return Taken(time.monotonic() - start, processor_seconds() - before, peak)


def processor_seconds() -> float:
    """Of all commands so far and their workers."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def family(pid: int) -> list[int]:
    """A process and its children, however many threads started them."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, task.read_text().split())
        except OSError:
            continue  # it has ended
    return [pid, *children]


def own_memory(pid: int) -> int:
    try:
        rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) << 10 for row in rows if row.startswith("RssAnon")), 0)


def different(one: Path, other: Path) -> set[str]:
    """Files that are not the same in two folders."""
    names = {file.name for folder in (one, other) for file in folder.iterdir()}
    return {name for name in names if not _same(one / name, other / name)}


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


if __name__ == "__main__":
    shared = Path(os.environ.get("ELMOFIRE_SHARED", Path(__file__).parents[2] / "shared"))
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else shared / "data" / "corpora")
