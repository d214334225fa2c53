"""Training runs of about a second: a corpus, recipes, and what two runs that should be the same are compared by.

As a program it is one rank of a run that `torchrun` has started: CORPUS RUN RECIPE, then RANK:UPDATE for those ranks that are to be
killed, one at each start, when the checkpoint of that update is there.
"""

import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from elmofire.errors import ElmofireError
from elmofire.formats.config import BilmConfig, EncoderConfig
from elmofire.train.corpus.prepare import prepare
from elmofire.train.files.best import read_run
from elmofire.train.files.checkpoints import Checkpoints
from elmofire.train.files.log import read_log
from elmofire.train.run import loop
from elmofire.train.settings import (
    DataSettings,
    DropoutSettings,
    LossSettings,
    OptimizerSettings,
    Recipe,
    TrainSettings,
)

UPDATES = 50  # more than an epoch of whole sentences
_ENCODER = EncoderConfig(
    width=4, filters=((1, 4), (2, 6)), character_dim=4, max_characters=8, highways=1, projection=True
)
_SENTENCES = Recipe(
    model=BilmConfig(encoder=_ENCODER, cells=8, projection=4),
    data=DataSettings(lengths=(4, 8, 12), steps=6),
    loss=LossSettings(samples=16),
    optimizer=OptimizerSettings(rate=0.02, warmup=4),
    train=TrainSettings(
        updates=UPDATES, batch_tokens=96, log_every=2, evaluate_every=10, checkpoint_every=3, precision="float32"
    ),
)
_LANES = replace(
    _SENTENCES,
    data=DataSettings(reading="lanes", steps=6, text="different"),
    optimizer=OptimizerSettings(name="adagrad", rate=0.1, schedule="cosine"),
)
_AVERAGED = replace(
    _SENTENCES,
    optimizer=OptimizerSettings(rate=0.02, average=0.8, schedule="plateau", plateau_gain=1e3, weight_decay=0.1),
    train=replace(_SENTENCES.train, accumulate=2),
)
RECIPES = {"sentences": _SENTENCES, "lanes": _LANES, "averaged": _AVERAGED}


def without_dropout(recipe: Recipe, *, full: bool) -> Recipe:
    """What does not depend on how rows are dealt out to ranks and parts."""
    loss = replace(recipe.loss, softmax="full") if full else recipe.loss
    return replace(recipe, loss=loss, dropout=DropoutSettings(input=0.0, layers=0.0, output=0.0))


RECIPES |= {
    f"{name}-{softmax}": without_dropout(RECIPES[name], full=softmax == "full")
    for name in ("sentences", "lanes")
    for softmax in ("sampled", "full")
}
# Twice as many parts, of the same updates.
RECIPES |= {
    f"{name}-parts": replace(recipe, train=replace(recipe.train, accumulate=2))
    for name, recipe in RECIPES.items()
    if name.endswith(("sampled", "full"))
}


def write_corpus(folder: Path, seed: int = 1) -> Path:
    """A few thousand words in documents of ten sentences, some longer than the grid of lengths."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 9))) for _ in range(150)]
    shares = [1 / (rank + 2) for rank in range(len(words))]
    lines: list[str] = []
    for number in range(400):
        size = rng.choice([30, 37]) if number % 40 == 7 else rng.randint(1, 14)
        lines.append(" ".join(rng.choices(words, shares, k=size)) + ("\n" if number % 10 == 9 else ""))
    text = folder.with_suffix(".txt")
    text.write_text("\n".join(lines), encoding="utf-8")
    settings = {"pretokenized": True, "documents": "blocks", "held_out": 3, "vocabulary": 120}
    prepare([str(text)], folder, **settings, processes=1)
    return folder


def train(corpus: Path, run: Path, recipe: Recipe | str, show: Callable[[dict[str, Any]], None] | None = None) -> None:
    torch.set_num_threads(1)
    recipe = RECIPES[recipe] if isinstance(recipe, str) else recipe
    loop.train(recipe, data=corpus, output=run, device="cpu", show=show or (lambda record: None))


def interrupted_at(update: int, corpus: Path, run: Path, recipe: Recipe) -> None:
    """Start a run and end it after an update, which is one with a line in the log."""

    def show(record: dict[str, Any]) -> None:
        if record["update"] == update and record["kind"] == "train":
            os.kill(os.getpid(), signal.SIGINT)

    try:
        train(corpus, run, recipe, show)
    except KeyboardInterrupt:
        return
    raise AssertionError("the run has ended before")


def outcome(run: Path) -> dict[str, Any]:
    """All that a run left, but for what the clock says."""
    newest = Checkpoints(run / "checkpoints").newest()
    assert newest is not None
    facts = {**newest.facts, "progress": {**newest.facts["progress"], "seconds": None}}
    best = run / read_run(run)["best"]
    log = [{key: value for key, value in record.items() if key != "clock"} for record in read_log(run)]
    return {
        "log": log,
        "checkpoint": {"update": newest.update, "facts": facts},
        "tensors": newest.tensors,
        "run.json": read_run(run),
        "best": {file.name: file.read_bytes() for file in sorted(best.iterdir())},
        "files": sorted(path.name for path in run.iterdir()),
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for what in found.keys() - {"tensors"}:
        assert found[what] == expected[what], what
    assert found["tensors"].keys() == expected["tensors"].keys()
    for name, tensor in found["tensors"].items():
        assert torch.equal(tensor, expected["tensors"][name]), name


def newest_update(run: Path) -> int:
    """Of the checkpoints that are there, without reading them."""
    folder = run / "checkpoints"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=0)


def signal_self_at(run: Path, update: int, number: signal.Signals) -> None:
    """Once the checkpoint of an update is there, whatever this process does then."""

    def wait() -> None:
        while newest_update(run) < update:
            time.sleep(0.001)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


def exit_codes_of_two(act: Callable[[int], None]) -> list[int]:
    """Fork two ranks, with the variables that `torchrun` sets: it takes seconds to start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children: list[int] = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os._exit(_exit_code(act, rank))
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _exit_code(act: Callable[[int], None], rank: int) -> int:
    try:
        act(rank)
    except KeyboardInterrupt:
        return 130
    except ElmofireError as error:
        # One write, so that what two ranks say at once stays two lines.
        os.write(sys.stdout.fileno(), (f"rank {rank}: {error}".splitlines()[0] + "\n").encode())
        return 2
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    corpus, run, kind, *deaths = sys.argv[1:]
    start, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
    if start < len(deaths) and deaths[start].startswith(f"{rank}:"):
        signal_self_at(Path(run), int(deaths[start].partition(":")[2]), signal.SIGKILL)
    train(Path(corpus), Path(run), kind)
