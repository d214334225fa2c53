"""What a run says while it goes on: the log, TensorBoard's events, whoever watches; and a plot at the end."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from elmofire.errors import DataError
from elmofire.formats.files import written_aside
from elmofire.train.cost import Text, flops_per_token, hours_on_cpu
from elmofire.train.files.events import EventWriter, scalars
from elmofire.train.files.log import RunLog, read_log
from elmofire.train.files.plot import plot_run
from elmofire.train.run.evaluate import Evaluation
from elmofire.train.run.session import Session
from elmofire.train.stream.batch import Update

PLOT, EVENTS = "run.svg", "events"
_COMPUTED_IN_VAIN = 1.5  # times the rows of updates: from there on it is told


class Records:
    """Writes records; of many ranks the first one does, but all must come."""

    def __init__(
        self, folder: Path, session: Session, show: Callable[[dict[str, Any]], None], *, resumed: bool
    ) -> None:
        self._folder, self._session, self._show = folder, session, show
        self._log = self._events = None
        if session.ranks.first:
            at = session.progress.update if resumed else None
            with writing(folder):
                self._log = RunLog(folder, at)
                self._events = EventWriter(folder / EVENTS, resume_at=at)
        self._peak = matrix_rate(session.ranks.device, session.precision)
        self._start = self._began = time.monotonic()
        self._before = session.progress.seconds
        self._tokens_before, self._waited = session.progress.tokens, 0.0

    def __enter__(self) -> "Records":
        return self

    def __exit__(self, *_: object) -> None:
        if self._log is not None and self._events is not None:
            self._log.close()
            self._events.close()

    def say(self, kind: str, **facts: Any) -> None:
        """What only those who watch want to know: the log has no such record."""
        if self._log is not None:
            self._show({"update": self._session.progress.update, "kind": kind, **facts})

    def start(self, notes: list[str], *, evaluate_every: int | None) -> None:
        """What is about to be done."""
        session = self._session
        warmup = session.recipe.optimizer.warmup
        if session.updates is not None and warmup > session.updates:
            of = f"optimizer.warmup={warmup:,} updates, but the run has {session.updates:,}"
            notes = [*notes, f"{of}: the rate never rises to the {session.recipe.optimizer.rate:g} of the recipe"]
        if (computed := session.stream.computed) > _COMPUTED_IN_VAIN:
            parts = f"{session.fit.parts} parts" + (
                f" on {session.ranks.world} processes" if session.ranks.world > 1 else ""
            )
            notes = [
                *notes,
                f"{computed:.1f} times the tokens of an update are computed, as {parts} are filled up with empty rows",
            ]
        if session.held_out is None:
            notes = [*notes, "the corpus has no held-out text, so the last model will be kept, whatever it is worth"]
        for note in notes:
            self._write("note", text=note)
        self._write(
            "start",
            parameters=session.bilm.config.parameters,
            head=session.bilm.config.head,
            tokens_per_epoch=session.stream.tokens_per_epoch,
            updates_per_epoch=session.stream.updates_per_epoch,
            updates=session.updates,
            minutes=session.recipe.train.minutes,
            evaluate_every=evaluate_every,
            precision=session.precision,
            parts=session.fit.parts,
            clock={
                "device": str(session.ranks.device),
                "ranks": session.ranks.world,
                **session.fit.record,
                **self._expected(),
            },
        )

    def _expected(self) -> dict[str, float]:
        """How long it will take where that may be much longer than thought."""
        session = self._session
        if session.ranks.device.type != "cpu":
            return {}
        text = Text("", session.stream.tokens_per_epoch, session.bilm.config.head)
        return {"hours_expected": hours_on_cpu(session.recipe, text, self._peak * session.ranks.world)}

    def note(self, text: str) -> None:
        self._write("note", text=text)

    def train(self, update: Update, rate: float, waited: float) -> None:
        """The loss since the last line, of the updates where it is finite: NaN, where it is in none."""
        session, stepper, progress = self._session, self._session.stepper, self._session.progress
        sums = session.ranks.sum(torch.stack([stepper.losses, stepper.tokens.double()]))
        losses, counts = sums.tolist()  # here the run waits for the GPU
        stepper.losses.zero_()
        stepper.tokens.zero_()
        now = time.monotonic()
        seconds, tokens = now - self._began, progress.tokens - self._tokens_before
        each = [total / count if count else math.nan for total, count in zip(losses, counts, strict=True)]
        speed = tokens / max(seconds, 1e-9)
        words = sum(len(batch.words) for batch in update.parts)
        flops = flops_per_token(
            session.bilm.config,
            session.recipe.loss,
            vocabulary=session.bilm.config.head,
            distinct=words * session.ranks.world / update.tokens[0],
        ).total
        self._write(
            "train",
            loss=sum(each) / len(each),
            **dict(zip(session.bilm.config.directions, each, strict=True)),
            softmax=session.recipe.loss.softmax,
            rate=rate,
            norm=float(stepper.norm),
            skipped=int(stepper.skipped),
            epoch=update.epoch,
            tokens=progress.tokens,
            clock={
                "seconds": self._before + now - self._start,
                "tokens_per_second": speed,
                "peak_share": speed * flops / self._peak / session.ranks.world,
                "waited": (waited - self._waited) / max(seconds, 1e-9),
            },
        )
        self._began, self._tokens_before, self._waited = now, progress.tokens, waited

    def evaluation(self, kind: str, found: Evaluation, seconds: float, **facts: bool) -> None:
        self._write(kind, **found.record, **facts, clock={"seconds": seconds})
        self._began += seconds  # no time of training

    def _write(self, kind: str, **facts: Any) -> None:
        if self._log is None or self._events is None:
            return
        with writing(self._folder):
            record = self._log.write(kind, self._session.progress.update, **facts)
            if points := scalars(record):
                self._events.add(record["update"], points)
        self._show(record)


def write_plot(folder: Path) -> None:
    """Of all that the log says."""
    with writing(folder), written_aside(folder / PLOT) as aside:
        aside.write_text(plot_run(read_log(folder)), encoding="utf-8")


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What the disk says, a full one for instance, in one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}",
            hint="what was saved before is whole: with that mended, the same command resumes from there",
        ) from error


def matrix_rate(device: torch.device, precision: str) -> float:
    """Operations a second of one large product here: what the hardware can do, with which the run is compared."""
    size = 4096 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds: list[float] = []
    for _ in range(8):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds[1:])
