"""Files that `torch.save` wrote, read without torch: a pickle of names and shapes, and storages of plain numbers.

Since torch 1.6 such a file is a zip; before, pickles and storages stood one behind the other.
"""

import mmap
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import ModelError
from elmofire.formats.files import most_unpacked
from elmofire.formats.published.from_torch.unpickling import LONGEST, Pickle, Storage, Tensor
from elmofire.formats.tensors import bfloat16_to_float32
from elmofire.recipe import named, shown

Bytes = NDArray[np.uint8]

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_CHUNK = 1 << 20  # bytes of a stream that are copied at a time
_DAMAGE = (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OverflowError, struct.error)

# What travels as something else: numpy has no bfloat16, and a byte that is neither 0 nor 1 is no bool of its own.
_CARRIERS = {"bfloat16": "u2", "bool": "u1"}


class StateDict(Mapping[str, NDArray]):
    """Tensors by name. Shapes are known at once; numbers are looked at when a tensor is asked for."""

    def __init__(self, tensors: dict[str, Tensor], layout: "_Layout", where: str) -> None:
        self.where = where
        self._tensors = tensors
        self._layout = layout

    def __getitem__(self, name: str) -> NDArray:
        tensor = self._tensors[name]
        storage = tensor.storage
        dtype = np.dtype(_CARRIERS.get(storage.kind, storage.kind)).newbyteorder(self._layout.order)
        if 0 in tensor.shape:
            array = np.zeros(tensor.shape, dtype)
        else:
            first = (storage.first + tensor.offset) * dtype.itemsize
            strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
            array = np.ndarray(tensor.shape, dtype, self._bytes(storage.key), first, strides)
        if storage.kind == "bfloat16":
            return bfloat16_to_float32(array)
        return array != 0 if storage.kind == "bool" else array

    def _bytes(self, key: str) -> Bytes:
        try:
            return self._layout.stored[key].read()
        except _DAMAGE as error:
            raise ModelError(f"{self.where}: storage {named(key)} cannot be read: {_said(error)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def kind(self, name: str) -> str:
        """numpy's letters for the type of the numbers, such as f4, or bfloat16 or bool."""
        return self._tensors[name].storage.kind


def read_state_dict(file: Path | IO[bytes], where: str) -> StateDict:
    """The tensors of a file by name; `where` names it in errors. An open file is read to its end now, and not needed afterwards.

    What else stands in the dict, such as the number of an epoch, is left out. Whoever opened a compressed file limits how much it gives.
    """
    data = _mapped(file, where)
    try:
        layout = _zip_layout(data, where) if data[:4] == b"PK\3\4" else _legacy_layout(data, where)
    except _DAMAGE as error:
        raise ModelError(f"{where}: is not a whole file of torch: {_said(error)}", hint="a broken download?") from None
    if type(layout.found) is not dict:
        raise ModelError(f"{where}: holds no dict of tensors, but {shown(layout.found)}")
    found = layout.found.items()
    tensors = {name: value for name, value in found if type(name) is str and type(value) is Tensor}
    if not tensors:
        keys = ", ".join(named(str(key)) for key in list(layout.found)[:8]) or "nothing"
        raise ModelError(f"{where}: holds no tensors, but {keys}", hint="save the state_dict() of the model alone")
    for key, storage in layout.storages.items():
        held = layout.stored[key].length if key in layout.stored else 0
        if storage.count * storage.itemsize > held:
            raise ModelError(
                f"{where}: storage {named(key)} should have {storage.count:,} numbers, but the file holds {held:,} bytes"
            )
    return StateDict(tensors, layout, where)


class _File(mmap.mmap):
    def seekable(self) -> bool:
        return True  # mmap itself says so only since Python 3.13, and zipfile asks


def _mapped(file: Path | IO[bytes], where: str) -> _File:
    try:
        if isinstance(file, Path):
            with file.open("rb") as opened:
                return _File(opened.fileno(), 0, access=mmap.ACCESS_READ)
        with tempfile.TemporaryFile() as spool:  # without a name: it goes when nobody looks at it any more
            while chunk := file.read(_CHUNK):
                spool.write(chunk)
            spool.flush()
            return _File(spool.fileno(), 0, access=mmap.ACCESS_READ)
    except _DAMAGE as error:  # an empty file is a ValueError
        raise ModelError(f"{where}: cannot be read: {_said(error)}") from None


def _said(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


@dataclass(frozen=True)
class _Stored:
    """The bytes of a storage: how many, and how to get at them."""

    length: int
    read: Callable[[], Bytes]


@dataclass(frozen=True)
class _Layout:
    """What a file of either layout comes down to."""

    found: Any  # the pickled object
    storages: dict[str, Storage]  # that it claims
    stored: dict[str, _Stored]  # that are there
    order: Literal["<", ">"] = "<"


def _zip_layout(data: _File, where: str) -> _Layout:
    archive = zipfile.ZipFile(cast("BinaryIO", data))
    members = {info.filename: info for info in archive.infolist()}
    claimed = sum(info.file_size for info in members.values())
    if claimed > most_unpacked(len(data)):
        raise ModelError(f"{where}: its members claim {claimed:,} bytes, but the file has {len(data):,}")
    pickles = [name for name in members if name == "data.pkl" or (name.count("/") == 1 and name.endswith("/data.pkl"))]
    if len(pickles) != 1:
        raise ModelError(f"{where}: a zip of torch has one data.pkl, but this one has {len(pickles)}")
    top = pickles[0].removesuffix("data.pkl")
    order = "little"
    if f"{top}byteorder" in members:
        order = _member(archive, members[f"{top}byteorder"], data)()[:8].tobytes().decode("ascii", "replace")
    if order not in ("little", "big"):
        raise ModelError(f"{where}: {top}byteorder is {shown(order)}, but should be little or big")
    pickle = Pickle(_member(archive, members[pickles[0]], data)()[:LONGEST].tobytes(), where)
    found = pickle.read()
    stored = {
        key: _Stored(members[name].file_size, _member(archive, members[name], data))
        for key in pickle.storages
        if (name := f"{top}data/{key}") in members
    }
    return _Layout(found, pickle.storages, stored, "<" if order == "little" else ">")


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: _File) -> Callable[[], Bytes]:
    """How to read a member: what is not compressed, as torch writes it, is a view of the file."""

    def view() -> Bytes:
        first = info.header_offset + 30 + sum(struct.unpack_from("<HH", data, info.header_offset + 26))
        if info.file_size > len(data) - first:
            raise EOFError(f"{named(info.filename)} is cut off")
        # Not compared with its check sum: torch can be told to write none.
        return np.frombuffer(data, np.uint8, info.file_size, first)

    @cache
    def unpacked() -> Bytes:
        with archive.open(info) as file:
            content = file.read(info.file_size)
        if len(content) != info.file_size:
            raise EOFError(f"{named(info.filename)} is cut off")
        return np.frombuffer(content, np.uint8)

    encrypted = info.flag_bits & 1
    return view if info.compress_type == zipfile.ZIP_STORED and not encrypted else unpacked


def _legacy_layout(data: _File, where: str) -> _Layout:
    """Five pickles (a magic number, a version, the writer's machine, the object, the storages' keys), then counts and numbers."""
    pickles: list[Pickle] = []

    def unpickled() -> Any:
        place = sum(pickle.length for pickle in pickles)
        pickles.append(Pickle(data[place : place + LONGEST], where))
        return pickles[-1].read()

    if data[:1] != b"\x80" or unpickled() != _MAGIC:
        raise ModelError(f"{where}: is not a file that torch.save wrote", hint="a broken download?")
    version, _, found, keys = unpickled(), unpickled(), unpickled(), unpickled()
    if version != _PROTOCOL:
        raise ModelError(f"{where}: protocol version {shown(version)} is not known here")
    storages = pickles[3].storages
    if type(keys) is not list or not all(type(key) is str for key in keys) or sorted(keys) != sorted(storages):
        raise ModelError(f"{where}: its list of storages is not that of its tensors")
    place = sum(pickle.length for pickle in pickles)
    stored: dict[str, _Stored] = {}
    for key in keys:
        (count,) = struct.unpack_from("<q", data, place)
        length = count * storages[key].itemsize
        if not 0 <= length <= len(data) - place - 8:
            raise EOFError(f"storage {named(key)} claims {count:,} numbers, and is cut off")
        read = np.frombuffer(data, np.uint8, length, place + 8)
        stored[key] = _Stored(length, lambda read=read: read)
        place += 8 + length
    return _Layout(found, storages, stored)
