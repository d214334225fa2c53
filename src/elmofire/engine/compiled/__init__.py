"""The compiled kernels over numpy arrays."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Ints
from elmofire.engine.compiled.calls import (
    INFINITY,
    Call,
    Kernel,
    LayerStruct,
    MatrixStruct,
    ProductStruct,
    StepsStruct,
    WordsStruct,
    address,
    address_or_none,
    aligned_bytes,
    floats,
)
from elmofire.engine.compiled.library import Library, load
from elmofire.engine.workers import AtOnce, one_by_one
from elmofire.formats.weights import Array

KINDS = {"float32": 0, "int16": 1, "int8": 2}

_int, _float, _pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


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
        self.struct = MatrixStruct(KINDS[kind], depth, columns, *map(address_or_none, arrays))
        self.address = ctypes.addressof(self.struct)

    def product(self, x: Array, *, clip: float = INFINITY) -> Call:
        """x (rows, depth) times the matrix, plus its bias: (rows, columns)."""
        return self._product(x, floats(len(x), self.columns), (self.columns, self._kernels.panel), clip)

    def by_panels(self, x: Array, out: Array) -> Call:
        """The same as (panels, rows, panel), columns padded to whole panels, as tables are laid out."""
        return self._product(x, out, (out.strides[1] // 4, out.strides[0] // 4), INFINITY)

    def _product(self, x: Array, out: Array, strides: tuple[int, int], clip: float) -> Call:
        x = np.ascontiguousarray(x, dtype=np.float32)
        work = ProductStruct(self.address, len(x), address(x), self.depth, address(out), *strides, clip)
        return Call(self._kernels.multiply, work, out, self, x)


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
        ask = lambda name, result, *arguments: ctypes.PYFUNCTYPE(result, *arguments)((f"elmofire_{name}", handle))  # noqa: E731
        self.multiply = Kernel(0, bind("multiply", None, _pointer), ask("multiply_scratch", _int, _pointer))
        self.run = Kernel(1, bind("run", None, _pointer), ask("run_scratch", _int, _pointer))
        self.companion_bytes = ask("companion_bytes", _int)
        self.companion_ready = ask("companion_ready", None, _pointer)
        self.companion_end = ask("companion_end", None, _pointer)
        self.companion_wait = bind("companion_wait", None, _pointer)
        self.both = bind("both", None, _pointer, _int, _pointer, _pointer)
        self._highway = bind("highway", None, _int, _int, _pointer, _pointer, _pointer)
        self._pack = bind("pack", None, _int, _int, _int, _int, *[_pointer] * 4)
        self._spell = Kernel(2, bind("spell", None, _pointer))

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
        packed = aligned_bytes(columns * self.padded_depth(kind, depth) * number.itemsize).view(number)
        scale, sums = (None, None) if kind == "float32" else (floats(columns) for _ in range(2))
        addresses = map(address_or_none, (matrix, packed, scale, sums))
        self._pack(KINDS[kind], parts, len(matrix) // parts, depth, *addresses)
        across = None if bias is None else self.pack(bias[:, None], "float32", parts=parts).packed
        return Packed(packed, scale, sums, across)

    def highway(self, gate: Array, transform: Array, z: Array) -> None:
        """Let `z` (rows, width) through where its gate is closed, in place."""
        self._highway(*z.shape, address(gate), address(transform), address(z))

    def spell(
        self,
        ids: NDArray[np.int32],
        lengths: NDArray,
        tables: "Sequence[Tables]",
        *,
        tanh: bool,
        at_once: AtOnce = one_by_one,
    ) -> Array:
        """Character ids (words, columns) -> the largest response of each filter, through its function (words, filters)."""
        ids = np.ascontiguousarray(ids, dtype=np.int32)
        lengths = np.ascontiguousarray(lengths, dtype=np.int32)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < tables[0].characters:
            raise IndexError(f"characters have the ids 0 to {tables[0].characters - 1}")
        out = floats(len(ids), sum(len(part.bias) for part in tables))
        calls, columns = [], address(out)
        for part in tables:
            banks = map(address, (part.widths, part.counts, part.numbers, part.bias))
            given = (*ids.shape, address(ids), address(lengths), part.characters, len(part.widths), *banks, int(tanh))
            work = WordsStruct(*given, columns, out.shape[1])
            calls.append(Call(self._spell, work, out, ids, lengths, part))
            columns += part.bias.nbytes
        at_once(calls)
        return out


class Tables(NamedTuple):
    """What each character adds to each filter's response, by its place in the window."""

    characters: int
    widths: Ints  # (banks,)
    counts: Ints
    numbers: Array  # flat: for each bank, for each panel of its filters, (width, characters, panel)
    bias: Array  # of all filters

    def halves(self, panel: int) -> "list[Tables]":
        """The first filters and the others, whole panels of them, about half of the work each, and without empty ones."""
        panels = -(-self.counts // panel)
        work = np.repeat(self.widths, panels)  # of each panel
        cut = int(np.searchsorted(np.cumsum(work), work.sum() / 2))
        first = np.minimum(np.clip(cut - (np.cumsum(panels) - panels), 0, panels) * panel, self.counts)
        size = self.characters * panel * int(work[:cut].sum())
        shares = (
            (first, self.numbers[:size], self.bias[: int(first.sum())]),
            (self.counts - first, self.numbers[size:], self.bias[int(first.sum()) :]),
        )
        return [
            Tables(self.characters, self.widths[counts > 0], counts[counts > 0], *others)
            for counts, *others in shares
            if counts.any()
        ]


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
        self._struct = LayerStruct(
            cells,
            self._width,
            input.address,
            recurrent.address,
            projection.address if projection else None,
            INFINITY if cell_clip is None else cell_clip,
            INFINITY if projection_clip is None else projection_clip,
        )
        self._address = ctypes.addressof(self._struct)

    def steps(
        self, inputs: Array, starts: Ints, h: Array, c: Array, *, which: Ints | None = None, stored: int = 0
    ) -> Call:
        """Steps over the rows `starts[0]` .. `starts[-1]` -> their outputs; `h` and `c` are moved on in place.

        The rows' inputs are `inputs[which]`, or `inputs` themselves, whose gates are then stored for so many rows at a time, or, if
        that is 0, not at all: the input matrix is read at every step instead.
        """
        inputs = np.ascontiguousarray(inputs, dtype=np.float32)
        out = floats(int(starts[-1] - starts[0]), self._width)
        work = StepsStruct(
            self._address,
            len(starts) - 1,
            address(starts),
            address(inputs),
            address_or_none(which),
            len(inputs),
            stored,
            address(h),
            address(c),
            c.shape[1],
            address(out),
        )
        return Call(self._kernels.run, work, out, self, starts, inputs, which, h, c)


def kernels_for(instruction_set: str | None) -> Kernels | None:
    """The kernels of an instruction set, or the best there are; none: numpy is used. See `library.load`."""
    library = load(instruction_set)
    return None if library is None else Kernels(library)
