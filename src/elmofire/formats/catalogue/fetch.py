"""A model of the catalogue on this machine: fetched once, by one process at a time, checked, and complete or not there."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from elmofire.errors import ModelError
from elmofire.formats.catalogue import Entry, RemoteFile, entry_named
from elmofire.formats.catalogue.downloads import Part, Progress, download
from elmofire.formats.catalogue.unpacking import unpack
from elmofire.formats.files import read_json_object, written_aside

Note = Callable[[str], None]

CHECKSUMS = "checksums.json"


def offline() -> bool:
    """Whether the user asked for local files only."""
    return any(
        os.environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")
        for name in ("ELMOFIRE_OFFLINE", "HF_HUB_OFFLINE")
    )


def fetch(name: str, *, progress: Progress | None = None, note: Note | None = None) -> Path:
    """Have a model of the catalogue here and return what to load: a folder or an archive.

    `progress` hears of every piece of a file, `note` what else a person should know. A call that was interrupted is
    continued by the next one.
    """
    entry = entry_named(name)
    if entry is None:
        raise ModelError(f"{name}: no model of that name is in the catalogue", hint="elmofire models lists them")
    if entry.here:
        _record_what_is_new(entry)
        return entry.model
    if entry.missing and offline():
        raise ModelError(
            f"{name}: is not on this machine, and offline mode is on (ELMOFIRE_OFFLINE or HF_HUB_OFFLINE)",
            hint=_by_hand(entry),
        )
    try:
        entry.folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(entry, note):
            if not entry.here:
                _complete(entry, progress)
    except OSError as error:
        raise ModelError(
            f"{name}: {error.filename or entry.folder}: cannot be written: {error.strerror or error}",
            hint="ELMOFIRE_HOME names another folder",
        ) from None
    return entry.model


@contextlib.contextmanager
def _one_at_a_time(entry: Entry, note: Note | None) -> Iterator[None]:
    lock = filelock.FileLock(entry.folder.with_name(f"{entry.folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        if note:
            note(f"another process is fetching {entry.name}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _complete(entry: Entry, progress: Progress | None) -> None:
    """Fetch what is missing, unpack it, and see that it loads."""
    for file in entry.missing:
        _fetch_file(entry, file, progress)
    _record_what_is_new(entry)
    try:
        if entry.tar:
            unpack(entry.folder / entry.tar, entry.unpacked)
            (entry.folder / entry.tar).unlink()
        from elmofire.formats import load_weights

        load_weights(entry.model)  # reads sizes and shapes, no arrays
    except ModelError as error:
        rejected = entry.folder.with_name(f"{entry.folder.name}.rejected")
        shutil.rmtree(rejected, ignore_errors=True)
        entry.folder.replace(rejected)
        raise ModelError(
            f"{entry.name}: the files came whole, but do not load: {error}",
            hint=f"they are kept in {rejected}; the next attempt fetches them anew",
        ) from None


def _fetch_file(entry: Entry, file: RemoteFile, progress: Progress | None) -> None:
    target = entry.folder / file.name
    problems: list[str] = []
    for url in file.urls:
        try:
            part = download(url, target, progress)
        except ModelError as error:
            problems.append(str(error))
            continue
        sha256 = _verified(entry, file, part.path, lambda part=part: _rejected(part))
        _record(entry, {file.name: sha256})
        part.finish()
        return
    raise ModelError.from_problems(f"{entry.name}: {file.name} cannot be fetched", problems, hint=_by_hand(entry))


def _rejected(part: Part) -> Path:
    """Keep a wrong file, where nobody takes it for the right one."""
    kept = part.target.with_name(f"{part.target.name}.rejected")
    part.finish(kept)
    return kept


def _verified(entry: Entry, file: RemoteFile, path: Path, reject: Callable[[], Path]) -> str:
    """The SHA-256 of a file that agrees with the digest its publisher states, or with what it was the first time."""
    algorithm, _, cited = file.digest.partition(":")
    sha256 = _digest(path, "sha256")
    if cited and (found := _digest(path, algorithm)) != cited:
        said = f"has the {algorithm.upper()} {found}, but {file.digest_source} states {cited}"
        raise ModelError(f"{entry.name}: {file.name} {said}", hint=f"the wrong file is kept as {reject()}")
    first = _recorded(entry).get(file.name)
    if first is not None and first != sha256:
        raise ModelError(
            f"{entry.name}: {file.name} is not the file that was fetched the first time (SHA-256 {first}, now {sha256})",
            hint=f"the new one is kept as {reject()}; if the change is meant, remove {entry.folder / CHECKSUMS}",
        )
    return sha256


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _recorded(entry: Entry) -> dict[str, str]:
    path = entry.folder / CHECKSUMS
    return {name: str(digest) for name, digest in read_json_object(path).items()} if path.is_file() else {}


def _record(entry: Entry, checksums: dict[str, str]) -> None:
    with written_aside(entry.folder / CHECKSUMS) as aside:
        aside.write_text(json.dumps(_recorded(entry) | checksums, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _record_what_is_new(entry: Entry) -> None:
    """Files that were put here by hand are checked and recorded the first time they are used."""
    recorded = _recorded(entry)
    there = [file for file in entry.files if (entry.folder / file.name).is_file() and file.name not in recorded]
    if there and os.access(entry.folder, os.W_OK):  # a folder that others look after is theirs to check
        _record(
            entry,
            {
                file.name: _verified(entry, file, path := entry.folder / file.name, lambda path=path: path)
                for file in there
            },
        )


def _by_hand(entry: Entry) -> str:
    """For a machine that cannot reach the files: what to download, and where to put it."""
    lines = [f"  {file.urls[0]}\n    -> {entry.folder / file.name}" for file in entry.missing]
    return "download on another machine, and put the files here:\n" + "\n".join(lines)
