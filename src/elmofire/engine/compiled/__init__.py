"""The compiled kernels over numpy arrays. What is declared here is what `c/kernels.h` says, and holds for its ABI number."""

import ctypes
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Ints
from elmofire.engine.compiled.library import Library, load
from elmofire.formats.weights import Array

KINDS = {"float32": 0, "int16": 1, "int8": 2}
ALIGNMENT = 64  # bytes: a line of the cache

_INFINITY = float("inf")
_int, _float, _pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("kind", _int),
        ("depth", _int),
        ("columns", _int),
        ("packed", _pointer),
        ("scale", _pointer),
        ("sums", _pointer),
        ("bias", _pointer),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("cells", _int),
        ("width", _int),
        ("input", _pointer),
        ("recurrent", _pointer),
        ("projection", _pointer),
        ("cell_clip", _float),
        ("projection_clip", _float),
    )


class Packed(NamedTuple):
    """The arrays of one matrix in the kernels' layout."""

    packed: NDArray
    scale: Array | None = None  # of the integer kinds
    sums: Array | None = None
    bias: Array | None = None


class Matrix:
    """A packed matrix that rows are multiplied with: (rows, depth) -> (rows, columns)."""

    def __init__(self, kernels: "Kernels", kind: str, depth: int, columns: int, arrays: Packed) -> None:
        self.depth, self.columns = depth, columns
        self._kernels = kernels
        self._arrays = arrays  # kept, since C has only their addresses
        self.struct = _Matrix(KINDS[kind], depth, columns, *map(_address_or_none, arrays))
        self.address = ctypes.addressof(self.struct)

    def __call__(self, x: Array, *, clip: float = _INFINITY) -> Array:
        """x (rows, depth) times the matrix, plus its bias: (rows, columns)."""
        out = floats(len(x), self.columns)
        return self._multiply(x, out, (self.columns, self._kernels.panel), clip)

    def by_panels(self, x: Array, out: Array | None = None) -> Array:
        """The same as (panels, rows, panel), columns padded to whole panels, as layers and tables are laid out."""
        panel = self._kernels.panel
        if out is None:
            out = floats(-(-self.columns // panel), len(x), panel)
        return self._multiply(x, out, (out.strides[1] // 4, out.strides[0] // 4), _INFINITY)

    def _multiply(self, x: Array, out: Array, strides: tuple[int, int], clip: float) -> Array:
        x = np.ascontiguousarray(x, dtype=np.float32)
        kernels, rows = self._kernels, len(x)
        scratch = room(kernels.multiply_scratch(self.address, rows))
        numbers, result, work = _address(x), _address(out), _address(scratch)
        kernels.multiply(self.address, rows, numbers, self.depth, result, *strides, clip, work)
        return out


class Kernels:
    """The functions of one library, declared."""

    def __init__(self, library: Library) -> None:
        self.name = library.name
        handle = library.handle
        self.lanes = int(handle.elmofire_lanes())
        self.panel = 4 * self.lanes
        self.int8_group = int(handle.elmofire_int8_group())
        bind = lambda name, result, *arguments: ctypes.CFUNCTYPE(result, *arguments)((f"elmofire_{name}", handle))  # noqa: E731
        # Answered at once, with the interpreter's lock held: to let it go is to wait for it behind another thread.
        ask = lambda name, *arguments: ctypes.PYFUNCTYPE(_int, *arguments)((f"elmofire_{name}", handle))  # noqa: E731
        self.multiply_scratch = ask("multiply_scratch", _pointer, _int)
        self.run_scratch = ask("run_scratch", _pointer, _int)
        self.multiply = bind("multiply", None, _pointer, _int, _pointer, _int, _pointer, _int, _int, _float, _pointer)
        self._highway = bind("highway", None, _int, _int, _pointer, _pointer, _pointer)
        self._pack = bind("pack", None, _int, _int, _int, _int, *[_pointer] * 4)
        self._spell = bind(
            "spell", None, _int, _int, _pointer, _pointer, _int, _int, *[_pointer] * 4, _int, _pointer, _int
        )
        self.run = bind("run", None, _pointer, _int, *[_pointer] * 3, _int, *[_pointer] * 3, _int, *[_pointer] * 2)

    def padded(self, results: int, parts: int = 1) -> int:
        """The columns of a packed matrix, whole panels of them."""
        return -(-(results // parts) // (self.panel // parts)) * self.panel

    def padded_depth(self, kind: str, depth: int) -> int:
        """The numbers of a column, whole groups of them."""
        group = {"float32": 1, "int16": 2, "int8": self.int8_group}[kind]
        return -(-depth // group) * group

    def pack(self, matrix: Array, kind: str, *, parts: int = 1, bias: Array | None = None) -> Packed:
        """Lay a matrix (results, depth) out for the kernels; with `parts`, a panel has the same columns of each part."""
        matrix = np.ascontiguousarray(matrix, dtype=np.float32)
        columns, depth, number = self.padded(len(matrix), parts), matrix.shape[1], np.dtype(kind)
        packed = room(columns * self.padded_depth(kind, depth) * number.itemsize).view(number)
        scale, sums = (None, None) if kind == "float32" else (floats(columns) for _ in range(2))
        addresses = map(_address_or_none, (matrix, packed, scale, sums))
        self._pack(KINDS[kind], parts, len(matrix) // parts, depth, *addresses)
        across = None if bias is None else self.pack(bias[:, None], "float32", parts=parts).packed
        return Packed(packed, scale, sums, across)

    def highway(self, gate: Array, transform: Array, z: Array) -> None:
        """Let `z` (rows, width) through where its gate is closed, in place."""
        self._highway(*z.shape, _address(gate), _address(transform), _address(z))

    def spell(self, ids: NDArray[np.int32], lengths: NDArray, tables: "Tables", *, tanh: bool) -> Array:
        """Character ids (words, columns) -> the largest response of each filter, through its function (words, filters)."""
        ids = np.ascontiguousarray(ids, dtype=np.int32)
        lengths = np.ascontiguousarray(lengths, dtype=np.int32)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < tables.characters:
            raise IndexError(f"characters have the ids 0 to {tables.characters - 1}")
        out = floats(len(ids), len(tables.bias))
        self._spell(
            *ids.shape,
            _address(ids),
            _address(lengths),
            tables.characters,
            len(tables.widths),
            *map(_address, (tables.widths, tables.counts, tables.numbers, tables.bias)),
            int(tanh),
            _address(out),
            out.shape[1],
        )
        return out


class Tables(NamedTuple):
    """What each character adds to each filter's response, by its place in the window."""

    characters: int
    widths: Ints  # (banks,)
    counts: Ints
    numbers: Array  # flat: for each bank, for each panel of its filters, (width, characters, panel)
    bias: Array  # of all filters


class PackedLayer:
    """An LSTM layer on packed matrices."""

    def __init__(
        self,
        kernels: Kernels,
        input: Matrix,
        recurrent: Matrix,
        projection: Matrix | None,
        *,
        cells: int,
        cell_clip: float | None,
        projection_clip: float | None,
    ) -> None:
        self.memory_room = (
            -(-cells // 16) * 16 + 16
        )  # whole vectors, and no power of two: rows would share cache lines' places
        self._width = projection.columns if projection else cells
        self._kernels = kernels
        self._matrices = input, recurrent, projection
        self._struct = _Layer(
            cells,
            self._width,
            input.address,
            recurrent.address,
            projection.address if projection else None,
            _INFINITY if cell_clip is None else cell_clip,
            _INFINITY if projection_clip is None else projection_clip,
        )
        self._address = ctypes.addressof(self._struct)

    def run(
        self,
        starts: Ints,
        h: Array,
        c: Array,
        *,
        inputs: Array | None = None,
        gates: Array | None = None,
        which: Ints | None = None,
    ) -> Array:
        """Steps over the rows `starts[0]` .. `starts[-1]` -> their outputs; `h` and `c` are moved on in place.

        What they take in is `inputs` (rows, width) or, computed before, `gates` (panels, n, panel) and which of them each row has.
        """
        out = floats(int(starts[-1] - starts[0]), self._width)
        scratch = room(self._kernels.run_scratch(self._address, int(starts[1] - starts[0])))
        self._kernels.run(
            self._address,
            len(starts) - 1,
            _address(starts),
            _address_or_none(inputs),
            _address_or_none(gates),
            0 if gates is None else gates.shape[1],
            _address_or_none(which),
            _address(h),
            _address(c),
            c.shape[1],
            _address(out),
            _address(scratch),
        )
        return out


def kernels_for(instruction_set: str | None) -> Kernels | None:
    """The kernels of an instruction set, or the best there are; none: numpy serves. See `library.load`."""
    library = load(instruction_set)
    return None if library is None else Kernels(library)


def room(size: int) -> NDArray[np.uint8]:
    """So many bytes, aligned."""
    raw = np.empty(size + ALIGNMENT, dtype=np.uint8)
    first = -_address(raw) % ALIGNMENT
    return raw[first : first + size]


def floats(*shape: int) -> Array:
    """Room for float32 numbers, aligned: vectors that lie across two lines of the cache take twice as long."""
    return room(4 * math.prod(shape)).view(np.float32).reshape(shape)


def _address(array: NDArray) -> int:
    """Where its numbers are. `array.ctypes.data` takes four times as long, and a sentence asks for a hundred."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):  # read-only, in pieces or empty
        return array.ctypes.data


def _address_or_none(array: NDArray | None) -> int | None:
    return None if array is None else _address(array)
