"""Sentences out of files, one at a time: lines of text, CoNLL-U, JSON lines; `-` is stdin.

Plain, .gz, .xz, .bz2, or with the extra `train` .zst and .bz3 (whose blocks are unpacked whole: six times their size in memory).

Input is not trusted: errors name file and line, and no line is read beyond its limit, so that neither a binary file nor a
decompression bomb fills the memory.
"""

import bz2
import gzip
import importlib
import json
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from elmofire.errors import InputError, MissingExtra

LONGEST_LINE = 64 * 2**20  # bytes


class _Bytes(Protocol):
    def readline(self, size: int, /) -> bytes: ...


Opened = Callable[[BinaryIO], None]


def read_sentences(
    path: str | os.PathLike[str], *, format: str = "auto", pretokenized: bool = False, opened: Opened | None = None
) -> Iterator[str | list[str]]:
    """The sentences of a file: strings where they are raw, lists of tokens where the file or `pretokenized` says so.

    text    one sentence a line; a blank line is an empty sentence, so that numbering never shifts
    conllu  the FORM column, without multiword ranges and empty nodes
    jsonl   a line is a string, a list of tokens, or an object with `tokens` or `text` (`tokens` if it has both)

    `format="auto"` goes by the name: `.conllu` and `.conll`, `.jsonl` and `.ndjson`, else text, before `.gz` and its like.
    With `pretokenized`, raw sentences are split at white space. Encoding is UTF-8; lines end with \\n or \\r\\n only.
    `opened` gets the file as it lies on the disk, whose `tell()` says how much of it has been read; stdin is not such a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "two.txt")
    ...     size = path.write_text("Stick to the plan\\n\\nGo\\n")
    ...     list(read_sentences(path)), list(read_sentences(path, pretokenized=True))
    (['Stick to the plan', '', 'Go'], [['Stick', 'to', 'the', 'plan'], [], ['Go']])
    """
    path = home_expanded(path)
    if format == "auto":
        format = _SUFFIXES.get(content_suffix(path), "text")
    if format not in _READERS:
        raise InputError(f"unknown format {format!r}: the known ones are auto, {', '.join(_READERS)}")
    sentences = _READERS[format]("<stdin>" if path == "-" else path, read_lines(path, opened=opened))
    if not pretokenized:
        return sentences
    return (_words(sentence) if isinstance(sentence, str) else sentence for sentence in sentences)


def home_expanded(path: str | os.PathLike[str]) -> str:
    """A path as text: `~` in full, as a shell has it, and all else as it was written."""
    if isinstance(path, bytes):
        raise InputError(f"the path {path!r} is given as bytes, but should be text", hint="os.fsdecode(path)")
    return os.path.expanduser(os.fspath(path))  # noqa: PTH111 (a Path's own writes `./a` as `a`, and fails at ~nobody)


def content_suffix(path: str) -> str:
    """What a file's name says of its content, before `.gz` and its like.

    >>> content_suffix("news.JSONL.gz"), content_suffix("news")
    ('.jsonl', '')
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _DECOMPRESSORS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _words(line: str) -> list[str]:
    """`line.split()`; of a long line each distinct word once, since a million would be 60 MB."""
    if len(line) < 100_000:
        return line.split()
    seen: dict[str, str] = {}
    return [seen.setdefault(match[0], match[0]) for match in re.finditer(r"\S+", line)]


# ── bytes to lines ──────────────────────────────────────────────────────────────────────────────────────────────────


def _open(path: str, files: ExitStack, opened: Opened | None) -> _Bytes:
    """The bytes of a file, unpacked; `files` close it."""
    if path == "-":
        return sys.stdin.buffer
    file = files.enter_context(Path(path).open("rb"))  # noqa: SIM115 - it does close it
    if opened:
        opened(file)
    unpacked = _DECOMPRESSORS.get(Path(path).suffix.lower())
    return files.enter_context(unpacked(file)) if unpacked else file


def read_lines(path: str, *, longest: int | None = None, opened: Opened | None = None) -> Iterator[str]:
    """Each line of a file without its end; one of more than `longest` bytes (by default 64 MiB) is an error."""
    name = "<stdin>" if path == "-" else path
    with ExitStack() as files:
        try:
            stream = _open(path, files, opened)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise InputError(f"{name}: cannot be opened: {reason}") from None
        number, longest = 0, longest or LONGEST_LINE
        while raw := _read(stream, name, number + 1, longest):
            number += 1
            if number == 1:
                if raw.startswith(_NO_TEXT):
                    raise _no_text(name)
                raw = raw.removeprefix(b"\xef\xbb\xbf")
                if not raw:
                    return  # nothing but the mark
            try:
                line = raw.decode()
            except UnicodeDecodeError as error:
                raise _not_utf8(raw, error.start, name, number) from None
            if "\0" in line:
                raise _holds_zeros(raw, name, number)
            yield line.removesuffix("\n").removesuffix("\r")


def _read(stream: _Bytes, name: str, number: int, longest: int) -> bytes:
    """The next line, or nothing at the end."""
    try:
        raw = stream.readline(longest + 1)
    except MemoryError:
        raise InputError(f"{name}: a block of it does not fit in memory") from None
    except Exception as error:
        if not isinstance(error, OSError | EOFError | ValueError | zlib.error | lzma.LZMAError) and not _is_zstd(error):
            raise
        kind = Path(name).suffix.lower()
        what = f"broken or truncated {kind} file" if kind in _DECOMPRESSORS else "cannot be read"
        raise InputError(f"{name}: {what}: {error}") from None
    if len(raw) > longest:
        raise InputError(
            f"{name}:{number}: the line is longer than {longest:,} bytes",
            hint="is this a text file? Each sentence goes on a line of its own",
        )
    return raw


_NO_TEXT = (b"%PDF-", b"PK\x03\x04", b"{\\rtf", b"\x89PNG", b"\x89HDF")  # whose first line alone may not tell
_COMPRESSED = {b"\x1f\x8b": ".gz", b"\xfd7zXZ": ".xz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst", b"BZ3v1": ".bz3"}
_CONTROLS = re.compile(rb"[\x01-\x08\x0e-\x19\x1c-\x1f]")  # in no encoding of text but UTF-16
_LATIN = "convert it first, for example: iconv -f {} -t utf-8 {} > utf8.txt"


def _no_text(name: str) -> InputError:
    return InputError(
        f"{name}: is no text (a PDF? a Word or zip file?)",
        hint="save what it says as plain text, in UTF-8, in the program that it is from",
    )


def _not_utf8(raw: bytes, place: int, name: str, number: int) -> InputError:
    what = f"{name}:{number}: not UTF-8: byte 0x{raw[place]:02x} at byte {place + 1} of the line"
    if number == 1:
        for magic, suffix in _COMPRESSED.items():
            if raw.startswith(magic):
                hint = f"it looks compressed: decompress it first, or give the file its suffix {suffix}"
                return InputError(what, hint=hint)
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            return InputError(what, hint=_LATIN.format("utf-16", name))
    if order := _utf16(raw, number):
        return InputError(what, hint=_LATIN.format(order, name))
    if number == 1 and _CONTROLS.search(raw):
        return _no_text(name)
    return InputError(what, hint=_LATIN.format("latin1", name))


def _holds_zeros(raw: bytes, name: str, number: int) -> InputError:
    """UTF-8 has the byte 0 for itself alone; in UTF-16 it is half of each Latin letter, space and end of line."""
    order = _utf16(raw, number)
    if number == 1 and not order and _CONTROLS.search(raw):
        return _no_text(name)
    hint = _LATIN.format(order, name) if order else f"is this a binary file? else, without it: tr -d '\\000' < {name}"
    return InputError(f"{name}:{number}: holds the byte 0, which text has not", hint=hint)


def _utf16(raw: bytes, number: int) -> str | None:
    """Which UTF-16 without its mark a line is in, if it is: zeros stand in every second byte alone."""
    even, odd = raw[::2].count(0), raw[1::2].count(0)
    if min(even, odd) or max(even, odd) < max(2, len(raw) / 20):
        return None
    # Big-endian, the first line's end would have been the first zero.
    return "utf-16le" if odd or number > 1 else "utf-16be"


# ── lines to sentences ──────────────────────────────────────────────────────────────────────────────────────────────


def _text(name: str, lines: Iterator[str]) -> Iterator[str | list[str]]:
    return (line.strip() for line in lines)


def _conllu(name: str, lines: Iterator[str]) -> Iterator[str | list[str]]:
    words: list[str] = []
    last = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            if words:
                yield words
            words, last = [], 0
            continue
        if line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) < 2 or not columns[1]:
            what = f"{name}:{number}: not a CoNLL-U row: no word in a second column"
            raise InputError(what, hint="columns are separated by tabs: ID, FORM, and eight more")
        row = _ROW.fullmatch(columns[0])
        if row is None:
            raise InputError(
                f"{name}:{number}: the id {columns[0][:20]!r} is not a number, a range (3-4) or an empty node (8.1)"
            )
        if not row["word"]:
            continue
        if len(row["word"]) > 9 or int(row["word"]) <= last:
            what = f"{name}:{number}: word {row['word'][:20]} follows word {last}"
            raise InputError(what, hint="ids count up from 1; sentences are separated by a blank line")
        last = int(row["word"])
        words.append(columns[1])
    if words:
        yield words


def _jsonl(name: str, lines: Iterator[str]) -> Iterator[str | list[str]]:
    for number, line in enumerate(lines, 1):
        try:
            value = cast(object, json.loads(line))
        except (ValueError, RecursionError) as error:
            if not line.strip():
                raise InputError(f"{name}:{number}: a blank line", hint='an empty sentence is written ""') from None
            reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise InputError(f"{name}:{number}: not JSON: {reason}") from None
        if isinstance(value, dict):
            fields = cast(dict[str, object], value)
            sentence = fields.get("tokens", fields.get("text"))
            fits = isinstance(sentence, list if "tokens" in fields else str)
        else:
            sentence = value
            fits = isinstance(sentence, str | list)
        if not fits:
            what = "expected a string, a list of tokens, or an object with `tokens` (a list) or `text` (a string)"
            raise InputError(f"{name}:{number}: {what}")
        if isinstance(sentence, str):
            yield sentence
            continue
        tokens = cast(list[object], sentence)
        for place, token in enumerate(tokens, 1):
            if not isinstance(token, str):
                raise InputError(f"{name}:{number}: token {place} is of type {type(token).__name__}, not a string")
        yield cast(list[str], tokens)


def _gzip(file: BinaryIO) -> AbstractContextManager[_Bytes]:
    return gzip.GzipFile(fileobj=file)


def _zstd(file: BinaryIO) -> AbstractContextManager[_Bytes]:
    for module in ("compression.zstd", "backports.zstd"):  # of Python 3.14, and for those before it
        try:
            return importlib.import_module(module).open(file, "rb")
        except ImportError:
            continue
    raise MissingExtra(f"{file.name}: reading .zst files", "train")


def _is_zstd(error: Exception) -> bool:
    return type(error).__name__ == "ZstdError"


def _bzip3(file: BinaryIO) -> AbstractContextManager[_Bytes]:
    try:
        bz3 = importlib.import_module("bz3")
    except ImportError:
        raise MissingExtra(f"{file.name}: reading .bz3 files", "train") from None
    # The package takes a file that was cut for one that ends there.
    whole = file.read(9)[:5] == b"BZ3v1"
    size = file.seek(0, 2)
    at = file.seek(9)
    while whole and at < size:
        whole = len(head := file.read(8)) == 8
        at = file.seek(at + 8 + int.from_bytes(head[:4], "little"))
    if not whole or at > size:
        raise InputError(f"{file.name}: broken or truncated .bz3 file: it ends within a block")
    file.seek(0)
    return bz3.open(file, "rb")


_ROW = re.compile(r"(?P<word>[0-9]+)|[0-9]+-[0-9]+|[0-9]+\.[0-9]+")
_SUFFIXES = {".conllu": "conllu", ".conll": "conllu", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_DECOMPRESSORS: dict[str, Callable[[BinaryIO], AbstractContextManager[_Bytes]]] = {
    ".gz": _gzip,
    ".xz": lzma.LZMAFile,
    ".bz2": bz2.BZ2File,
    ".zst": _zstd,
    ".bz3": _bzip3,
}
COMPRESSED = frozenset(_DECOMPRESSORS)  # the endings of their names
_READERS: dict[str, Callable[[str, Iterator[str]], Iterator[str | list[str]]]] = {
    "text": _text,
    "conllu": _conllu,
    "jsonl": _jsonl,
}
