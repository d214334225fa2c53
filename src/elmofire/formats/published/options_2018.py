"""`options.json` of the 2018 family: the sizes and switches of a model, read with all mistakes reported at once, and written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from elmofire.errors import ModelError, RecipeError
from elmofire.formats.config import MOST, BilmConfig, EncoderConfig
from elmofire.recipe import shown

_INFERENCE_CHARACTERS, _TRAINING_CHARACTERS = 262, 261  # the same table: inference counts the id for "no token"


class Options:
    """The object in `options.json`, with one problem noted for every key that is missing or of a wrong type or value."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self.problems: list[str] = []
        self.lstm = self._section(values, "lstm") or {}
        self.char_cnn = self._section(values, "char_cnn") if "char_cnn" in values else None
        self.bidirectional = self._value(values, "", "bidirectional", _is_bool, "true or false", default=None)
        lstm, cnn = self.lstm, self.char_cnn
        self.cells = self._value(lstm, "lstm.", "dim", _is_size, "a positive whole number")
        self.projection = self._value(lstm, "lstm.", "projection_dim", _is_size, "a positive whole number")
        self.layers = self._value(
            lstm, "lstm.", "n_layers", _whole(1, MOST), f"a whole number from 1 to {MOST}", default=1
        )
        self.cell_clip = self._value(
            lstm, "lstm.", "cell_clip", _is_clip, "a positive number, or null for none", default=None
        )
        self.proj_clip = self._value(
            lstm, "lstm.", "proj_clip", _is_clip, "a positive number, or null for none", default=None
        )
        self.skip_connections = self._value(lstm, "lstm.", "use_skip_connections", _is_bool, "true or false")
        if cnn is not None:
            self._read_characters(cnn)

    def _read_characters(self, cnn: dict[str, Any]) -> None:
        embedding = self._section(cnn, "embedding", "char_cnn.") or {}
        self.character_dim = self._value(embedding, "char_cnn.embedding.", "dim", _is_size, "a positive whole number")
        self.filters = self._value(
            cnn, "char_cnn.", "filters", _is_filters, "a list of [width, count] pairs of positive whole numbers"
        )
        self.activation = self._value(
            cnn, "char_cnn.", "activation", lambda v: v in ("relu", "tanh"), '"relu" or "tanh"'
        )
        self.highways = self._value(
            cnn, "char_cnn.", "n_highway", _whole(0, MOST), f"a whole number from 0 to {MOST}", default=0
        )
        self.max_characters = self._value(
            cnn, "char_cnn.", "max_characters_per_token", _whole(3, MOST), f"a whole number from 3 to {MOST}"
        )
        if not self.problems and max(width for width, _ in self.filters) > self.max_characters:
            self.problems.append(
                f"char_cnn.filters are wider than the {self.max_characters} of char_cnn.max_characters_per_token"
            )
        self._value(
            cnn,
            "char_cnn.",
            "n_characters",
            lambda v: _is_size(v) and v in (_TRAINING_CHARACTERS, _INFERENCE_CHARACTERS),
            f"{_TRAINING_CHARACTERS} (training) or {_INFERENCE_CHARACTERS} (inference)",
        )

    @property
    def filter_count(self) -> int:
        return sum(count for _, count in self.filters) if self.char_cnn is not None else 0

    def _section(self, values: dict[str, Any], key: str, prefix: str = "") -> dict[str, Any] | None:
        if not isinstance(values.get(key), dict):
            found = "is missing" if key not in values else f"is {shown(values[key])}, but should be an object"
            self.problems.append(f"{prefix}{key} {found}")
            return None
        return values[key]

    def _value(
        self,
        values: dict[str, Any],
        prefix: str,
        key: str,
        holds: Callable[[Any], bool],
        wanted: str,
        default: Any = ...,
    ) -> Any:
        if key not in values:
            if default is ...:
                self.problems.append(f"{prefix}{key} is missing; it should be {wanted}")
            return None if default is ... else default
        value = values[key]
        if value is None and default is not ...:
            return default
        try:
            good = holds(value)
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            self.problems.append(f"{prefix}{key} is {shown(value)}, but should be {wanted}")
        return value

    def config(
        self, *, directions: tuple[str, ...], words: int, encoder_projection: bool, lstm_projection: bool, head: int
    ) -> BilmConfig:
        """The options together with what only the weight file tells."""
        if self.problems:
            raise ModelError.from_problems(str(self.path), self.problems)
        try:
            if self.char_cnn is None:
                encoder = EncoderConfig(
                    width=self.projection, filters=(), words=words, word_dim=self.projection, projection=False
                )
            else:
                encoder = EncoderConfig(
                    width=self.projection,
                    filters=tuple((width, count) for width, count in self.filters),
                    character_dim=self.character_dim,
                    max_characters=self.max_characters,
                    activation=self.activation,
                    highways=self.highways,
                    projection=encoder_projection,
                )
            return BilmConfig(
                encoder=encoder,
                directions=directions,
                layers=self.layers,
                cells=self.cells,
                projection=self.projection,
                lstm_projection=lstm_projection,
                cell_clip=None if self.cell_clip is None else float(self.cell_clip),
                projection_clip=None if self.proj_clip is None else float(self.proj_clip),
                skip_connections=self.skip_connections,
                forget_bias=1.0,
                head=head,
            )
        except RecipeError as error:
            raise ModelError(f"{self.path}: {error}") from None


def options_of(config: BilmConfig) -> dict[str, Any]:
    """The object that bilm-tf and AllenNLP read, for a model that their format can hold."""
    options: dict[str, Any] = {
        "lstm": {
            "use_skip_connections": config.skip_connections,
            "projection_dim": config.projection,
            "cell_clip": _plain(config.cell_clip),
            "proj_clip": _plain(config.projection_clip),
            "dim": config.cells,
            "n_layers": config.layers,
        },
        "bidirectional": len(config.directions) == 2,
    }
    if config.encoder.filters:
        options["char_cnn"] = {
            "activation": config.encoder.activation,
            "filters": [list(pair) for pair in config.encoder.filters],
            "n_highway": config.encoder.highways,
            "embedding": {"dim": config.encoder.character_dim},
            "n_characters": _INFERENCE_CHARACTERS,
            "max_characters_per_token": config.encoder.max_characters,
        }
    return options


def _plain(clip: float | None) -> float | int | None:
    return int(clip) if clip is not None and clip == int(clip) else clip


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_is_size = _whole(1, (1 << 31) - 1)


def _is_clip(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < float(value) < float("inf")


def _is_filters(value: Any) -> bool:
    pairs = isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(_is_size, pair)) for pair in value
    )
    return pairs and 1 <= len(value) <= MOST
