"""The search for en-small's recipe: every variant gets the updates that it would make, alone on the GPU, in the same minutes.

Run, in benchmarks, on a machine with a GPU:
  python -m en_small.search rate CORPUS STAGE [SECONDS]                how fast each variant is alone; results/en_small_rates.jsonl
  python -m en_small.search run CORPUS STAGE MINUTES DEADLINE SEED [NAME...]
                                                                       all of them, or these; results/en_small_search.jsonl
  python -m en_small.search one CORPUS STAGE NAME UPDATES SEED FOLDER  one of them, as `run` does it

Compared is the perplexity of the split `dev` at the end: full softmax, every sentence from a zero state, geometric mean of both
directions. Variants that cannot end before DEADLINE seconds are not started, and said to be missing.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from records import RESULTS, keep

from elmofire.train.corpus.reader import Corpus
from elmofire.train.files.log import read_log
from elmofire.train.run.loop import train
from elmofire.train.run.ranks import joined
from elmofire.train.run.session import Session
from elmofire.train.stream.feed import Feed
from en_small.variants import STAGES, recipe_of, starting

RATES, SEARCH = "en_small_rates", "en_small_search"
AT_ONCE = int(os.environ.get("AT_ONCE", "12"))
EVALUATIONS = 3
# What decides how fast a variant is: others share a rate.
DECIDING = (
    "recipe=",
    "batch_tokens",
    "data.",
    "dropout.",
    "loss.softmax",
    "loss.samples",
    "optimizer.name",
    "optimizer.average",
)


def kind(settings: tuple[str, ...]) -> str:
    """Variants of one kind are equally fast."""
    return " ".join(sorted(setting for setting in settings if setting.startswith(DECIDING)))


def measure(corpus: Corpus, stage: str, seconds: float) -> None:
    """The rate of each kind of a stage: all in one session, as machines differ."""
    for settings in {kind(settings): settings for settings in STAGES[stage].values()}.values():
        recipe = recipe_of(settings, "epochs=none", "train.updates=1000000")
        with joined("cuda") as ranks:
            session = Session(recipe, corpus, ranks)
            with Feed(session.stream) as feed:
                updates, tokens, passed = _timed(session, feed, seconds)
        del session, feed
        torch.cuda.empty_cache()
        keep(RATES, kind=kind(settings), seconds=round(passed, 2), updates=updates, tokens=tokens,
             updates_per_second=round(updates / passed, 2), tokens_per_second=round(tokens / passed))  # fmt: skip


def _timed(session: Session, feed: Feed, seconds: float) -> tuple[int, int, float]:
    for update in itertools.islice(feed, 50):
        session.stepper(update, 1e-4)
    torch.cuda.synchronize()
    start, updates, tokens = time.perf_counter(), 0, 0
    while time.perf_counter() - start < seconds:
        for update in itertools.islice(feed, 50):
            session.stepper(update, 1e-4)
            updates, tokens = updates + 1, tokens + update.tokens[0]
        torch.cuda.synchronize()
    return updates, tokens, time.perf_counter() - start


def known_rates() -> dict[str, float]:
    """Updates a second, by kind, as last measured."""
    file = RESULTS / f"{RATES}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {record["kind"]: record["updates_per_second"] for record in map(json.loads, lines)}


def run(corpus: str, stage: str, minutes: float, deadline: float, seed: int, names: list[str]) -> None:
    """As many side by side as there is room for."""
    began, rates = time.monotonic(), known_rates()
    waiting = names or list(STAGES[stage])
    running: dict[str, tuple[subprocess.Popen[bytes], Path, float, int]] = {}
    taken = [0.0]
    with _folder() as made:
        while waiting or running:
            left = deadline - (time.monotonic() - began)
            if left < max(taken):  # the slowest so far would not end in time
                waiting = []
            while waiting and len(running) < AT_ONCE:
                name = waiting.pop(0)
                updates = round(60 * minutes * rates[kind(STAGES[stage][name])])
                folder = made / f"{stage}-{name.replace(' ', '-')}-{seed}"
                line = [sys.executable, "-m", "en_small.search", "one", corpus, stage, name]
                with Path(f"{folder}.said").open("wb") as said:
                    process = subprocess.Popen([*line, str(updates), str(seed), str(folder)], stdout=said, stderr=said)
                running[name] = (process, folder, time.monotonic(), updates)
            for name, (process, folder, started, updates) in list(running.items()):
                if left < 0:
                    process.kill()
                if process.poll() is not None:
                    running.pop(name)
                    taken.append(time.monotonic() - started)
                    _kept(stage, name, minutes, seed, updates, folder, taken[-1], process.returncode)
            time.sleep(0.2)


def _kept(
    stage: str, name: str, minutes: float, seed: int, updates: int, folder: Path, seconds: float, code: int
) -> None:
    log = read_log(folder) if code == 0 else []
    evaluations = [record for record in log if record["kind"] == "evaluation"]
    lines = [record for record in log if record["kind"] == "train"]
    if code:
        print(Path(f"{folder}.said").read_text(errors="replace")[-1500:], file=sys.stderr)
    keep(
        SEARCH,
        stage=stage,
        variant=name,
        settings=list(STAGES[stage][name]),
        minutes=minutes,
        seed=seed,
        updates=updates,
        ended=code == 0,
        seconds_side_by_side=round(seconds, 1),
        tokens=lines[-1]["tokens"] if lines else None,
        perplexity=[{key: record[key] for key in ("update", "forward", "backward", "mean")} for record in evaluations],
        layers=evaluations[-1]["layers"] if evaluations else None,
        losses=[
            [record["update"], record["loss"] and round(record["loss"], 4)]
            for record in lines[:: max(1, len(lines) // 20)]
        ],
    )


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Where runs are: in RUNS, where they stay, or for the time being."""
    if kept := os.environ.get("RUNS"):
        yield Path(kept)
    else:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made)


def one(corpus: str, stage: str, name: str, updates: int, seed: int, folder: Path) -> None:
    """A whole run; its schedule ends with its last update."""
    recipe = recipe_of(
        STAGES[stage][name],
        "epochs=none",
        f"train.updates={updates}",
        f"train.seed={seed}",
        f"train.evaluate_every={-(-updates // EVALUATIONS)}",
        "train.evaluate_on=dev",
        "train.checkpoint_minutes=1000",
    )
    train(recipe, data=corpus, output=folder, device=os.environ.get("DEVICE", "cuda"),
          start=starting(name, recipe, Corpus.open(corpus).vocabulary))  # fmt: skip


if __name__ == "__main__":
    command, corpus, stage, *rest = sys.argv[1:]
    if command == "rate":
        measure(Corpus.open(corpus), stage, float(rest[0]) if rest else 30.0)
    elif command == "run":
        run(corpus, stage, float(rest[0]), float(rest[1]), int(rest[2]), rest[3:])
    else:
        one(corpus, stage, rest[0], int(rest[1]), int(rest[2]), Path(rest[3]))
