"""safetensors files: mapped, not read, and written one tensor at a time.

The library validates; the mapping and the writing are ours, because numpy has no bfloat16 and the library would hold a second copy.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import ModelError
from elmofire.formats.files import written_aside

# bfloat16 travels as the upper half of a float32, in 16-bit integers.
_DTYPES = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("u1"),
}
_ALIGNMENT = 64  # of the data's start: kernels like it, and the format allows padding the header


class MappedTensors:
    """The tensors of one file, by name: dtype, shape, and a read-only view of the mapped bytes."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy"):  # checks the header, every offset, and the size of the file
                pass
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
        except (SafetensorError, ValueError) as error:
            raise ModelError(f"{path}: is not a whole safetensors file: {error}") from None
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
        self.path = path
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        self._entries: dict[str, dict] = header
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self._start = 8 + size

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        return list(self._entries)

    def dtype(self, name: str) -> str:
        return self._entries[name]["dtype"]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._entries[name]["shape"])

    def view(self, name: str) -> NDArray:
        """The numbers as stored; bfloat16 as 16-bit integers."""
        entry = self._entries[name]
        if entry["dtype"] not in _DTYPES:
            raise ModelError(f"{self.path}: {name}: numbers of type {entry['dtype']} are not supported")
        first, last = entry["data_offsets"]
        stored = self._bytes[self._start + first : self._start + last]
        return np.asarray(stored).view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])

    def float32(self, name: str) -> NDArray[np.float32]:
        """The numbers as float32: a view where they are stored so, else a converted copy."""
        stored = self.view(name)
        if self.dtype(name) == "BF16":
            return bfloat16_to_float32(stored)
        return np.require(stored, np.float32, "A")  # other writers, and int8 beside float32, do not align every tensor


def write_tensors(
    path: Path,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    parts: Callable[[str], Iterable[NDArray]],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors given as name -> (dtype, shape); `parts(name)` gives each one's numbers, piece by piece, when its turn comes."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + _size(dtype, shape)]}
        offset += _size(dtype, shape)
    encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    encoded += b" " * (-(8 + len(encoded)) % _ALIGNMENT)
    with written_aside(path) as aside, aside.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for name, (dtype, shape) in tensors.items():
            start = file.tell()
            for part in parts(name):
                file.write(np.ascontiguousarray(part, dtype=_DTYPES[dtype]).data)
            if file.tell() - start != _size(dtype, shape):
                raise ValueError(f"{name}: {file.tell() - start:,} bytes do not have the shape {shape}")


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * _DTYPES[dtype].itemsize


def bfloat16_to_float32(stored: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (stored.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
