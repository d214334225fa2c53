"""What `pretrain` and `finetune` say while a run goes on: the records of its log as lines for people, on stderr."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from elmofire.cli.progress import MovingLine, clock_time

Record = dict[str, Any]

settings_argument = click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
run_option = click.option("--output", "-o", required=True, metavar="RUN", help="The folder of the run.")


class RunLines:
    """A moving line in a terminal, a line a record elsewhere; of many processes only the first one speaks."""

    def __init__(self, run: str, *, quiet: bool) -> None:
        self.first = os.environ.get("RANK", "0") == "0"
        self._run = Path(run)
        self._quiet = quiet or not self.first
        self._line = MovingLine()
        self._start = _start_of(self._run)

    def __call__(self, record: Record) -> None:
        """Show a record of the log."""
        match record["kind"]:
            case "start":
                self._start = record
                self.say(*start_lines(record))
            case "train":
                if not self._quiet:
                    self._line.show(train_line(record, self._start))
            case "evaluation":
                self.say(evaluation_line(record))
            case "before":
                self.say(f"before:   {perplexities(record)}")
            case "note":
                self.say(f"note: {record['text']}")
            case _:
                pass

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Say where a run goes on, and how to go on with it should it be interrupted."""
        if reached := _reached(self._run):
            self.say(f"{self._run}: going on after update {reached:,}")
        try:
            yield
        except KeyboardInterrupt:
            self.say(f"{self._run}: the same line again goes on after update {_reached(self._run):,}")
            raise
        finally:
            self.clear()

    def say(self, *lines: str) -> None:
        """Lines that stay."""
        self.clear()
        for line in lines:
            if not self._quiet:
                click.echo(line, err=True)

    def clear(self) -> None:
        """Leave no moving line behind."""
        self._line.clear()


def start_lines(record: Record) -> list[str]:
    """What is about to be done."""
    clock = record["clock"]
    each, updates, minutes = record["updates_per_epoch"], record["updates"], record["minutes"]
    ends = [f"{updates:,} updates, {updates / each:.3g} epochs"] if updates else []
    ends += [f"{minutes:g} minutes"] if minutes else []
    lines = [
        f"model   {record['parameters']:,} parameters, and a head of {record['head']:,} words",
        f"text    {record['tokens_per_epoch']:,} tokens an epoch, in {each:,} updates",
        f"run     {' or '.join(ends)}{', whichever comes first' if len(ends) > 1 else ''}",
    ]
    if "memory_estimate" in clock:
        parts = f", updates in {record['parts']} parts" if record["parts"] > 1 else ""
        needed, limit = clock["memory_estimate"] / 1e9, clock["memory_limit"] / 1e9
        lines.append(f"memory  {needed:.1f} GB expected of {limit:.1f} GB{parts}")
    ranks = f", {clock['ranks']} processes" if clock["ranks"] > 1 else ""
    return [*lines, f"device  {clock['device']}, {record['precision']}{ranks}"]


def train_line(record: Record, start: Record | None) -> str:
    """How far the run is."""
    clock, updates, left = record["clock"], (start or {}).get("updates"), _seconds_left(record, start or {})
    loss = "not finite" if record["loss"] is None else f"{record['loss']:.2f}"
    parts = [
        f"update {record['update']:,}" + (f"/{updates:,}" if updates else ""),
        *([f"{clock_time(left)} left"] if left is not None else []),  # early: a narrow terminal cuts the line
        f"{record['softmax']} loss {loss}",
        f"{clock['tokens_per_second']:,.0f} tokens/s",
        f"{100 * clock['peak_share']:.0f}% of peak",
        f"epoch {record['epoch']:.2g}" if record["epoch"] < 1 else f"epoch {record['epoch']:.1f}",
    ]
    if record["skipped"]:
        parts.append(f"{record['skipped']:,} updates skipped, not finite")
    return " · ".join(parts)


def evaluation_line(record: Record) -> str:
    """How good the model is."""
    return f"held-out: {perplexities(record)}{', best' if record['best'] else ''}"


def perplexities(record: Record) -> str:
    """An evaluation's figures; a direction that the model lacks is left out."""
    found = [(name, record.get(name)) for name in ("forward", "backward", "mean")]
    told = [f"{name} {value:.1f}" for name, value in found if value is not None]
    return ", ".join([*told, f"unknown {100 * record['unknown']:.1f}%"])


def tell_result(run: str, lines: RunLines, *, as_json: bool, quiet: bool, **facts: Record) -> None:
    """Where the model is, what it reached and how to use it; `facts` are evaluations by name."""
    from elmofire.formats import load_weights

    if not lines.first:
        return
    training = load_weights(run).training
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
        click.echo(f"        elmofire convert {run} OUT --to hdf5")


def _start_of(run: Path) -> Record | None:
    """The record with which a run that is there already began."""
    from elmofire.train.files.log import LOG_FILE, read_log

    if not (run / LOG_FILE).is_file():
        return None
    return next((record for record in read_log(run) if record["kind"] == "start"), None)


def _reached(run: Path) -> int:
    """The update of the newest checkpoint, by its name."""
    from elmofire.train.run.loop import CHECKPOINTS

    names = [entry.name for entry in (run / CHECKPOINTS).glob("[0-9]*")]
    return max((int(found[0]) for name in names if (found := re.match(r"\d+", name))), default=0)


def _seconds_left(record: Record, start: Record) -> float | None:
    """Until the updates are made or the minutes are over, whichever comes first."""
    left: list[float] = []
    clock = record["clock"]
    if updates := start.get("updates"):
        of_an_update = record["tokens"] / record["update"] / max(clock["tokens_per_second"], 1e-9)
        left.append((updates - record["update"]) * of_an_update)
    if minutes := start.get("minutes"):
        left.append(60 * minutes - clock["seconds"])
    return max(min(left), 0.0) if left else None
