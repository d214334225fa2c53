"""A model's weights in the compiled kernels' layout and precision, and the encoder and layers that run on them."""

import mmap
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Ints
from elmofire.engine.compiled import Kernels, Matrix, Packed, PackedLayer, Tables
from elmofire.engine.compiled.calls import Call, floats
from elmofire.engine.encoder import character_table, filter_bias, pass_highway
from elmofire.engine.recurrence import bias_with_forget
from elmofire.engine.workers import AtOnce
from elmofire.formats.config import HIGHWAYS, BilmConfig, tensor_shapes
from elmofire.formats.weights import Array, Weights

PRECISIONS = {"float32": 4, "int16": 2, "int8": 1}  # bytes of a number
LAYOUT = 1  # counts up when the same weights would be packed otherwise

_MOST_TABLE_BYTES = 64 << 20  # of the characters' tables; a larger alphabet has them made for the characters at hand
_MANY_ROWS = 24  # a step, from which on it is better to read the input weights at every step than to store gates
_STORED_ROWS = 256  # whose gates are stored at a time otherwise: 16 MB in the original size

Arrays = Mapping[str, NDArray]
Forms = dict[str, tuple[np.dtype, tuple[int, ...]]]  # the dtype and shape of each array


def pack(weights: Weights, kernels: Kernels, precision: str) -> Iterator[tuple[str, NDArray]]:
    """The model's arrays in the kernels' layout, one by one, so that whoever takes them holds no second copy."""
    config, arrays, encoder = weights.config, weights.arrays, weights.config.encoder
    if encoder.words:
        yield "encoder.words", arrays["encoder.words"]
    if encoder.filters:
        characters = character_table(weights)
        filters = [arrays[f"encoder.convolutions.{k}.weight"] for k in range(len(encoder.filters))]
        if _has_tables(config):
            yield "encoder.tables", tables(kernels, characters, filters)
        else:
            yield "encoder.characters", characters
            for k, bank in enumerate(filters):
                yield f"encoder.filters.{k}", bank
        yield "encoder.filter_bias", filter_bias(weights)
    for name, weight, bias_name, kind, parts in _matrices(config, precision):
        array, bias = arrays[weight], arrays[bias_name] if bias_name else None
        if bias is not None and parts == 4:
            bias = bias_with_forget(bias, config)
        packed = kernels.pack(array, kind, parts=parts, bias=bias)
        _let_go(array)
        yield from ((f"{name}.{part}", value) for part, value in packed._asdict().items() if value is not None)


def forms(config: BilmConfig, kernels: Kernels, precision: str) -> Forms:
    """What the arrays of `pack` look like, known before there are any."""
    encoder, shapes, number = config.encoder, tensor_shapes(config), np.dtype(np.float32)
    found: Forms = {}
    if encoder.words:
        found["encoder.words"] = number, shapes["encoder.words"]
    if encoder.filters:
        if _has_tables(config):
            columns = sum(width * kernels.padded(count) for width, count in encoder.filters)
            found["encoder.tables"] = number, ((encoder.characters + 1) * columns,)
        else:
            found["encoder.characters"] = number, (encoder.characters + 1, encoder.character_dim)
            for k in range(len(encoder.filters)):
                found[f"encoder.filters.{k}"] = number, shapes[f"encoder.convolutions.{k}.weight"]
        found["encoder.filter_bias"] = number, (encoder.filter_count,)
    for name, weight, bias_name, kind, parts in _matrices(config, precision):
        results, depth = shapes[weight]
        columns = kernels.padded(results, parts)
        found[f"{name}.packed"] = np.dtype(kind), (columns * kernels.padded_depth(kind, depth),)
        others = [*(["scale", "sums"] if kind != "float32" else []), *(["bias"] if bias_name else [])]
        found.update({f"{name}.{other}": (number, (columns,)) for other in others})
    return found


def _matrices(config: BilmConfig, precision: str) -> Iterator[tuple[str, str, str | None, str, int]]:
    """Every packed matrix: its name, its weight's and its bias's, its kind and its parts."""
    encoder = config.encoder
    parts = HIGHWAYS[encoder.highway]
    products = [f"encoder.highways.{k}.{part}" for k in range(encoder.highways) for part in parts]
    for name in [*(products if encoder.filters else []), *(["encoder.projection"] if encoder.projection else [])]:
        yield name, f"{name}.weight", f"{name}.bias", encoder_kind(precision), 1
    for name in [f"{direction}.{k}" for direction in config.directions for k in range(config.layers)]:
        yield f"{name}.input", f"{name}.weight_ih", f"{name}.bias", precision, 4
        yield f"{name}.recurrent", f"{name}.weight_hh", None, precision, 4
        if config.lstm_projection:
            yield f"{name}.projection", f"{name}.weight_hr", None, precision, 1


def _let_go(array: NDArray | None) -> None:
    """Give the pages of a mapped file back: they count as this process's memory, and are not needed again."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and array.mode == "r" and isinstance(array.base, mmap.mmap):
            if hasattr(array.base, "madvise"):
                array.base.madvise(mmap.MADV_DONTNEED)
            return
        array = array.base


def encoder_kind(precision: str) -> str:
    return "int8" if precision == "int8" else "float32"  # int16 would gain little there, and is the LSTM's


def _has_tables(config: BilmConfig) -> bool:
    encoder = config.encoder
    return 4 * (encoder.characters + 1) * sum(width * count for width, count in encoder.filters) <= _MOST_TABLE_BYTES


def tables(kernels: Kernels, characters: Array, filters: list[Array]) -> Array:
    """What each character (n, dim) adds to each filter, at each place in its window; see `compiled.Tables`."""
    panel, parts = kernels.panel, []
    for bank in filters:
        count, dim, width = bank.shape
        panels = -(-count // panel)
        part = floats(panels, width, len(characters), panel)
        for place in range(width):  # whole panels: the kernels write what is padding too
            matrix = Matrix(kernels, "float32", dim, panels * panel, kernels.pack(bank[:, :, place], "float32"))
            matrix.by_panels(characters, part[:, place])()
        parts.append(part.ravel())
    return np.concatenate(parts)


class CompiledEncoder:
    """The encoder's products by compiled kernels; see `encoder.EncoderProducts`."""

    chunk_words = 512

    def __init__(self, config: BilmConfig, kernels: Kernels, precision: str, arrays: Arrays) -> None:
        self.config = config.encoder
        self._kernels = kernels
        self._arrays = arrays
        kind, encoder = encoder_kind(precision), config.encoder
        self._tables = None
        if encoder.filters:
            if _has_tables(config):
                self._tables = self._tables_of(encoder.characters + 1, arrays["encoder.tables"])
            filters = encoder.filter_count
            self._highways = [
                {
                    part: _matrix(kernels, kind, arrays, f"encoder.highways.{k}.{part}", filters, filters)
                    for part in HIGHWAYS[encoder.highway]
                }
                for k in range(encoder.highways)
            ]
        if encoder.projection:
            self._projection = _matrix(kernels, kind, arrays, "encoder.projection", encoder.features, encoder.width)

    def words(self, rows: NDArray) -> Array:
        return self._arrays["encoder.words"][rows]

    def filtered(self, ids: NDArray, lengths: NDArray, at_once: AtOnce) -> Array:
        known = self._tables
        if known is None:
            distinct, places = np.unique(ids, return_inverse=True)
            ids = places.reshape(ids.shape)
            filters = [self._arrays[f"encoder.filters.{k}"] for k in range(len(self.config.filters))]
            numbers = tables(self._kernels, self._arrays["encoder.characters"][distinct], filters)
            known = self._tables_of(len(distinct), numbers)
        return self._kernels.spell(ids, lengths, known, tanh=self.config.activation == "tanh", at_once=at_once)

    def highway(self, k: int, z: Array, at_once: AtOnce) -> None:
        parts = self._highways[k]
        maps = dict(zip(parts, at_once([matrix.product(z) for matrix in parts.values()]), strict=True))
        if self.config.highway == "tied":
            self._kernels.highway(maps["gate"], maps["transform"], z)
        else:
            pass_highway(maps, z)

    def projected(self, z: Array) -> Array:
        return self._projection.product(z)()

    def _tables_of(self, characters: int, numbers: Array) -> list[Tables]:
        widths, counts = np.array(self.config.filters, dtype=np.int64).T.copy()
        every = Tables(characters, widths, counts, numbers, self._arrays["encoder.filter_bias"])
        return every.halves(self._kernels.panel)


class CompiledLayer:
    """One layer of one direction by compiled kernels; see `recurrence.Layer`."""

    def __init__(
        self, config: BilmConfig, kernels: Kernels, precision: str, arrays: Arrays, direction: str, k: int
    ) -> None:
        name, width = f"{direction}.{k}", config.projection
        gates = -(-config.cells // kernels.lanes) * kernels.panel  # whole panels of the four gates side by side
        inputs = config.encoder.width if k == 0 else width
        projected = config.lstm_projection
        self.residual = config.skip_connections and k > 0
        self._layer = PackedLayer(
            kernels,
            _matrix(kernels, precision, arrays, f"{name}.input", inputs, gates),
            _matrix(kernels, precision, arrays, f"{name}.recurrent", width, gates),
            _matrix(kernels, precision, arrays, f"{name}.projection", config.cells, width) if projected else None,
            cells=config.cells,
            cell_clip=config.cell_clip,
            projection_clip=config.projection_clip,
        )
        self.memory_room = self._layer.memory_room

    def steps(self, inputs: Array, which: Ints | None, starts: Ints, h: Array, c: Array) -> Call:
        many = len(inputs) >= _MANY_ROWS * (len(starts) - 1)
        return self._layer.steps(inputs, starts, h, c, which=which, stored=0 if many else _STORED_ROWS)


def _matrix(kernels: Kernels, kind: str, arrays: Arrays, name: str, depth: int, columns: int) -> Matrix:
    packed = Packed(*[arrays.get(f"{name}.{part}") for part in Packed._fields])  # pyright: ignore[reportArgumentType]
    return Matrix(kernels, kind, depth, columns, packed)
