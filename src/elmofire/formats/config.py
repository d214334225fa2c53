"""Sizes and switches of a biLM: plain data that compares, prints and saves as JSON, and the names and shapes that follow."""

from dataclasses import dataclass, field

from elmofire.errors import RecipeError
from elmofire.text.characters import BYTES

FORWARD, BACKWARD = "forward", "backward"
_LARGEST = (1 << 31) - 1  # of the sizes that arrays must bear out
_INFINITE = 3e38  # in float32
_MOST_ONE_HOT = 10_000  # characters: their table is a square
MOST = 1000  # layers, highways, kinds of filters, and characters of a token: no file may make us count to more

HIGHWAYS = {  # the affine maps of each kind
    "tied": ("transform", "gate"),  # gate * relu(transform) + (1 - gate) * x
    "mlp": ("transform",),  # relu(transform)
    "learned": ("transform", "gate", "carry"),  # gate * relu(transform) + carry * x
}
PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """From a token to one vector without context: a character CNN (Kim et al. 2016), a table of words, or both side by side."""

    width: int = 512  # of the vector that comes out
    filters: tuple[tuple[int, int], ...] = PUBLISHED_FILTERS  # (characters, how many); none: whole words go in
    alphabet: str = "bytes"  # or "code points", listed in characters.txt
    characters: int = BYTES  # rows of the character table
    character_dim: int = 16
    one_hot: bool = False  # the table is the identity: neither trained nor stored
    max_characters: int = 50  # of a token, its two markers included
    activation: str = "relu"
    highways: int = 2
    highway: str = "tied"  # the kind of each, see `HIGHWAYS`
    projection: bool = True  # without it the width is that of what the filters and the word table give
    words: int = 0  # rows of the word table; 0: none
    word_dim: int = 0  # width of its vectors

    def __post_init__(self) -> None:
        problems = _out_of_bounds(
            ("width", self.width, 1, _LARGEST),
            ("character_dim", self.character_dim, 1, _LARGEST),
            ("max_characters", self.max_characters, 3, MOST),
            ("highways", self.highways, 0, MOST),
            ("characters", self.characters, 1, _MOST_ONE_HOT if self.one_hot else _LARGEST),
            ("words", self.words, 0, _LARGEST),
            ("word_dim", self.word_dim, 0, _LARGEST),
            ("the number of filters", len(self.filters), 0, MOST),
        )
        if self.activation not in ("relu", "tanh"):
            problems.append(f"activation is {self.activation!r}, but should be 'relu' or 'tanh'")
        if self.highway not in HIGHWAYS:
            problems.append(f"highway is {self.highway!r}, but should be 'tied', 'mlp' or 'learned'")
        if self.one_hot and self.character_dim != self.characters:
            problems.append(
                f"one_hot is on, so character_dim should be the {self.characters} characters, not {self.character_dim}"
            )
        for width, count in self.filters:
            if not (width >= 1 and 1 <= count <= _LARGEST):
                problems.append(f"filters hold [{width}, {count}], but should hold positive numbers")
            elif width > self.max_characters:
                problems.append(f"filters hold one of {width} characters, but max_characters is {self.max_characters}")
        if not self.projection and self.width != self.features:
            problems.append(f"projection is off, so width should be the {self.features} features, not {self.width}")
        if not self.filters and not self.words:
            problems.append("filters over characters or words should be given, or both")
        if bool(self.words) != bool(self.word_dim):
            problems.append(f"words is {self.words} and word_dim {self.word_dim}, but either both or none should be 0")
        if self.alphabet not in ("bytes", "code points"):
            problems.append(f"alphabet is {self.alphabet!r}, but should be 'bytes' or 'code points'")
        if self.alphabet == "bytes" and self.characters != BYTES:
            problems.append(f"characters is {self.characters}, but the bytes alphabet has {BYTES}")
        if problems:
            raise RecipeError("; ".join(problems))

    @property
    def filter_count(self) -> int:
        return sum(count for _, count in self.filters)

    @property
    def features(self) -> int:
        """What the word table and the filters give together: the projection's input."""
        return self.word_dim + self.filter_count


@dataclass(frozen=True, slots=True, kw_only=True)
class BilmConfig:
    """A biLM. The defaults are the published `original` model."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    directions: tuple[str, ...] = (FORWARD, BACKWARD)
    layers: int = 2
    cells: int = 4096
    projection: int = 512  # width of each direction's output
    lstm_projection: bool = True  # False: the cells themselves are the output
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    skip_connections: bool = True  # layers after the first add their input to their output
    forget_bias: float = 1.0  # added to the stored bias of the forget gate
    head: int = 0  # words the language model predicts; 0: no head

    def __post_init__(self) -> None:
        problems = _out_of_bounds(
            ("layers", self.layers, 1, MOST),
            ("cells", self.cells, 1, _LARGEST),
            ("projection", self.projection, 1, _LARGEST),
            ("head", self.head, 0, _LARGEST),
        )
        for name, clip in (("cell_clip", self.cell_clip), ("projection_clip", self.projection_clip)):
            if clip is not None and not 0 < clip < _INFINITE:
                problems.append(f"{name} is {clip:g}, but should be positive, or none for no clipping")
        if not abs(self.forget_bias) < _INFINITE:
            problems.append(f"forget_bias is {self.forget_bias:g}, but should be finite")
        if self.directions not in ((FORWARD, BACKWARD), (FORWARD,), (BACKWARD,)):
            problems.append(
                f"directions are {list(self.directions)}, but should be forward, backward or both in this order"
            )
        if not self.lstm_projection and self.projection != self.cells:
            problems.append(
                f"lstm_projection is off, so projection should be the {self.cells} cells, not {self.projection}"
            )
        if problems:
            raise RecipeError("; ".join(problems))

    @property
    def width(self) -> int:
        """Width of the vectors of layers 1 and up: both directions side by side."""
        return self.projection * len(self.directions)

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """Widths of layers 0..L."""
        return (self.encoder.width * len(self.directions), *[self.width] * self.layers)

    @property
    def parameters(self) -> int:
        """How many numbers the model has, its head not counted."""
        return sum(_product(shape) for name, shape in tensor_shapes(self).items() if not name.startswith("head."))


def _out_of_bounds(*values: tuple[str, int, int, int]) -> list[str]:
    """What is wrong with (name, value, least, most)."""
    return [
        f"{name} is {value}, but should be {f'at least {least}' if value < least else f'at most {most}'}"
        for name, value, least, most in values
        if not least <= value <= most
    ]


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def tensor_shapes(config: BilmConfig) -> dict[str, tuple[int, ...]]:
    """Every array of such a model by name: the order of files, and of everything that walks over them."""
    encoder = config.encoder
    shapes: dict[str, tuple[int, ...]] = {}
    if encoder.filters:
        filters = encoder.filter_count
        if not encoder.one_hot:
            shapes["encoder.characters"] = (encoder.characters, encoder.character_dim)
        for k, (width, count) in enumerate(encoder.filters):
            shapes[f"encoder.convolutions.{k}.weight"] = (count, encoder.character_dim, width)
            shapes[f"encoder.convolutions.{k}.bias"] = (count,)
        for k in range(encoder.highways):
            for part in HIGHWAYS[encoder.highway]:
                shapes[f"encoder.highways.{k}.{part}.weight"] = (filters, filters)
                shapes[f"encoder.highways.{k}.{part}.bias"] = (filters,)
    if encoder.words:
        shapes["encoder.words"] = (encoder.words, encoder.word_dim)
    if encoder.projection:
        shapes["encoder.projection.weight"] = (encoder.width, encoder.features)
        shapes["encoder.projection.bias"] = (encoder.width,)
    for direction in config.directions:
        for k in range(config.layers):
            inputs = encoder.width if k == 0 else config.projection
            shapes[f"{direction}.{k}.weight_ih"] = (4 * config.cells, inputs)
            shapes[f"{direction}.{k}.weight_hh"] = (4 * config.cells, config.projection)
            shapes[f"{direction}.{k}.bias"] = (4 * config.cells,)
            if config.lstm_projection:
                shapes[f"{direction}.{k}.weight_hr"] = (config.projection, config.cells)
    if config.head:
        shapes["head.weight"] = (config.head, config.projection)
        shapes["head.bias"] = (config.head,)
    return shapes


def small(**changes: object) -> BilmConfig:
    """The published `small` size: 13.6M parameters.

    >>> small().parameters
    13593296
    """
    encoder = EncoderConfig(width=128, highways=1)
    return BilmConfig(**{"encoder": encoder, "cells": 1024, "projection": 128, **changes})  # pyright: ignore[reportArgumentType]
