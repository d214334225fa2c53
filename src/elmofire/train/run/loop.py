"""`train`: the loop. It may be killed at any moment; the same call again goes on from the last checkpoint, and ends the same."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from elmofire.errors import RecipeError
from elmofire.formats.weights import Weights
from elmofire.recipe import text_of
from elmofire.train.corpus.reader import Corpus
from elmofire.train.files.best import keep_best
from elmofire.train.files.checkpoints import Checkpoints
from elmofire.train.files.log import perplexity, read_log
from elmofire.train.run.clock import Clock
from elmofire.train.run.evaluate import Evaluation, averaged, evaluate
from elmofire.train.run.folder import claimed, refuse_to_go_apart, write_recipe
from elmofire.train.run.memory import shortage_told
from elmofire.train.run.ranks import joined
from elmofire.train.run.records import PLOT, Records, write_plot, writing
from elmofire.train.run.session import Session, suited
from elmofire.train.run.switches import switches_put_back
from elmofire.train.settings import Recipe
from elmofire.train.step.stepper import seed_dropout
from elmofire.train.stream.feed import Feed

CHECKPOINTS = "checkpoints"
SKIPPED_AT_MOST = 10  # updates in a row whose gradients are not finite, before the run is given up
WORSE_AT_MOST = 10.0  # times the best held-out perplexity: a run that was seen so far off never came back
RISEN = 1.0  # nats of the training loss that are no chance: then it has diverged


def train(
    recipe: Recipe,
    *,
    data: Path | str,
    output: Path | str,
    device: str = "auto",
    start: Weights | None = None,
    show: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Path:
    """Train a model on a prepared corpus; the folder of the run, which loads as a model.

    `start` is a model to go on with, whose head has the corpus's vocabulary: how well it predicts the held-out text is told as the
    record "before", and it is kept until there is a better one. `show` is called with every record of the log, and with short ones that
    the log does not have: "resumed" or "ended" for a run that was there already, "evaluating" before each evaluation, "made" now and
    then between the log's lines, "stopping" when a run that was interrupted will end. Processes that `torchrun` has started share the
    work.
    """
    corpus, folder = Corpus.open(data), Path(output)
    corpus.verify()
    with joined(device) as ranks, switches_put_back(ranks.device), shortage_told(ranks.device):
        recipe, notes = suited(recipe, corpus, fine_tuned=start is not None)
        with claimed(folder, text_of(recipe), ranks):
            checkpoints = Checkpoints(folder / CHECKPOINTS)
            checkpoint = checkpoints.newest()
            refuse_to_go_apart(folder, checkpoint, ranks)
            session = Session(recipe, corpus, ranks, start=start, before=checkpoint and checkpoint.facts)
            with contextlib.closing(session.stepper):
                resumed = checkpoint is not None
                if checkpoint is not None:
                    session.load(checkpoint, folder)
                del checkpoint  # its file is mapped, and will be removed
                write_recipe(
                    folder, recipe, ranks
                )  # not before: what was refused so far may be mended and started again
                _run(session, checkpoints, folder, show, notes, start, resumed=resumed)
    return folder


def _run(
    session: Session,
    checkpoints: Checkpoints,
    folder: Path,
    show: Callable[[dict[str, Any]], None],
    notes: list[str],
    start: Weights | None,
    *,
    resumed: bool,
) -> None:
    """From where the session is to the end, if it is not there yet."""
    clock, first = Clock(session), session.ranks.first
    made_before = clock.over()
    if made_before:
        if first:
            show({"update": session.progress.update, "kind": "ended"})
            if not (folder / PLOT).exists():
                write_plot(folder)
        return
    try:
        with Records(folder, session, show, resumed=resumed) as records:
            if resumed:
                records.say("resumed", updates=session.updates, minutes=session.recipe.train.minutes)
            else:
                records.start(notes, evaluate_every=clock.evaluate_every)
                if start is not None:
                    _evaluate_start(session, start, records, folder)
            _make_updates(session, clock, checkpoints, records, folder)
    except RecipeError:
        if first:  # how far it came shows why
            write_plot(folder)
        raise
    if first:
        write_plot(folder)


def _make_updates(session: Session, clock: Clock, checkpoints: Checkpoints, records: Records, folder: Path) -> None:
    over = False
    with (
        _interrupts(lambda: records.say("stopping")) as interrupted,
        Feed(session.stream, session.progress.position) as feed,
    ):
        while not over:
            update = next(feed)
            rate = session.schedule.rate(update.number, clock.minutes())
            session.stepper(update, rate)
            session.made(update)
            over = clock.over()  # asked once: what follows takes time, and the run's last minute may pass meanwhile
            if clock.line_is_due() or over:
                records.train(update, rate, feed.waited)
            elif clock.silence_is_long():
                records.say("made")
            _refuse_what_is_not_finite(session, at_line=clock.line_is_due())
            due = clock.evaluation_is_due()
            if due or over:
                _evaluate(session, records, folder, due=due)
            stopped = clock.stopped(interrupted)
            if clock.checkpoint_is_due() or over or stopped:
                session.progress.seconds = clock.seconds()
                with writing(folder):
                    session.save(checkpoints)
            if stopped:
                raise KeyboardInterrupt
    if session.updates is not None and session.progress.update < session.updates:
        of = f"{session.progress.update:,} of {session.updates:,} updates"
        records.note(
            f"ended by train.minutes={session.recipe.train.minutes:g}, after {of}; run the same command again with more minutes, "
            "or minutes=none, to go on"
        )


def _evaluate(session: Session, records: Records, folder: Path, *, due: bool) -> None:
    """Perplexity of the held-out text, and the model kept if it is the best so far. Without such text the last model is the best.

    One that was not due is made because the run's minutes are over: should it go on with more of them, its rate knows nothing of it.
    """
    progress, began = session.progress, time.monotonic()
    progress.evaluations += 1
    with averaged(session.parameters, session.optimizer):
        found = _evaluation(session, records)
        better = found is None or progress.best is None or found.mean < progress.best
        if found is not None:
            if due:
                session.schedule.evaluated(found.mean)
            if better and math.isfinite(found.mean):  # with anything else, nothing could be better later
                progress.best = found.mean
        if better and session.ranks.first:
            training = {**session.facts(), **({"held_out": found.record} if found else {})}
            with writing(folder):
                keep_best(folder, progress.update, session.weights(training))
    if found is not None:
        records.evaluation("evaluation", found, time.monotonic() - began, best=better)
        _refuse_what_has_diverged(session, found, folder)


def _evaluate_start(session: Session, start: Weights, records: Records, folder: Path) -> None:
    """The model that a run goes on with, in the same way; it is no evaluation of the run's own."""
    # As an update does: what dropout does to the layers is told too.
    seed_dropout(session.ranks.device, session.recipe.train.seed)
    began, found = time.monotonic(), _evaluation(session, records)
    if found is None:
        return
    if math.isfinite(found.mean):
        session.progress.best = found.mean
    if session.ranks.first:
        with writing(folder):
            training = {**start.training, "update": 0, "held_out": found.record}
            keep_best(folder, 0, replace(start, training=training), before=found.record)
    records.evaluation("before", found, time.monotonic() - began)


def _evaluation(session: Session, records: Records) -> Evaluation | None:
    if session.held_out is None:
        return None
    records.say("evaluating")
    return evaluate(session.loss, session.corpus, session.held_out, session.recipe, session.ranks)


def _refuse_what_is_not_finite(session: Session, *, at_line: bool) -> None:
    """A GPU is asked only where the run waits for it anyhow: an update that is not finite changes nothing, so nothing is lost."""
    if (at_line or session.ranks.device.type == "cpu") and int(session.optimizer.skipped) >= SKIPPED_AT_MOST:
        raise RecipeError(
            f"update {session.progress.update:,}: the gradients of the last {int(session.optimizer.skipped)} updates were not finite; "
            "their updates were skipped, and the weights are as before them",
            hint="a lower optimizer.rate, a longer optimizer.warmup or a smaller optimizer.clip; then start a new run",
        )


def _refuse_what_has_diverged(session: Session, found: Evaluation, folder: Path) -> None:
    """One bad update at a high rate can break a model for good, with gradients that stay finite.

    A text that is learned by heart also makes the held-out one worse and worse, but its own loss falls: such a run goes on.
    """
    best, ranks = session.progress.best, session.ranks
    if best is None or found.mean <= WORSE_AT_MOST * best:
        return
    if ranks.agree(not math.isfinite(found.mean) or (ranks.first and _training_loss_rose(folder))):
        raise RecipeError(
            f"update {session.progress.update:,}: the held-out perplexity is {perplexity(found.mean)}, and was {perplexity(best)} before: "
            "the run has diverged; its best model is kept",
            hint=f"start a new run with a lower optimizer.rate than {session.recipe.optimizer.rate:g}, or a smaller optimizer.clip",
        )


def _training_loss_rose(folder: Path) -> bool:
    """Since the evaluation of the model that is the best so far, by the lines of the log."""
    log = read_log(folder)
    best_at = max((record["update"] for record in log if record.get("best")), default=0)
    losses = {record["update"]: record["loss"] for record in log if record["kind"] == "train"}
    before = [loss for update, loss in losses.items() if update <= best_at and loss is not None]
    now = next(reversed(losses.values()), None)
    return bool(before) and (now is None or now > before[-1] + RISEN)


@contextlib.contextmanager
def _interrupts(heard: Callable[[], None]) -> Iterator[threading.Event]:
    """The first Ctrl-C, or a request to end, is heard, and lets the update come to its end and be saved; the second does not wait."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    # A thread of its own: this one may be in the middle of writing a line.
    speaker = threading.Thread(target=heard, daemon=True)
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: object) -> None:
        if not asked.is_set():
            asked.set()
            speaker.start()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if asked.is_set():
            speaker.join()
