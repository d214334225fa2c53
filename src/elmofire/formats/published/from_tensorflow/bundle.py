"""TensorFlow's checkpoints of the second format: an index of variables (a sorted table, as LevelDB's) and files with their numbers.

Nothing in them is trusted: every offset and size is held against the file, every checksum is computed, and every loop ends.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import ModelError
from elmofire.formats.published.datasets import Block
from elmofire.formats.published.from_tensorflow.crc32c import crc32c, masked
from elmofire.formats.weights import Array
from elmofire.recipe import named

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes
_LARGEST_INDEX = 16 << 20  # bytes; that of the published model has 5,000
_MOST_VARIABLES, _MOST_SHARDS, _MOST_AXES, _LONGEST_NAME = 10_000, 1000, 8, 1000
_TYPES = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("<i4"), 9: np.dtype("<i8"), 19: np.dtype("<f2")}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields in a message


class _Entry(NamedTuple):
    """Where a variable's numbers are."""

    dtype: np.dtype
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


class Broken(Exception):
    """What is wrong with some bytes; whoever knows the file and the variable says so."""


class Bundle:
    """The variables of one checkpoint by name. What stands there and cannot be an array is in `unusable`, with the reason.

    A variable's numbers stay in the file until they are read; their checksum is computed then, once.
    """

    def __init__(self, prefix: Path) -> None:
        self.path = prefix.with_name(f"{prefix.name}.index")
        self._prefix = prefix
        self._entries: dict[str, _Entry] = {}
        self.unusable: dict[str, str] = {}
        self._maps: dict[int, NDArray[np.uint8]] = {}
        self._verified: set[str] = set()
        try:
            if self.path.stat().st_size > _LARGEST_INDEX:
                raise Broken(f"{self.path.stat().st_size:,} bytes are too many for an index of variables")
            self._read_index(self.path.read_bytes())
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read: {error.strerror}") from None
        except Broken as error:
            raise ModelError(
                f"{self.path}: is not a whole index of a TensorFlow checkpoint: {error}",
                hint="a broken download? compare its size with the published one",
            ) from None

    def _read_index(self, data: bytes) -> None:
        entries = iter(_table(data))
        key, value = next(entries, (b"", None))
        if key or value is None:
            raise Broken("it does not begin with a header")
        header = dict(_fields(value))
        self._shards = _whole(header.get(1, 0))
        if not 1 <= self._shards <= _MOST_SHARDS:
            raise Broken(f"it claims {self._shards:,} data files")
        if header.get(2, 0) != 0:
            raise Broken("its numbers are big-endian, which is not supported")
        for count, (key, value) in enumerate(entries):
            if count >= _MOST_VARIABLES:
                raise Broken(f"it has more than {_MOST_VARIABLES:,} variables")
            name = key.decode("utf-8", "backslashreplace")
            try:
                self._entries[name] = self._checked(_entry(value))
            except Broken as error:
                self.unusable[name] = str(error)

    def _checked(self, entry: _Entry) -> _Entry:
        if entry.shard >= self._shards:
            raise Broken(f"stands in data file {entry.shard}, but there are {self._shards}")
        expected = entry.dtype.itemsize
        for size in entry.shape:
            expected *= size
        if entry.size != expected:
            raise Broken(
                f"has {entry.size:,} bytes, but {expected:,} would make the shape {entry.shape} of {entry.dtype}"
            )
        file = self._shard(entry.shard)
        try:
            there = file.stat().st_size
        except OSError as error:
            raise Broken(f"cannot be read, because {file.name} cannot: {error.strerror}") from None
        if entry.offset + entry.size > there:
            raise Broken(f"ends at byte {entry.offset + entry.size:,} of {file.name}, which has {there:,}")
        return entry

    def _shard(self, number: int) -> Path:
        return self._prefix.with_name(f"{self._prefix.name}.data-{number:05d}-of-{self._shards:05d}")

    @property
    def files(self) -> list[Path]:
        """The index, and the files that its variables are in."""
        return [self.path, *[self._shard(number) for number in sorted({e.shard for e in self._entries.values()})]]

    @property
    def names(self) -> list[str]:
        return [*self._entries, *self.unusable]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape that a variable claims; None where there is none."""
        return self._entries[name].shape if name in self._entries else None

    def mismatches(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
        """What keeps the variables from being read as float32 numbers of these shapes."""
        claimed = 0
        for name, shape in shapes.items():
            entry = self._entries.get(name)
            if entry is None:
                yield f"{named(name)} {self.unusable.get(name, 'is missing')}"
            elif entry.dtype.kind != "f":
                yield f"{named(name)} holds no floating-point numbers, but {entry.dtype}"
            elif entry.shape != shape:
                yield f"{named(name)} has the shape {entry.shape}, but should have {shape}"
            else:
                claimed += entry.size
        there = sum(file.stat().st_size for file in self.files[1:])
        if claimed > there:
            yield f"the variables claim {claimed:,} bytes together, but the data files have {there:,}"

    def read(self, name: str, *blocks: Block, shape: tuple[int, ...] | None = None) -> Array:
        """The variable as float32, mapped where it is stored so; or (source, target) blocks of it in an array of `shape`."""
        stored = self.stored(name)
        if not blocks:
            return np.require(stored, np.float32, "A")
        out = np.empty(shape or stored.shape, dtype=np.float32)
        for source, target in blocks:
            out[target] = stored[source]
        return out

    def stored(self, name: str) -> NDArray:
        """The mapped numbers as they are stored, once their checksum is found right."""
        if name not in self._entries:
            raise ModelError(f"{self.path}: {named(name)} {self.unusable.get(name, 'is missing')}")
        entry = self._entries[name]
        data = self._map(entry.shard)[entry.offset : entry.offset + entry.size]
        if name not in self._verified:
            if len(data) != entry.size or masked(crc32c(data)) != entry.checksum:
                raise ModelError(
                    f"{self._shard(entry.shard)}: {named(name)}: the numbers do not have the checksum of the index",
                    hint="the file is damaged; get it again",
                )
            self._verified.add(name)
        return data.view(entry.dtype).reshape(entry.shape)

    def _map(self, shard: int) -> NDArray[np.uint8]:
        if shard not in self._maps:
            file = self._shard(shard)
            try:
                self._maps[shard] = np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))
            except (OSError, ValueError) as error:  # ValueError: an empty file
                raise ModelError(f"{file}: cannot be mapped: {error}") from None
        return self._maps[shard]


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values, in their order."""
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise Broken("its last bytes are not those of one")
    at = len(data) - _FOOTER
    handles: list[int] = []
    for _ in range(4):  # offset and size of the block about blocks, then of the index of blocks
        value, at = _varint(data, at)
        handles.append(value)
    end, last = 0, None
    for _, handle in _block(data, handles[2], handles[3]):
        offset, at = _varint(handle, 0)
        size, _ = _varint(handle, at)
        if offset < end:
            raise Broken("its blocks overlap")
        end = offset + size
        for key, value in _block(data, offset, size):
            if last is not None and key <= last:
                raise Broken("its names are not in order")
            last = key
            yield key, value


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; behind it are how it is compressed (one byte) and its checksum (four)."""
    if offset + size + 5 > len(data):
        raise Broken(f"a block ends at byte {offset + size + 5:,} of {len(data):,}")
    body = data[offset : offset + size + 1]
    if masked(crc32c(np.frombuffer(body, dtype=np.uint8))) != int.from_bytes(
        data[offset + size + 1 : offset + size + 5], "little"
    ):
        raise Broken(f"the block at byte {offset:,} has a wrong checksum")
    if body[-1] != 0:
        kind = "with snappy" if body[-1] == 1 else f"in the unknown way {body[-1]}"
        raise Broken(f"the block at byte {offset:,} is compressed {kind}, which is not supported")
    restarts = int.from_bytes(body[-5:-1], "little") if size >= 4 else 0
    end = size - 4 * (restarts + 1)
    if end < 0:
        raise Broken(f"the block at byte {offset:,} is too short")
    at, key = 0, b""
    while at < end:
        shared, at = _varint(body, at)
        unshared, at = _varint(body, at)
        length, at = _varint(body, at)
        if shared > len(key) or shared + unshared > _LONGEST_NAME or at + unshared + length > end:
            raise Broken(f"the block at byte {offset:,} holds an entry that does not fit")
        key = key[:shared] + body[at : at + unshared]
        at += unshared
        yield key, body[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, seven in a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value & (1 << 64) - 1, at
    raise Broken("a number does not end")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field of a protocol buffer."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise Broken(f"a field is of the unknown kind {kind}")
        if at + length > len(message):
            raise Broken("a field does not end")
        data = message[at : at + length]
        yield tag >> 3, data if kind == _BYTES else int.from_bytes(data, "little")
        at += length


def _entry(message: bytes) -> _Entry:
    """What the index says about a variable. A field that is not there is 0."""
    values: dict[int, int] = {}
    shape: list[int] = []
    for number, value in _fields(message):
        if number == 2:
            shape += _shape(value)
        elif number == 7:
            raise Broken("is cut into slices, which is not supported")
        elif number in (1, 3, 4, 5, 6):
            values[number] = _whole(value)
    if values.get(1, 0) not in _TYPES:
        raise Broken(f"holds values of TensorFlow's type {values.get(1, 0)}, which is not supported")
    if len(shape) > _MOST_AXES or any(size >= 1 << 63 for size in shape):
        raise Broken("has a shape that cannot be")
    return _Entry(_TYPES[values[1]], tuple(shape), *[values.get(number, 0) for number in (3, 4, 5, 6)])


def _shape(message: int | bytes) -> list[int]:
    if not isinstance(message, bytes):
        raise Broken("has a shape that cannot be")
    axes = [dict(_fields(axis)) for number, axis in _fields(message) if number == 2 and isinstance(axis, bytes)]
    return [_whole(axis.get(1, 0)) for axis in axes]


def _whole(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise Broken("a field is not a number")
    return value
