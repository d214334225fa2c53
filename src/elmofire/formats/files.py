"""Files and folders appear whole or not at all, and JSON from outside is read with its limits."""

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elmofire.errors import ElmofireError, ModelError

_EXPANSION, _ALWAYS_ALLOWED = 50, 16 << 20
_MAX_JSON = 16 << 20  # bytes; the largest real config is a few kilobytes


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to: synced and renamed at the end, removed on an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _name_beside(path, path.suffix)
    with _errors_name(path):
        aside.touch(exist_ok=False)
    try:
        yield aside
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _name_beside(path: Path, ending: str = "") -> Path:
    """A new name; `tempfile`'s own files would be readable by nobody else, also once they are renamed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{ending}")


@contextlib.contextmanager
def _errors_name(wanted: Path) -> Iterator[None]:
    """Errors of the system name the file that was asked for, not the temporary one beside it."""
    try:
        yield
    except OSError as error:
        error.filename = str(wanted)
        raise


@contextlib.contextmanager
def held_alone(lock: Path, refusal: ElmofireError) -> Iterator[None]:
    """Hold a lock file, or raise `refusal` if another process has it.

    It is removed afterwards, and so are folders that were made for it and stayed empty.
    """
    from filelock import FileLock, Timeout

    made = [folder for folder in lock.parents if not folder.exists()]
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _errors_name(lock.parent):
                held = FileLock(lock).acquire(timeout=0)
        except Timeout:
            try:
                lock.touch()  # a name that cannot be made is a timeout too
            except OSError as error:
                raise OSError(error.errno, "no file can be made there", str(lock.parent)) from None
            raise refusal from None
        with held:
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # some systems keep what is open; there it goes with the lock
                    lock.unlink()
    finally:
        with contextlib.suppress(OSError):  # one that holds something, and all above it
            for folder in made:
                folder.rmdir()


@contextlib.contextmanager
def folder_written_aside(folder: Path, *, replaces: Callable[[Path], bool]) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place at the end; an older one only if `replaces` agrees that it may go."""
    folder = folder.resolve()
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or _may_go(folder, replaces))):
        raise ModelError(
            f"{folder}: exists and is not just a model of this format", hint="choose another name, or remove it first"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = _name_beside(folder)
    with _errors_name(folder):
        aside.mkdir()
    try:
        yield aside
        for file in aside.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        if folder.exists():
            _refuse_to_lose(folder, aside)
            _swap(aside, folder)
        else:
            aside.replace(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _may_go(folder: Path, replaces: Callable[[Path], bool]) -> bool:
    try:
        return replaces(folder)
    except ModelError:
        return False


def _refuse_to_lose(folder: Path, new: Path) -> None:
    """An error if the old folder has files that the new one lacks, such as a vocabulary that was put there by hand."""
    lost = sorted({file.name for file in folder.iterdir()} - {file.name for file in new.iterdir()})
    if lost:
        raise ModelError(
            f"{folder}: holds {', '.join(lost)}, which the new model does not have",
            hint="choose another name, or move it away first",
        )


def _swap(new: Path, folder: Path) -> None:
    """Put `new` in the place of `folder`, or leave everything as it was."""
    kept = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.old."))
    old = kept / folder.name
    try:
        folder.replace(old)
        new.replace(folder)
    except BaseException:
        if old.exists():
            old.replace(folder)
        kept.rmdir()
        raise
    shutil.rmtree(kept)


def most_unpacked(size: int) -> int:
    """How many bytes may come out of so many: weights hardly compress, so what claims far more than it holds is not honest."""
    return _ALWAYS_ALLOWED + _EXPANSION * size


def read_json_object(path: Path, most_bytes: int = _MAX_JSON) -> dict[str, Any]:
    """A JSON file that holds one object."""
    try:
        if path.stat().st_size > most_bytes:
            raise ModelError(f"{path}: {path.stat().st_size:,} bytes are too many for a model's settings")
        return json_object(path.read_bytes(), str(path))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def json_object(content: bytes, where: str) -> dict[str, Any]:
    """JSON that holds one object, out of a file or an archive."""
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ModelError(f"{where}: is not utf-8 text") from None
    except json.JSONDecodeError as error:
        raise ModelError(f"{where}:{error.lineno}: is not valid JSON: {error.msg}") from None
    except RecursionError:
        raise ModelError(f"{where}: is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise ModelError(f"{where}: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{where}: should hold a JSON object, but holds a {type(value).__name__}")
    return value
