"""What every benchmark record carries, and where it is kept."""

import json
import platform
import subprocess
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def keep(name: str, **figures: object) -> None:
    """Append one record to results/NAME.jsonl and print it."""
    record = {
        "benchmark": name,
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        "machine": _machine(),
        **figures,
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(figures))


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": ordered[len(ordered) // 2], "least": ordered[0], "most": ordered[-1], "repeats": len(ordered)}


def _commit() -> str:
    """The commit, marked where the code differs from it; the records themselves do not count."""

    def git(*command: str) -> str:
        return subprocess.run(
            ["git", *command], capture_output=True, text=True, cwd=Path(__file__).parent
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "..", ":!results", ":!../docs")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("-dirty" if changed else "")


def _machine() -> str:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    import os

    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"
