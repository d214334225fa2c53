"""Writers that are killed, in a process of their own that imports torch once and forks them.

A program that runs here has `act(folder)`, which writes, and `check(folder, killed)`, which looks at what is left.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "open"}


def run(program: str) -> str:
    """Run a program that uses this module, and give back what it prints."""
    source = f"import sys, warnings; sys.path.insert(0, {str(TESTS)!r}); warnings.simplefilter('error', UserWarning)\n{program}"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def kill_at_every_step(prepare, act, check) -> int:
    """Kill `act` before its first change of a file or folder, its second, and so on; how many there were."""
    for steps in range(10_000):
        with folder_in_memory() as folder:
            prepare(folder)
            child = os.fork()
            if child == 0:
                _exit_after(steps)
                act(folder)
                os._exit(0)
            killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
            check(folder, killed)
            if not killed:
                return steps
    raise AssertionError("act does not end")


def kill_at_random(act, check, *, kills: int) -> None:
    """Kill `act`, which saves without end, again and again in one folder: each time after one save, somewhere in the next ones."""
    rng = random.Random(7)
    with folder_in_memory() as folder:
        for _ in range(kills):
            before, start = _numbered(folder), time.monotonic()
            child = os.fork()
            if child == 0:
                act(folder)
                os._exit(0)
            while _numbered(folder) == before:
                time.sleep(0.0005)
            time.sleep(rng.uniform(0, 2) * (time.monotonic() - start))
            os.kill(child, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
            check(folder, True)


def _numbered(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.isdigit())


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Where the system has such folders: a disk takes its time to be sure of what it has."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def _exit_after(steps: int) -> None:
    left = [steps]

    def hook(event: str, arguments: tuple) -> None:
        if event in CHANGES and (event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            if not left[0]:
                os._exit(1)
            left[0] -= 1

    sys.addaudithook(hook)
