"""Opens the compiled kernels: a shared library for each instruction set, of which the best that this processor runs serves.

A library is used if its ABI number is the one that this package was written for and its source hash is that of the
sources beside it. In a checkout, libraries that are missing or older than the sources are compiled first.
"""

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from elmofire.engine.compiled import build
from elmofire.errors import InputError

ABI = 2  # ELMOFIRE_ABI of kernels.h
NUMPY = "numpy"  # asks for no library at all


class Library(NamedTuple):
    """The compiled kernels of one instruction set."""

    name: str
    handle: ctypes.CDLL


class _Found(NamedTuple):
    libraries: dict[str, Library]  # best first
    missing: dict[str, str]  # why the other sets cannot be used


def available() -> list[str]:
    """The instruction sets that are built and that this processor runs, best first.

    >>> set(available()) <= {"avx512_vnni", "avx512", "avx2", "portable"}
    True
    """
    return list(_found().libraries)


def missing() -> dict[str, str]:
    """The instruction sets of this machine's architecture that cannot be used, each with the reason.

    >>> set(missing()).isdisjoint(available())
    True
    """
    return dict(_found().missing)


def load(name: str | None = None) -> Library | None:
    """The kernels of an instruction set; none for `numpy`. Without a name, what ELMOFIRE_CPU says, or else the best.

    What is asked for by name is given or is an InputError. Where nothing is asked and nothing can be loaded the answer
    is none, and a line on stderr says why, once.

    >>> load("numpy") is None
    True
    """
    asked = name or os.environ.get("ELMOFIRE_CPU")
    if asked == NUMPY:
        return None
    found = _found()
    if asked in found.libraries:
        return found.libraries[asked]
    if asked:
        why = found.missing.get(asked) or _foreign(asked)
        raise InputError(
            f"{'the instruction set' if name else 'ELMOFIRE_CPU ='} {asked} cannot be used: {why}",
            hint=f"here: {', '.join([*found.libraries, NUMPY])}; without a request the first of them serves",
        )
    if not found.libraries:
        _say_that_numpy_is_used()
    return next(iter(found.libraries.values()), None)


def _foreign(asked: str) -> str:
    if asked in build.INSTRUCTION_SETS:
        return f"it is for {build.INSTRUCTION_SETS[asked].machine}, and this machine is {build.machine()}"
    return "there is no such set"


@cache
def _say_that_numpy_is_used() -> None:
    found = _found().missing
    why = found.get("portable") or next(iter(found.values()))
    sys.stderr.write(f"elmofire: no compiled kernels, using numpy, which is slower: {why}\n")


@cache
def _found() -> _Found:
    elsewhere = os.environ.get("ELMOFIRE_LIBRARY_FOLDER")  # where the tests keep other builds of the same sources
    folder = Path(elsewhere) if elsewhere else build.FOLDER
    problems = {} if elsewhere else _refreshed(folder)
    portable = _opened(folder, "portable")
    opened: dict[str, Library] = {}
    for name in build.instruction_sets():
        if not isinstance(portable, Library):  # it runs everywhere, and knows what else does
            library = portable
        elif not portable.handle.elmofire_cpu_runs(name.encode()):
            library = "this processor does not run it"
        else:
            library = _opened(folder, name)
        if isinstance(library, Library):
            opened[name] = library
        else:
            problems.setdefault(name, library)
    return _Found(opened, problems)


def _opened(folder: Path, name: str) -> Library | str:
    """The library, or what is wrong with it."""
    file = build.library_file(folder, name)
    if not file.is_file():
        return f"{file} is not there"
    try:
        handle = ctypes.CDLL(str(file))
        handle.elmofire_source_hash.restype = handle.elmofire_isa.restype = ctypes.c_char_p
        handle.elmofire_cpu_runs.argtypes = [ctypes.c_char_p]
        abi, digest, made_for = handle.elmofire_abi(), handle.elmofire_source_hash(), handle.elmofire_isa()
    except (OSError, AttributeError) as error:
        return f"{file} cannot be loaded: {error}"
    if abi != ABI:
        return f"{file} has ABI {abi}, and this version of the package needs {ABI}"
    if digest.decode() != build.source_hash():
        return f"{file} was built from other sources"
    if made_for.decode() != name:
        return f"{file} was built for {made_for.decode()}"
    return Library(name, handle)


def _refreshed(folder: Path) -> dict[str, str]:
    """In a checkout, compile what is missing or older than the sources; what could not be, and why."""
    in_checkout = (folder.parents[2].parent / "hatch_build.py").is_file()
    if not in_checkout or _is_current(folder):
        return {}
    if not os.access(folder, os.W_OK):
        return dict.fromkeys(build.instruction_sets(), f"it is not built, and {folder} cannot be written to")
    from filelock import FileLock

    with FileLock(folder / "libelmofire.lock"):
        if _is_current(folder):  # by another process, while this one was waiting
            return {}
        try:
            problems = build.build(folder).problems
        except OSError as error:
            problems = dict.fromkeys(build.instruction_sets(), f"it cannot be built: {error}")
    return {name: _in_one_line(problem) for name, problem in problems.items()}


def _is_current(folder: Path) -> bool:
    """Whether the libraries are those of the sources. Looked up in the files: a library that is open is never read again.

    The portable one compiles everywhere; another one that is missing is beyond the compiler, and not worth a new try.
    """
    files = [build.library_file(folder, name) for name in build.instruction_sets()]
    digest = build.source_hash().encode()
    return files[-1].is_file() and all(digest in file.read_bytes() for file in files if file.is_file())


def _in_one_line(problem: str) -> str:
    lines = problem.splitlines()
    return next((line for line in lines if "error" in line), lines[0])
