"""Tar files from outside: plain files only, inside their folder, and no more bytes than an honest archive would hold."""

import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from elmofire.errors import ModelError

_MOST_FILES = 10_000
_MOST_GROWTH = 20  # weights hardly compress
_ALWAYS_FINE = 64 << 20  # bytes
_CHUNK = 1 << 20


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz or .tar.bz2 into a new folder, which appears whole or not at all."""
    room = max(_ALWAYS_FINE, _MOST_GROWTH * archive.stat().st_size)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        with tarfile.open(archive) as tar:
            for number, member in enumerate(tar):
                if number >= _MOST_FILES:
                    raise ModelError(f"{archive}: holds more than {_MOST_FILES:,} files")
                if member.isdir():
                    continue
                if not member.isfile():
                    raise ModelError(f"{archive}: {member.name!a} is a link or a device; only plain files are unpacked")
                target = aside / _inside(archive, member.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                assert source is not None  # a plain file has content
                room = _copy(archive, source, target, room)
        aside.chmod(0o755)
        aside.replace(folder)
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise ModelError(f"{archive}: cannot be unpacked: {error}") from None
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        if error.errno is None:  # gzip's and bz2's way to say that the data are broken
            raise ModelError(f"{archive}: cannot be unpacked: {error}") from None
        raise
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _inside(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or PureWindowsPath(name).drive or "\\" in name:
        raise ModelError(f"{archive}: {name!a} points outside its folder")
    return path


def _copy(archive: Path, source: IO[bytes], target: Path, room: int) -> int:
    """Copy a member and return how many bytes may still come."""
    with target.open("xb") as file:
        while chunk := source.read(_CHUNK):
            room -= len(chunk)
            if room < 0:
                raise ModelError(f"{archive}: unpacks to over {_MOST_GROWTH} times its size")
            file.write(chunk)
    return room
