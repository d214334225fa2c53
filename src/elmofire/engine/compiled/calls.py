"""Calls of the compiled kernels, as C sees them. What is declared here is what `c/kernels.h` says, and holds for its ABI number."""

import ctypes
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmofire.formats.weights import Array

ALIGNMENT = 64  # bytes: a line of the cache
INFINITY = float("inf")

_int, _float, _pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class MatrixStruct(ctypes.Structure):
    """A packed matrix."""

    _fields_ = (
        ("kind", _int),
        ("depth", _int),
        ("columns", _int),
        ("packed", _pointer),
        ("scale", _pointer),
        ("sums", _pointer),
        ("bias", _pointer),
    )


class LayerStruct(ctypes.Structure):
    """An LSTM layer."""

    _fields_ = (
        ("cells", _int),
        ("width", _int),
        ("input", _pointer),
        ("recurrent", _pointer),
        ("projection", _pointer),
        ("cell_clip", _float),
        ("projection_clip", _float),
    )


class ProductStruct(ctypes.Structure):
    """Rows to be multiplied with a matrix."""

    _fields_ = (
        ("matrix", _pointer),
        ("rows", _int),
        ("x", _pointer),
        ("x_stride", _int),
        ("out", _pointer),
        ("row_stride", _int),
        ("panel_stride", _int),
        ("clip", _float),
        ("scratch", _pointer),
    )


class StepsStruct(ctypes.Structure):
    """Steps of a layer."""

    _fields_ = (
        ("layer", _pointer),
        ("steps", _int),
        ("starts", _pointer),
        ("inputs", _pointer),
        ("which", _pointer),
        ("distinct", _int),
        ("stored", _int),
        ("h", _pointer),
        ("c", _pointer),
        ("c_stride", _int),
        ("out", _pointer),
        ("scratch", _pointer),
    )


class WordsStruct(ctypes.Structure):
    """Words to be spelled."""

    _fields_ = (
        ("words", _int),
        ("columns", _int),
        ("ids", _pointer),
        ("lengths", _pointer),
        ("characters", _int),
        ("banks", _int),
        ("widths", _pointer),
        ("counts", _pointer),
        ("tables", _pointer),
        ("bias", _pointer),
        ("use_tanh", _int),
        ("out", _pointer),
        ("out_stride", _int),
    )


class Kernel(NamedTuple):
    """A function of the library that works on one of these structures."""

    number: int  # in `enum kernel`
    run: Callable[[int], None]
    scratch: Callable[[int], int] | None = None  # how many bytes it works in


class Call:
    """A kernel and all that it works on: it runs, and gives its result, when it is called, here or on another thread."""

    __slots__ = ("_kept", "address", "kernel", "result")

    def __init__(
        self, kernel: Kernel, work: ProductStruct | StepsStruct | WordsStruct, result: Array, *kept: object
    ) -> None:
        self.kernel, self.result = kernel, result
        self.address = ctypes.addressof(work)
        scratch = None
        if kernel.scratch:
            scratch = aligned_bytes(kernel.scratch(self.address))
            work.scratch = address(scratch)
        self._kept = work, scratch, kept  # since C has only their addresses

    def __call__(self) -> Array:
        self.kernel.run(self.address)
        return self.result


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """So many bytes, aligned."""
    raw = np.empty(size + ALIGNMENT, dtype=np.uint8)
    first = -address(raw) % ALIGNMENT
    return raw[first : first + size]


def floats(*shape: int) -> Array:
    """Room for float32 numbers, aligned: vectors that lie across two lines of the cache take twice as long."""
    return aligned_bytes(4 * math.prod(shape)).view(np.float32).reshape(shape)


def address(array: NDArray) -> int:
    """Where its numbers are. `array.ctypes.data` takes four times as long, and a sentence asks for a hundred."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):  # read-only, in pieces or empty
        return array.ctypes.data


def address_or_none(array: NDArray | None) -> int | None:
    return None if array is None else address(array)
