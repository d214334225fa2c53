"""`pretrain`: the loop. It may be killed at any moment; the same call again goes on from the last checkpoint, and ends the same."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from elmofire.errors import DataError, ElmofireError, RecipeError
from elmofire.formats.files import written_aside
from elmofire.formats.weights import Weights
from elmofire.recipe import text_of
from elmofire.train.corpus.reader import Corpus
from elmofire.train.run.best import keep_best
from elmofire.train.run.checkpoints import Checkpoint, Checkpoints
from elmofire.train.run.evaluate import averaged, evaluate
from elmofire.train.run.processes import Ranks, joined
from elmofire.train.run.records import PLOT, Records, write_plot, writing
from elmofire.train.run.session import Session, suited
from elmofire.train.settings import Recipe
from elmofire.train.stream.feed import Feed

RECIPE_FILE, CHECKPOINTS, LOCK = "recipe.toml", "checkpoints", ".lock"
EVALUATIONS = 10  # of a run, where the recipe does not say
SKIPPED_AT_MOST = 10  # updates in a row whose gradients are not finite, before the run is given up


def pretrain(
    recipe: Recipe,
    *,
    data: Path | str,
    output: Path | str,
    device: str = "auto",
    start: Weights | None = None,
    show: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Path:
    """Train a model on a prepared corpus; the folder of the run, which loads as a model.

    `start` is a model to go on with, whose head has the corpus's vocabulary. `show` is called with every record of the log. Processes
    that `torchrun` has started share the work.
    """
    corpus, folder = Corpus.open(data), Path(output)
    with joined(device) as ranks:
        recipe, notes = suited(recipe, corpus)
        with _claimed(folder, text_of(recipe), ranks):
            checkpoints = Checkpoints(folder / CHECKPOINTS)
            checkpoint = checkpoints.newest()
            _refuse_to_go_apart(folder, checkpoint, ranks)
            session = Session(recipe, corpus, ranks, start=start, parts=checkpoint and checkpoint.facts["parts"])
            if checkpoint is not None:
                session.load(checkpoint, folder)
            _write_recipe(folder, recipe, ranks)  # not before: what was refused so far may be mended and started again
            clock = _Clock(session)
            made_before = clock.over()
            if not made_before:
                with Records(folder, session, show, resumed=checkpoint is not None) as records:
                    if checkpoint is None:
                        records.start(notes)
                    _train(session, clock, checkpoints, records, folder)
            if ranks.first and not (made_before and (folder / PLOT).exists()):
                write_plot(folder)
    return folder


def _train(session: Session, clock: "_Clock", checkpoints: Checkpoints, records: Records, folder: Path) -> None:
    over = False
    with _interrupts() as interrupted, Feed(session.stream, session.progress.position) as feed:
        while not over:
            update = next(feed)
            rate = session.schedule.rate(update.number, clock.minutes())
            session.stepper(update, rate)
            session.made(update)
            over = clock.over()  # asked once: what follows takes time, and the run's last minute may pass meanwhile
            if clock.line_is_due() or over:
                records.train(update, rate, feed.waited)
            _refuse_what_is_not_finite(session, at_line=clock.line_is_due())
            if clock.evaluation_is_due() or over:
                _evaluate(session, records, folder)
            stopped = clock.stopped(interrupted)
            if clock.checkpoint_is_due() or over or stopped:
                session.progress.seconds = clock.seconds()
                with writing(folder):
                    session.save(checkpoints)
            if stopped:
                raise KeyboardInterrupt


def _evaluate(session: Session, records: Records, folder: Path) -> None:
    """Perplexity of the held-out text, and the model kept if it is the best so far. Without such text the last model is the best."""
    progress, split, began = session.progress, session.held_out, time.monotonic()
    progress.evaluations += 1
    with averaged(session.parameters, session.optimizer):
        found = evaluate(session.loss, session.corpus, split, session.recipe, session.ranks) if split else None
        better = found is None or progress.best is None or found.mean < progress.best
        if found is not None:
            session.schedule.evaluated(found.mean)
            if better and math.isfinite(found.mean):  # with anything else, nothing could be better later
                progress.best = found.mean
        if better and session.ranks.first:
            training = {**session.facts(), **({"held_out": found.record} if found else {})}
            with writing(folder):
                keep_best(folder, progress.update, session.weights(training))
    if found is not None:
        records.evaluation(found, time.monotonic() - began, better=better)


def _refuse_what_is_not_finite(session: Session, *, at_line: bool) -> None:
    """A GPU is asked only where the run waits for it anyhow: an update that is not finite changes nothing, so nothing is lost."""
    if (at_line or session.ranks.device.type == "cpu") and int(session.optimizer.skipped) >= SKIPPED_AT_MOST:
        raise RecipeError(
            f"update {session.progress.update:,}: the gradients of the last {int(session.optimizer.skipped)} updates were not finite; "
            "their updates were skipped, and the weights are as before them",
            hint="a lower optimizer.rate, a longer optimizer.warmup or a smaller optimizer.clip; then start a new run",
        )


class _Clock:
    """When what is due. Where only the clock decides, all ranks do what the first one says, at the lines of the log."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._began = time.monotonic() - session.progress.seconds
        self._saved = self.seconds()
        self._every = session.recipe.train.evaluate_every or (
            session.updates and max(1, -(-session.updates // EVALUATIONS))
        )
        self._ended = False
        self._minutes = session.progress.seconds / 60

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def minutes(self) -> float:
        """Of the run so far; where the rate does not depend on them, nobody is asked."""
        session = self._session
        if session.recipe.train.minutes is None or session.updates is not None:
            return 0.0
        if session.ranks.world == 1 or self.line_is_due():
            self._minutes = session.ranks.agree(self.seconds() / 60)
        return self._minutes

    def line_is_due(self) -> bool:
        return self._session.progress.update % self._session.recipe.train.log_every == 0

    def over(self) -> bool:
        session = self._session
        if session.updates is not None and session.progress.update >= session.updates:
            return True
        if session.recipe.train.minutes is not None and not self._ended:
            self._ended = self._agreed(self.seconds() >= 60 * session.recipe.train.minutes)
        return self._ended

    def evaluation_is_due(self) -> bool:
        session = self._session
        if self._every:
            return session.progress.update % self._every == 0
        share = self.seconds() / (60 * (session.recipe.train.minutes or 1))
        return self._agreed(share * EVALUATIONS >= session.progress.evaluations + 1)

    def checkpoint_is_due(self) -> bool:
        session = self._session
        every = session.recipe.train.checkpoint_every
        late = self._agreed(self.seconds() - self._saved >= 60 * session.recipe.train.checkpoint_minutes)
        due = late or bool(every and session.progress.update % every == 0)
        if due:
            self._saved = self.seconds()
        return due

    def stopped(self, asked: threading.Event) -> bool:
        """Whether any rank was asked to end: all must know, since it takes all of them to save."""
        ranks = self._session.ranks
        if ranks.world == 1 or not self.line_is_due():
            return ranks.world == 1 and asked.is_set()
        return bool(ranks.sum(torch.tensor(float(asked.is_set()), device=ranks.device)))

    def _agreed(self, wanted: object) -> bool:
        ranks = self._session.ranks
        if ranks.world == 1:
            return bool(wanted)
        return bool(ranks.agree(wanted)) if self.line_is_due() else False


@contextlib.contextmanager
def _claimed(folder: Path, text: str, ranks: Ranks) -> Iterator[None]:
    """The run's folder, for this run alone. Of many ranks the first one holds it; what it finds wrong, all say."""
    with contextlib.ExitStack() as held:
        problem = None
        if ranks.first:
            try:
                with writing(folder):
                    _refuse_others(folder, text)
                    held.enter_context(_locked(folder))
                    _refuse_others(folder, text)  # which may have come meanwhile
            except ElmofireError as error:
                problem = error
        if problem := ranks.agree(problem):
            raise problem
        yield


def _refuse_others(folder: Path, text: str) -> None:
    """A folder with anything but a run of this recipe."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file", hint="choose another name for the run")
    if (folder / RECIPE_FILE).is_file():
        there = (folder / RECIPE_FILE).read_text(encoding="utf-8")
        before, now = there.splitlines(), text.splitlines()
        changed = [line for line in now if line not in before] + [f"not {line}" for line in before if line not in now]
        if there != text:
            raise DataError(
                f"{folder}: holds a run of another recipe; now {', '.join(changed[:6])}",
                hint="choose another name for the run, or give the recipe and settings it was started with",
            )
    elif folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise DataError(f"{folder}: exists and holds no training run", hint="choose another name for the run")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / LOCK).acquire(timeout=0)
    except Timeout:
        raise DataError(
            f"{folder}: another process is training there",
            hint="wait until it has ended, or choose another name for the run",
        ) from None
    with lock:
        yield


def _refuse_to_go_apart(folder: Path, checkpoint: Checkpoint | None, ranks: Ranks) -> None:
    found = checkpoint and checkpoint.update
    first = ranks.agree(found)
    if found != first:
        raise DataError(
            f"{folder}: rank {ranks.rank} finds a checkpoint of update {found} there, and the first rank one of {first}",
            hint="the folder must be the same for all machines",
        )


def _write_recipe(folder: Path, recipe: Recipe, ranks: Ranks) -> None:
    """The sign that the folder holds a run; then all ranks have read its checkpoint, whose place the next ones take."""
    ranks.wait()
    if ranks.first:
        for stray in [*folder.glob(f".{RECIPE_FILE}.*"), *folder.glob(f".{PLOT}.*")]:
            stray.unlink()
        if not (folder / RECIPE_FILE).is_file():
            with writing(folder), written_aside(folder / RECIPE_FILE) as aside:
                aside.write_text(text_of(recipe), encoding="utf-8")


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """The first Ctrl-C, or a request to end, lets the update come to its end and be saved; the second does not wait."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: object) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
