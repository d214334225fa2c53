"""log.jsonl: what happened in a run, one JSON object a line.

{"update": 100, "kind": "train", "loss": 5.1, "softmax": "sampled", "rate": 0.001, "clock": {"tokens_per_second": 9000.0}}
{"update": 500, "kind": "evaluation", "forward": 81.2, "backward": 84.0, "mean": 82.6}

`update` is how many updates were made. What depends on the clock stands under `clock`: all else is the same in a run that was killed
and resumed as in one that was not.
"""

import json
import math
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from elmofire.errors import DataError
from elmofire.formats.files import written_aside

LOG_FILE = "log.jsonl"


class RunLog:
    """Appends to the log of a run; each record is there when `write` returns.

    A run that goes on from a checkpoint gives its update as `resume_at`: records of later updates are dropped, as they will come again.
    So what belongs to an update is written before its checkpoint. None begins the log anew.
    """

    def __init__(self, run: str | os.PathLike[str], resume_at: int | None) -> None:
        path = Path(run) / LOG_FILE
        for stray in list(path.parent.glob(f".{LOG_FILE}.*")):
            stray.unlink()
        kept: list[bytes] = []
        if resume_at is not None and path.exists():
            kept = [line for line, record in _lines(path) if record["update"] <= resume_at]
        with written_aside(path) as aside:
            aside.write_bytes(b"".join(kept))
        self._file = open_to_append(path)

    def write(self, kind: str, update: int, *, clock: Mapping[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
        """Append a record and give it back. Numbers that are not finite become null, which JSON knows."""
        record = {"update": update, "kind": kind, **facts, **({"clock": dict(clock)} if clock else {})}
        record = _finite(record)
        append_whole(self._file, json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        return record

    def close(self) -> None:
        self._file.close()


def open_to_append(path: Path) -> FileIO:
    """Unbuffered: each record is one write, so that what is torn by a kill is at most the last one."""
    return path.open("ab", buffering=0)


def append_whole(file: FileIO, record: bytes) -> None:
    """All of a record or none of it: a disk that is full takes a part of one without an error."""
    before = os.fstat(file.fileno()).st_size
    try:
        written = file.write(record)
        while written < len(record):
            written += file.write(record[written:])
    except OSError:
        os.ftruncate(file.fileno(), before)
        raise


def read_log(run: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a run, in their order, also while it goes on."""
    path = Path(run) / LOG_FILE
    if not path.exists():
        raise DataError(f"{run}: has no {LOG_FILE}", hint="name the folder that a training run writes to")
    return [record for _, record in _lines(path)]


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Whole lines and what they hold; a last one without its end was torn by a kill, and is left out."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("update"), int):
            raise DataError(f"{path}:{number}: is no record of a run", hint="remove the line, and the rest can be read")
        found.append((line, record))
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def perplexity(value: float) -> str:
    """As people read it: with one decimal, and no row of digits where a model has gone astray.

    >>> perplexity(82.534), perplexity(1.25e45)
    ('82.5', '1.2e+45')
    """
    return f"{value:,.1f}" if value < 1e7 else f"{value:.1e}"
