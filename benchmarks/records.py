"""What every benchmark record carries, and where it is kept."""

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from elmofire.bench.timing import spread
from elmofire.errors import ElmofireError

__all__ = ["commit", "errors_in_one_line", "keep", "spread"]

RESULTS = Path(__file__).parent / "results"


def keep(name: str, **figures: object) -> None:
    """Append one record to results/NAME.jsonl and print it."""
    record = {
        "benchmark": name,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": _machine(),
        **figures,
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(figures))


def commit() -> str:
    """The commit, marked where the code differs from it; the records themselves do not count.

    A copy of the tree without its history is told by ELMOFIRE_COMMIT which commit it is of.
    """

    def git(*command: str) -> str:
        return subprocess.run(
            ["git", *command], capture_output=True, text=True, cwd=Path(__file__).parent
        ).stdout.strip()

    if told := os.environ.get("ELMOFIRE_COMMIT"):
        return told
    changed = git("status", "--porcelain", "--", "..", ":!results", ":!../docs")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("-dirty" if changed else "")


def _machine() -> str:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """What users can mend ends the command without a traceback."""
    try:
        yield
    except ElmofireError as error:
        sys.exit(f"error: {error}")
