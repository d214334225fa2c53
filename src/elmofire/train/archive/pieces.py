"""One long row of bytes as files of a given size, which can be moved one by one: each says what it is and has its own checksum.

A piece is a line of JSON (`archive`, the same in all; its number; whether it is the last; bytes and blake2b of what follows), then bytes.
"""

import json
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from elmofire.errors import DataError
from elmofire.formats.files import written_aside

SUFFIX = ".piece"
SMALLEST = 4096
_KIND, _FORMAT = "elmofire corpus archive", 1
_HEADER = 512  # bytes at most
_NAMED = 20  # of the pieces that are missing


class PieceWriter:
    """Write bytes to pieces in a folder; `close` ends the last one."""

    def __init__(self, folder: Path, archive: str, piece_bytes: int) -> None:
        self._folder, self._archive = folder, archive
        self._room = piece_bytes - _HEADER
        self._waiting = bytearray()
        self.count = self.bytes = 0

    def write(self, data: bytes) -> None:
        self._waiting += data
        while len(self._waiting) > self._room:
            self._flush(last=False)

    def close(self) -> None:
        self._flush(last=True)

    def _flush(self, *, last: bool) -> None:
        data = bytes(self._waiting[: self._room])
        del self._waiting[: self._room]
        header = {"kind": _KIND, "format": _FORMAT, "archive": self._archive, "piece": self.count, "last": last}
        header |= {"bytes": len(data), "blake2b": blake2b(data, digest_size=32).hexdigest()}
        line = json.dumps(header).encode() + b"\n"
        with written_aside(self._folder / f"{self.count:05}{SUFFIX}") as aside:
            aside.write_bytes(line + data)
        self.count += 1
        self.bytes += len(line) + len(data)


class PieceReader:
    """The bytes of all pieces in a folder, in order. That all are there and whole is checked before the first is read."""

    def __init__(self, folder: Path) -> None:
        self._pieces = _checked(folder)
        self._data = self._read()
        self._waiting = bytearray()
        self._folder = folder

    def read(self, size: int) -> bytes:
        """So many bytes, no fewer."""
        while len(self._waiting) < size:
            chunk = next(self._data, None)
            if chunk is None:
                raise DataError(f"{self._folder}: the archive ends in the middle", hint="pack the corpus again")
            self._waiting += chunk
        found = bytes(self._waiting[:size])
        del self._waiting[:size]
        return found

    def _read(self) -> Iterator[bytes]:
        for path in self._pieces:
            with path.open("rb") as file:
                file.readline(_HEADER)
                while chunk := file.read(1 << 20):
                    yield chunk


def _checked(folder: Path) -> list[Path]:
    """The pieces by their numbers; all that is wrong with them is one error."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder", hint="an archive is the folder that its pieces are in")
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise DataError(
            f"{folder}: no pieces of an archive (*{SUFFIX})", hint="an archive is the folder that its pieces are in"
        )
    problems: list[str] = []
    found: dict[int, tuple[Path, dict[str, Any]]] = {}
    for path in files:
        header = _header(path)
        if header is None:
            problems.append(f"{path.name}: damaged, or not all there")
        elif header["piece"] in found:
            problems.append(f"{path.name}: the same piece as {found[header['piece']][0].name}")
        else:
            found[header["piece"]] = (path, header)
    archives = {header["archive"] for _, header in found.values()}
    if len(archives) > 1:
        problems.append("pieces of more than one archive")
    ends = [number for number, (_, header) in found.items() if header["last"]]
    if found:
        missing = max(found) + 1 - len(found)  # the numbers are not trusted to be few
        named = islice((number for number in range(max(found)) if number not in found), _NAMED)
        problems += [f"piece {number} is missing" for number in named]
        problems += [f"and {missing - _NAMED:,} more"] if missing > _NAMED else []
    if not ends and not problems:
        problems.append(f"what follows piece {max(found)} is missing")
    if problems:
        raise DataError(f"{folder}: {'; '.join(problems)}", hint="copy those pieces again")
    return [found[number][0] for number in sorted(found)]


def _header(path: Path) -> dict[str, Any] | None:
    """What a piece says of itself, if it holds that."""
    with path.open("rb") as file:
        try:
            header = json.loads(file.readline(_HEADER))
            described, checked = (header["kind"], header["format"]), (header["bytes"], header["blake2b"])
            whole = described == (_KIND, _FORMAT) and type(header["piece"]) is int and header["piece"] >= 0
            whole = whole and isinstance(header["archive"], str) and isinstance(header["last"], bool)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        checksum, size = blake2b(digest_size=32), 0
        while chunk := file.read(1 << 20):
            checksum.update(chunk)
            size += len(chunk)
    return header if whole and checked == (size, checksum.hexdigest()) else None
