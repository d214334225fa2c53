"""HDF5 files from outside: only plain numbers that stand in the file itself, and no more of them than it can back."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

import h5py
import numpy as np

from elmofire.errors import ModelError
from elmofire.formats.files import most_unpacked
from elmofire.formats.weights import Array
from elmofire.recipe import named

# What h5py raises over a damaged file depends on where the damage is.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)
_DEEPEST = 8  # groups within groups: an ELMo has five

Block = tuple[tuple[slice, ...], tuple[slice, ...]]


class Datasets(Protocol):
    """Arrays under the names that 2018's HDF5 files give them, wherever they stand."""

    @property
    def path(self) -> Path: ...
    @property
    def names(self) -> set[str]: ...
    def spelled(self, name: str) -> str: ...
    def has(self, group: str) -> bool: ...
    def rows(self, name: str) -> int: ...
    def mismatches(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]: ...
    def read(self, name: str, *blocks: Block, shape: tuple[int, ...] | None = None) -> Array: ...


class DatasetFile:
    """The datasets of one file by name. What stands there and cannot be a plain array is in `unusable`, with the reason.

    The bytes are those at `path`, or those of `opened`, which is called `path` then.
    """

    def __init__(self, path: Path, opened: BinaryIO | None = None) -> None:
        self.path = path
        self._datasets: dict[str, h5py.Dataset] = {}
        self.unusable: dict[str, str] = {}
        try:
            file = h5py.File(path if opened is None else opened, "r")
            self._size = path.stat().st_size if opened is None else opened.seek(0, io.SEEK_END)
            self._limit = most_unpacked(self._size)
            self._walk(file, "", {file})
        except _DAMAGE as error:
            raise ModelError(
                f"{path}: is not a whole HDF5 file: {_said(error)}",
                hint="a broken download? compare its size with the published one",
            ) from None

    def _walk(self, group: h5py.Group, prefix: str, seen: set[h5py.Group]) -> None:
        for key in group:
            name = f"{prefix}{key}"
            try:
                if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                    self.unusable[name] = "is a link; only data inside the file is read"
                    continue
                found = group[key]
            except _DAMAGE as error:
                self.unusable[name] = f"cannot be read: {_said(error)}"
                continue
            if isinstance(found, h5py.Dataset):
                self._datasets[name] = found
            elif not isinstance(found, h5py.Group):
                self.unusable[name] = "is a data type, not an array"
            elif found in seen or name.count("/") >= _DEEPEST:
                self.unusable[name] = "is a group within itself, or nested too deeply"
            else:
                seen.add(found)
                self._walk(found, f"{name}/", seen)

    @property
    def names(self) -> set[str]:
        return set(self._datasets)

    def spelled(self, name: str) -> str:
        """A dataset's name in the file."""
        return name

    def has(self, group: str) -> bool:
        """Whether anything stands in a group."""
        return any(f"{name}/".startswith(f"{group}/") for name in (*self._datasets, *self.unusable))

    def rows(self, name: str) -> int:
        """How many rows a dataset claims to have; 0 where it has none."""
        try:
            return self._datasets[name].shape[0] if name in self._datasets else 0
        except (*_DAMAGE, IndexError):
            return 0

    def mismatches(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
        """What keeps the datasets from being read as float32 numbers of these shapes."""
        yield from (f"{named(name)} {reason}" for name, reason in self.unusable.items())
        claimed = 0
        for name, shape in shapes.items():
            try:
                problem = self._mismatch(name, shape)
            except _DAMAGE as error:
                problem = f"{name} cannot be read: {_said(error)}"
            if problem:
                yield problem
            elif name in self._datasets:
                claimed += self._datasets[name].nbytes
        if claimed > self._limit:
            yield f"the datasets claim {claimed:,} bytes together, but the file has {self._size:,}"

    def _mismatch(self, name: str, shape: tuple[int, ...]) -> str | None:
        if name not in self._datasets:
            return None if name in self.unusable else f"{name} is missing"
        dataset = self._datasets[name]
        if dataset.dtype.kind != "f":
            return f"{name} holds no floating-point numbers, but {dataset.dtype}"
        if dataset.shape != shape:
            return f"{name} has the shape {dataset.shape}, but should have {shape}"
        if dataset.external or dataset.is_virtual:
            return f"{name} keeps its numbers outside the file"
        # A chunk is unpacked whole, and may be larger than its dataset.
        chunk = int(np.prod(dataset.chunks, dtype=object)) * dataset.dtype.itemsize if dataset.chunks else 0
        stored = dataset.id.get_storage_size()
        if stored == 0 or max(dataset.nbytes, chunk) > self._limit:
            return f"{name} claims {max(dataset.nbytes, chunk):,} bytes, but the file holds {stored:,} of it"
        return None

    def read(self, name: str, *blocks: Block, shape: tuple[int, ...] | None = None) -> Array:
        """The dataset as float32; or (source, target) blocks of it, gathered into an array of `shape`."""
        try:
            dataset = self._datasets[name]
            out = np.empty(shape or dataset.shape, dtype=np.float32)
            for source, target in blocks or [((), ())]:
                dataset.read_direct(out, np.s_[source], np.s_[target])
        except _DAMAGE as error:
            raise ModelError(f"{self.path}: {name} cannot be read: {_said(error)}") from None
        return out


def _said(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__  # a KeyError's str() has quotes around it
