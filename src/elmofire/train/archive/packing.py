"""A corpus to an archive and back: the same bytes, checked by the corpus's own checksums.

The archive is a row of frames: the length of a line of JSON (4 bytes, little endian), the line (`name`, `bytes`, `raw`: its size
unpacked), and the content under xz. First `corpus.json`, `vocab.txt`, the words and the list of overlaps, then the shards. What follows
from these (where words end, their counts, their vocabulary ids) is computed again.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import DataError, ElmofireError
from elmofire.formats.files import written_aside
from elmofire.train.archive.coding import AGAIN, compressed, decoded, decompressed, encoded, shard_of, symbols
from elmofire.train.archive.pieces import SMALLEST, PieceReader, PieceWriter
from elmofire.train.corpus.reader import CORPUS_FILE, OVERLAPS_FILE, Corpus
from elmofire.train.corpus.shards import parts_of, save
from elmofire.train.corpus.words import Words, given_vocabulary, vocabulary_ids, write_words
from elmofire.train.processes import Processes

_WORDS = "words"
_SMALL = (CORPUS_FILE, "vocab.txt", _WORDS, OVERLAPS_FILE)
_LARGEST_FRAME, _LARGEST_HEADER = 1 << 30, 4096
_SHARD = re.compile(r"[\w.]+-\d{5}")


@dataclass(frozen=True)
class Packed:
    """What an archive takes."""

    pieces: int
    bytes: int
    tokens: int

    @property
    def bits_per_token(self) -> float:
        return 8 * self.bytes / max(self.tokens, 1)


def pack(
    corpus: Path | str, archive: Path | str, *, piece_bytes: int = 16 << 20, processes: int | None = None
) -> Packed:
    """Write a corpus into the folder `archive`, in pieces of at most `piece_bytes`."""
    opened, archive = Corpus.open(corpus), Path(archive)
    if piece_bytes < SMALLEST:
        raise DataError(f"pieces of {piece_bytes:,} bytes are too small: {SMALLEST:,} at least")
    opened.verify()
    identity = blake2b((opened.folder / CORPUS_FILE).read_bytes(), digest_size=16).hexdigest()
    with _made_aside(archive) as aside, Processes(processes) as running:
        writer = PieceWriter(aside, identity, piece_bytes)
        for name, raw, data in running.map(_frame, _contents(opened)):
            line = json.dumps({"name": name, "bytes": len(data), "raw": raw}).encode()
            writer.write(len(line).to_bytes(4, "little") + line + data)
        writer.write((0).to_bytes(4, "little"))
        writer.close()
    tokens = opened.train.tokens + sum(split.tokens for split in opened.heldout.values())
    return Packed(writer.count, writer.bytes, tokens)


def _contents(corpus: Corpus) -> Iterator[tuple[Path, str]]:
    for name in _SMALL:
        if name == _WORDS or (corpus.folder / name).exists():
            yield corpus.folder, name
    for split in (corpus.train, *corpus.heldout.values()):
        yield from ((corpus.folder, shard) for shard in split.shards)


def _frame(folder: Path, name: str) -> tuple[str, int, bytes]:
    if name == _WORDS:
        corpus = Corpus.open(folder)
        data = "\n".join(corpus.spellings(np.arange(corpus.words))).encode()
    elif (folder / name).exists():
        data = (folder / name).read_bytes()
    else:
        ids, ends, documents = (np.load(file, allow_pickle=False) for file in parts_of(folder, name))
        data = encoded(symbols(ids, ends, documents))
    return name, len(data), compressed(data)


def unpack(archive: Path | str, corpus: Path | str, *, processes: int | None = None) -> Corpus:
    """Make the corpus again out of the folder that holds all pieces."""
    archive, corpus = Path(archive), Path(corpus)
    frames = _frames(PieceReader(archive), archive)
    with _made_aside(corpus) as aside, Processes(processes) as running:
        small: dict[str, bytes] = {}
        shards: Iterator[_Frame] = iter(())
        for frame in frames:
            if _SHARD.fullmatch(frame.name):
                shards = chain([frame], frames)
                break
            with _named(frame):
                small[frame.name] = decompressed(frame.data, frame.raw)
        if missing := {CORPUS_FILE, "vocab.txt", _WORDS} - set(small):
            raise DataError(f"{archive}: the archive has no {', '.join(sorted(missing))}", hint=AGAIN)
        words = small[_WORDS].split(b"\n")
        counts = np.zeros(len(words), dtype=np.uint64)
        calls = ((aside, frame, len(words)) for frame in shards)
        for name, found in running.map(_write_shard, calls):
            if name.startswith("train-"):
                counts += found
        for name in (CORPUS_FILE, OVERLAPS_FILE):
            if name in small:
                with written_aside(aside / name) as file:
                    file.write_bytes(small[name])
        (aside / "vocab.txt").write_bytes(small["vocab.txt"])
        try:
            vocabulary = given_vocabulary(aside / "vocab.txt")
            table = Words(words, counts)
            write_words(aside, table, vocabulary, vocabulary_ids(table, vocabulary))
            Corpus.open(aside).verify()
        except (ElmofireError, UnicodeDecodeError):
            raise DataError(f"{archive}: what it holds is not the corpus that was packed", hint=AGAIN) from None
    return Corpus.open(corpus)


@dataclass(frozen=True)
class _Frame:
    name: str
    raw: int  # bytes when unpacked
    data: bytes


def _frames(reader: PieceReader, archive: Path) -> Iterator[_Frame]:
    while size := int.from_bytes(reader.read(4), "little"):
        try:
            header = json.loads(reader.read(size)) if size <= _LARGEST_HEADER else {}
            name, raw, data = header["name"], header["raw"], header["bytes"]
        except (ValueError, KeyError, TypeError, RecursionError):
            name, raw, data = "", 0, 0
        known = isinstance(name, str) and (name in _SMALL or _SHARD.fullmatch(name))
        if not known or not all(type(number) is int and 0 <= number <= _LARGEST_FRAME for number in (raw, data)):
            raise DataError(f"{archive}: the archive is not as it was written", hint=AGAIN)
        yield _Frame(name, raw, reader.read(data))


@contextmanager
def _named(frame: _Frame) -> Iterator[None]:
    """What is wrong with a content is said with its name."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{frame.name}: {error}") from None


def _write_shard(folder: Path, frame: _Frame, words: int) -> tuple[str, NDArray[np.uint64]]:
    """One shard's files; how often it has each word."""
    with _named(frame):
        row = decoded(decompressed(frame.data, frame.raw))
    if row.max(initial=0) >= words:
        raise DataError(f"{frame.name}: has words that the archive does not list", hint=AGAIN)
    ids, ends, documents = shard_of(row)
    for file, array in zip(parts_of(folder, frame.name), (ids, ends, documents), strict=True):
        save(file, array)
    return frame.name, np.bincount(ids, minlength=words).astype(np.uint64)


@contextmanager
def _made_aside(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its name at the end, or goes."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: exists", hint="choose another name, or remove it first")
    aside: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        yield aside
        aside.chmod(0o755)
        aside.replace(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)  # after the rename, none is there
