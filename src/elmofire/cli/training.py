"""What `pretrain` and `finetune` say while a run goes on: the records of its log as lines for people, on stderr."""

import contextlib
import difflib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from elmofire.terminal import MovingLine, clock_time, counted

Record = dict[str, Any]

LONG_HOURS = 3  # the time of a longer run is told before it starts
_CHECKPOINTS = "checkpoints"  # as `train.run.loop` names it: Ctrl-C may have left torch half imported, which cannot be imported again


class WithSettings(click.Command):
    """A command whose settings are KEY=VALUE. A setting written as an option is an error that says so."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if difflib.get_close_matches(error.option_name, error.possibilities or (), cutoff=0.8):
                raise  # as a misspelled option
            key = error.option_name.lstrip("-").replace("-", "_")
            told = f"{error.message.rstrip('.')}. Settings are given without dashes: {key}=VALUE."
            raise click.UsageError(told, ctx) from None


settings_argument = click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
run_option = click.option("--output", "-o", required=True, metavar="RUN", help="The folder of the run.")


class RunLines:
    """A moving line in a terminal, elsewhere a line for each record. Of many processes only the first prints any."""

    def __init__(self, run: str, *, quiet: bool) -> None:
        self.first = os.environ.get("RANK", "0") == "0"
        self._run = Path(run).expanduser()  # shells leave the ~ of --output=~/run to the program
        self._line = MovingLine(quiet=quiet or not self.first)
        self._start, self._evaluation = _told_before(self._run)
        self._figures = ""  # of the last line

    def __call__(self, record: Record) -> None:
        """Show a record of the log."""
        match record["kind"]:
            case "start":
                self._start, self._evaluation = record, None
                self.say(*start_lines(record))
            case "resumed":
                # Minutes may be others than at the start.
                self._start = {**(self._start or {}), "updates": record["updates"], "minutes": record["minutes"]}
                self.say(f"{self._run}: going on after update {record['update']:,}")
            case "ended":
                self.say(f"{self._run}: has already ended, after update {record['update']:,}")
            case "train":
                self._figures = train_line(record, self._start, self._evaluation).partition(" · ")[2]
                self._line.show(" · ".join([update_of(record, self._start), self._figures]))
            case "made":
                if self._line.terminal:
                    figures = self._figures or "figures follow"
                    self._line.show(" · ".join([update_of(record, self._start), figures]))
            case "stopping":
                self.say("finishing this update and saving it; Ctrl-C again drops it")
            case "evaluating":
                self._line.show(evaluating_line(record, self._evaluation))
            case "evaluation":
                self._evaluation = record
                self.say(evaluation_line(record))
            case "before":
                self._evaluation = record
                self.say(f"before:   {perplexities(record)}")
            case "note":
                self.say(f"note: {record['text']}")
            case _:
                pass

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Say how to resume the run if it is interrupted, once there is something to resume."""
        try:
            yield
        except KeyboardInterrupt:
            if reached := _reached(self._run):
                self.say(f"{self._run}: run the same command again to resume after update {reached:,}")
            raise
        finally:
            self.clear()

    def say(self, *lines: str) -> None:
        """Lines that stay."""
        self._line.say(*lines)

    def clear(self) -> None:
        """Leave no moving line behind."""
        self._line.clear()


def start_lines(record: Record) -> list[str]:
    """What is about to be done."""
    clock = record["clock"]
    each, updates, minutes = record["updates_per_epoch"], record["updates"], record["minutes"]
    ends = (
        [f"{counted(updates, 'update')}, {updates / each:.3g} epoch{'' if updates == each else 's'}"] if updates else []
    )
    ends += [f"{minutes:g} minute{'' if minutes == 1 else 's'}"] if minutes else []
    lines = [
        f"model   {record['parameters']:,} parameters, and a head of {counted(record['head'], 'word')}",
        f"text    {counted(record['tokens_per_epoch'], 'token')} an epoch, in {counted(each, 'update')}",
        f"run     {' or '.join(ends)}{', whichever comes first' if len(ends) > 1 else ''}",
    ]
    if "memory_estimate" in clock:
        parts = f", updates in {record['parts']} parts" if record["parts"] > 1 else ""
        needed, limit = clock["memory_estimate"] / 1e9, clock["memory_limit"] / 1e9
        lines.append(f"memory  {needed:.1f} GB expected of {limit:.1f} GB{parts}")
    if (hours := clock.get("hours_expected", 0.0)) > LONG_HOURS:
        long = f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:,.0f} days"
        lines.append(f"time    about {long} on this machine; `elmofire recipes` tells what a GPU would take")
    ranks = f", {clock['ranks']} processes" if clock["ranks"] > 1 else ""
    return [*lines, f"device  {clock['device']}, {record['precision']}{ranks}"]


def update_of(record: Record, start: Record | None) -> str:
    updates = (start or {}).get("updates")
    return f"update {record['update']:,}" + (f"/{updates:,}" if updates else "")


def train_line(record: Record, start: Record | None, evaluation: Record | None = None) -> str:
    """How far the run is; `evaluation` is the last one, which tells how long the others will take."""
    clock, left = record["clock"], _seconds_left(record, start or {}, evaluation)
    loss = "not finite" if record["loss"] is None else f"{record['loss']:.2f}"
    parts = [
        update_of(record, start),
        *([f"{clock_time(left)} left"] if left is not None else []),  # early: a narrow terminal cuts the line
        f"{record['softmax']} loss {loss}",
        f"{clock['tokens_per_second']:,.0f} tokens/s",
        f"{min(100 * clock['peak_share'], 100):.0f}% of peak",  # measured at the start, on a machine that may have been busy
        f"epoch {record['epoch']:.2g}" if record["epoch"] < 1 else f"epoch {record['epoch']:.1f}",
    ]
    if record["skipped"]:
        parts.append(f"{counted(record['skipped'], 'update')} skipped, not finite")
    return " · ".join(parts)


def evaluating_line(record: Record, last: Record | None) -> str:
    """What it is busy with, and for how long."""
    long = f" · about {clock_time(last['clock']['seconds'])}" if last and last["clock"]["seconds"] >= 1 else ""
    return f"evaluating after update {record['update']:,}{long}"


def evaluation_line(record: Record) -> str:
    """How good the model is."""
    return f"held-out: {perplexities(record)}{', best' if record['best'] else ''}"


def perplexities(record: Record) -> str:
    """An evaluation's figures; a direction that the model lacks is left out."""
    from elmofire.train.files.log import perplexity

    found = [(name, record.get(name)) for name in ("forward", "backward", "mean")]
    told = [f"{name} {perplexity(value)}" for name, value in found if value is not None]
    return ", ".join([*told, f"unknown {100 * record['unknown']:.1f}%"])


def tell_result(run: str, lines: RunLines, *, as_json: bool, quiet: bool, **facts: Record) -> None:
    """Where the model is, what it reached and how to use it; `facts` are evaluations by name."""
    from elmofire.formats import load_weights
    from elmofire.formats.published.hdf5_2018 import beyond_the_format

    if not lines.first:
        return
    weights = load_weights(run)
    training = weights.training
    update, held_out = training.get("update", 0), training.get("held_out")
    if as_json:
        click.echo(json.dumps({"run": run, "best": {"update": update, "held_out": held_out}, **facts}))
        return
    for name, record in facts.items():
        click.echo(f"{name:<8}{perplexities(record)}")
    reached = f", {perplexities(held_out)}" if held_out and not facts else ""
    click.echo(f"model   {run}: that of update {update:,}{reached}")
    if not quiet:
        click.echo(f"plot    {Path(run) / 'run.svg'}")
        click.echo(f"use it  elmofire perplexity --model {run} FILE")
        click.echo(f"        elmofire embed --model {run} --output vectors.hdf5 FILE")
        click.echo(
            f"        elmofire convert {run} OUT --to {'native' if beyond_the_format(weights.config) else 'hdf5'}"
        )


def _told_before(run: Path) -> tuple[Record | None, Record | None]:
    """Of a run that is there already: the record with which it began, and its last evaluation."""
    from elmofire.train.files.log import LOG_FILE, read_log

    log = read_log(run) if (run / LOG_FILE).is_file() else []
    start = next((record for record in log if record["kind"] == "start"), None)
    return start, next((record for record in reversed(log) if record["kind"] in ("evaluation", "before")), None)


def _reached(run: Path) -> int:
    """The update of the newest checkpoint, by its name; 0 where there is none."""
    names = [entry.name for entry in (run / _CHECKPOINTS).glob("[0-9]*")]
    return max((int(found[0]) for name in names if (found := re.match(r"\d+", name))), default=0)


def _seconds_left(record: Record, start: Record, evaluation: Record | None) -> float | None:
    """Until the updates and their evaluations are made or the minutes are over, whichever comes first, and the last evaluation too."""
    left: list[float] = []
    clock, update = record["clock"], record["update"]
    of_an_evaluation = evaluation["clock"]["seconds"] if evaluation else 0.0
    if updates := start.get("updates"):
        of_an_update = record["tokens"] / update / max(clock["tokens_per_second"], 1e-9)
        every = start.get("evaluate_every") or updates
        before_the_last = (updates - 1) // every - (update - 1) // every  # that of this update, if any, is yet to come
        left.append((updates - update) * of_an_update + before_the_last * of_an_evaluation)
    if minutes := start.get("minutes"):
        left.append(max(60 * minutes - clock["seconds"], 0.0))
    return min(left) + of_an_evaluation if left else None
