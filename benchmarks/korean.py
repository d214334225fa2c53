"""The worked example in Korean, docs/train-your-own.md: its commands are run as they stand there, and the page shows what they said.

Run, in a folder that holds the page's files:
  python benchmarks/korean.py run LOG [WORD...]  the page's commands (those with one of the WORDs in them); records are appended to LOG
  python benchmarks/korean.py page               put what results/korean.jsonl has of each command beneath it on the page
  python benchmarks/korean.py page --check       only say where the page differs
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/train-your-own.md"
RESULTS = ROOT / "benchmarks/results/korean.jsonl"
# A command, and beneath it, where the page shows it, what it said.
BLOCK = re.compile(r"```sh\n(?P<command>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", flags=re.DOTALL)
PROGRESS = re.compile(r"update [\d,]+|[\d,]+ sentences, ")


def commands(page: str) -> list[str]:
    """What the page tells to type, block by block."""
    return [found["command"] for found in BLOCK.finditer(page)]


def run(log: Path, words: list[str]) -> int:
    """Run them one after the other; the exit code of the first that fails."""
    for command in commands(PAGE.read_text(encoding="utf-8")):
        if words and not any(word in command for word in words):
            continue
        print(f"$ {command}", end="", flush=True)
        began, lines = time.perf_counter(), []
        with subprocess.Popen(["bash", "-e", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as said:
            for line in said.stdout or ():
                lines.append(line.decode(errors="replace"))
                print(lines[-1], end="", flush=True)
        seconds = round(time.perf_counter() - began, 1)
        print(f"[exit {said.returncode} after {seconds} s]\n", flush=True)
        if said.returncode:
            return said.returncode
        record = {"benchmark": "korean", **_about(), "command": command, "seconds": seconds, "output": shown(lines)}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return 0


def shown(lines: list[str]) -> str:
    """What was said, but of the lines that only tell how far it is just the first two and the last."""
    dropped = [number for number, line in enumerate(lines) if PROGRESS.match(line)][2:-1]
    kept = {number: line for number, line in enumerate(lines) if number not in set(dropped[1:])}
    return "".join("...\n" if number in dropped else line for number, line in kept.items())


def newest() -> dict[str, dict]:
    """The last record of each command."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {record["command"]: record for record in map(json.loads, lines)}


def beneath(record: dict) -> str:
    """What the page shows of a record: where it is long enough to matter also how long it took, and on what."""
    if not re.match("elmofire (prepare|pretrain) ", record["command"]):
        return record["output"]
    gpu = re.match("(NVIDIA .*), torch", record["device"])
    return f"{record['output']}[{record['seconds'] / 60:.1f} minutes, {gpu[1] if gpu else record['machine']}]\n"


def differences(page: str, records: dict[str, dict]) -> list[str]:
    """Commands beneath which the page shows anything but what is recorded."""
    return [
        found["command"]
        for found in BLOCK.finditer(page)
        if found["output"] is not None
        and (found["command"] not in records or beneath(records[found["command"]]) != found["output"])
    ]


def filled(page: str, records: dict[str, dict]) -> str:
    """The page with what is recorded beneath its commands."""

    def fill(found: re.Match[str]) -> str:
        command, output = found["command"], found["output"]
        if output is None or command not in records:
            return found[0]
        return f"```sh\n{command}```\n\n```text\n{beneath(records[command])}```\n"

    return BLOCK.sub(fill, page)


def _about() -> dict[str, str]:
    import torch
    from records import _machine, commit

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": _machine(),
        "device": f"{gpu or 'CPU'}, torch {torch.__version__}",
    }


def main(verb: str, *arguments: str) -> int:
    if verb == "run":
        return run(Path(arguments[0]), list(arguments[1:]))
    page = PAGE.read_text(encoding="utf-8")
    if "--check" not in arguments:
        page = filled(page, newest())
        PAGE.write_text(page, encoding="utf-8")
    wrong = differences(page, newest())
    for command in wrong:
        print(f"not as recorded, or not recorded at all: {command}", end="")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
