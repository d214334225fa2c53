"""The worked example in Korean, docs/train-your-own.md: its commands are run as they stand there, and the page shows what they said.

Run, in a folder that holds the page's files:
  python benchmarks/korean.py run LOG [WORD...]   the page's commands, or those with one of the WORDs in them, and what they say, in LOG
  python benchmarks/korean.py keep LOG...         append that to results/korean.jsonl
  python benchmarks/korean.py page                put the newest record of each command beneath it on the page (--check: only compare)
"""

import json
import os
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


def commands(page: str) -> list[str]:
    """What the page tells to type, block by block."""
    return [found["command"] for found in BLOCK.finditer(page)]


def run(log: Path, words: list[str]) -> int:
    """Run them one after the other; the exit code of the first one that fails."""
    sys.path.insert(0, str(Path(__file__).parent))
    from records import _commit, _machine

    about = {"commit": _commit(), "machine": _machine(), "device": _device()}
    for command in commands(PAGE.read_text(encoding="utf-8")):
        if words and not any(word in command for word in words):
            continue
        print(f"$ {command}", end="", flush=True)
        began = time.perf_counter()
        done = subprocess.run(["bash", "-e", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        seconds = round(time.perf_counter() - began, 1)
        output = done.stdout.decode(errors="replace")
        record = {"command": command, "exit": done.returncode, "seconds": seconds, "output": output}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"date": time.strftime("%Y-%m-%d"), **about, **record}, ensure_ascii=False) + "\n")
        print(f"{output}[{seconds} s, exit {done.returncode}]\n", flush=True)
        if done.returncode:
            return done.returncode
    return 0


def keep(logs: list[Path]) -> None:
    """What went well; of a long run's progress only the lines that the page shows."""
    with RESULTS.open("a", encoding="utf-8") as file:
        for log in logs:
            for line in log.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                if record["exit"] == 0:
                    record = {"benchmark": "korean", **record, "output": shown(record["output"])}
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")


def newest() -> dict[str, dict]:
    """The last record of each command."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {record["command"]: record for record in map(json.loads, lines)}


def shown(output: str) -> str:
    """Without the lines that only say how far it is, the first two and the last of each kind aside."""
    lines = output.splitlines(keepends=True)
    progress = [number for number, line in enumerate(lines) if re.match(r"update [\d,]+|[\d,]+ sentences, ", line)]
    dropped = progress[2:-1]
    marked = {dropped[0]} if dropped else set()
    kept = ("...\n" if number in marked else line for number, line in enumerate(lines) if number not in dropped[1:])
    return "".join(kept)


def filled(page: str, records: dict[str, dict]) -> str:
    """The page with the recorded output under each command that shows one."""

    def fill(found: re.Match[str]) -> str:
        if found["output"] is None or found["command"] not in records:
            return found[0]
        return f"```sh\n{found['command']}```\n\n```text\n{records[found['command']]['output']}```\n"

    return BLOCK.sub(fill, page)


def unrecorded(page: str, records: dict[str, dict]) -> list[str]:
    """Commands whose output the page shows, but which were never run so."""
    return [found["command"] for found in BLOCK.finditer(page) if found["output"] and found["command"] not in records]


def _device() -> str:
    import torch

    kind = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return f"{kind}, torch {torch.__version__}"


def main(verb: str, *arguments: str) -> int:
    if verb == "run":
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
        return run(Path(arguments[0]), list(arguments[1:]))
    if verb == "keep":
        keep([Path(log) for log in arguments])
        return 0
    page = PAGE.read_text(encoding="utf-8")
    current = filled(page, newest())
    for command in unrecorded(page, newest()):
        print(f"no record of: {command}", end="")
    if "--check" not in arguments:
        PAGE.write_text(current, encoding="utf-8")
    return int(page != current or bool(unrecorded(page, newest()))) if "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
