"""Compiles `engine/c` into one shared library for each instruction set. Standard library only, and nothing of the package.

The build hook runs this file by its path, before anything is installed; a checkout runs it when its sources have changed.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent
SOURCES = FOLDER.parent / "c"

COMMON = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")


class InstructionSet(NamedTuple):
    """How one library is compiled, and the machine it is for (the empty name: every machine)."""

    flags: tuple[str, ...]
    machine: str


# Best first. The portable one is plain C: it serves ARM and whatever else, and tells what an x86 processor can run.
INSTRUCTION_SETS = {
    "avx512_vnni": InstructionSet((*AVX512, "-mavx512vnni"), "x86_64"),
    "avx512": InstructionSet(AVX512, "x86_64"),
    "avx2": InstructionSet(AVX2, "x86_64"),
    "portable": InstructionSet((), ""),
}


class Report(NamedTuple):
    """What a build gave: the libraries by instruction set, and why the others are missing."""

    built: dict[str, Path]
    problems: dict[str, str]


def machine() -> str:
    """This machine's architecture, by one name wherever it runs."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def instruction_sets(target: str | None = None) -> list[str]:
    """The sets that are built for an architecture (else this machine's), best first."""
    return [name for name, entry in INSTRUCTION_SETS.items() if entry.machine in ("", target or machine())]


def library_file(folder: Path, instruction_set: str) -> Path:
    """Where the library of an instruction set is, or would be."""
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    return folder / f"libelmofire_{instruction_set}{suffix}"


def source_hash() -> str:
    """One digest of the C sources and of the flags they are compiled with; every library carries it."""
    digest = hashlib.sha256(repr((COMMON, sorted(INSTRUCTION_SETS.items()))).encode())
    for file in sorted(SOURCES.glob("*.[ch]")):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


def find_compiler() -> list[str] | None:
    """The C compiler's command: CC where it is set, else the first of cc, gcc and clang that is installed."""
    for candidate in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        command = shlex.split(candidate)
        if command and shutil.which(command[0]):
            return command
        if command and candidate == os.environ.get("CC"):
            return None  # asked for by name and not there: another one would be a surprise
    return None


def build(folder: Path, *, extra_flags: Sequence[str] = (), target: str | None = None) -> Report:
    """Compile every set of this machine into `folder`; whoever reads there meanwhile sees the old file or the new one.

    A `target` is the other architecture that the compiler of CC makes code for.
    """
    names = instruction_sets(target)
    compiler = find_compiler()
    if compiler is None:
        asked = os.environ.get("CC")
        missing = f"the compiler CC={asked} is not there" if asked else "there is no C compiler (cc, gcc or clang)"
        return Report({}, dict.fromkeys(names, missing))
    digest = source_hash()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=".libelmofire-", dir=folder) as aside,
        ThreadPoolExecutor(os.cpu_count() or 1) as workers,
    ):
        made = [library_file(Path(aside), name) for name in names]
        complaints = list(
            workers.map(lambda name, file: _compiled(compiler, name, file, digest, extra_flags), names, made)
        )
        report = Report({}, {})
        for name, file, complaint in zip(names, made, complaints, strict=True):
            if complaint:
                report.problems[name] = complaint
                library_file(folder, name).unlink(missing_ok=True)  # of other sources
            else:
                report.built[name] = file.replace(library_file(folder, name))
    return report


def _compiled(compiler: list[str], name: str, file: Path, digest: str, extra_flags: Sequence[str]) -> str:
    """What the compiler says if it fails, else nothing."""
    command = [
        *compiler,
        *COMMON,
        *INSTRUCTION_SETS[name].flags,
        *extra_flags,
        f'-DELMOFIRE_SOURCE_HASH="{digest}"',
        f'-DELMOFIRE_ISA="{name}"',
        *map(str, sorted(SOURCES.glob("*.c"))),
        "-o",
        str(file),
        "-lm",
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        return f"{compiler[0]} failed: {done.stderr.strip()[-2000:] or f'exit code {done.returncode}'}"
    return "" if file.is_file() else f"{compiler[0]} wrote nothing"
