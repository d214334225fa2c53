"""AllenNLP's modules as state dicts hold them: ELMoForManyLangs took these modules over, and files of both differ in names alone.

LSTM weights have our shapes and gate order. A highway layer is one matrix, its first half the transformation; the second half is a gate
that keeps what came in, where ours lets the transformed through: ours is the negative of theirs, since 1 - sigmoid(a) = sigmoid(-a).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from elmofire.formats.config import BilmConfig, tensor_shapes
from elmofire.formats.published.from_torch.pickles import StateDict
from elmofire.formats.weights import Array, FileArrays
from elmofire.recipe import named

_FLOATING = ("f4", "f8", "f2", "bfloat16")
_LSTM_PARTS = {
    "weight_ih": "input_linearity.weight",
    "weight_hh": "state_linearity.weight",
    "bias": "state_linearity.bias",
    "weight_hr": "state_projection.weight",
}


@dataclass(frozen=True, kw_only=True)
class ModuleNames:
    """What a family calls its modules."""

    characters: str
    convolution: str  # in front of its number
    highway: str  # in front of its number
    projection: str
    lstm: str = ""
    words: str = ""

    def key(self, name: str) -> str:
        """Our name of an array -> theirs."""
        part = name.split(".")
        if part[0] in ("forward", "backward"):
            return f"{self.lstm}{part[0]}_layer_{part[1]}.{_LSTM_PARTS[part[2]]}"
        if part[1] == "convolutions":
            return f"{self.convolution}{part[2]}.{part[3]}"
        if part[1] == "highways":
            return f"{self.highway}{part[2]}.{part[4]}"
        if part[1] == "projection":
            return f"{self.projection}{part[2]}"
        return self.characters if part[1] == "characters" else self.words


def in_full(key: str) -> str:
    """A key for an error's text: those of modules within modules are long, and what tells them apart stands at the end."""
    return key if len(key) <= 200 and key.isprintable() else named(key)


class ModuleArrays:
    """The arrays of a model in state dicts, by the names of their files."""

    def __init__(
        self,
        config: BilmConfig,
        files: Mapping[str, StateDict],
        locate: Callable[[str], tuple[str, str]],
        where: str,
        *,
        absent_row: bool = False,
    ) -> None:
        self._config = config
        self._shapes = tensor_shapes(config)
        self._files = files
        self._locate = locate  # our name -> file and key
        self._where = where
        self._absent_row = absent_row  # of the table of characters: a row in front for "no token"

    def _stored_shape(self, name: str, key: str) -> tuple[int, ...]:
        rows, *others = self._shapes[name]
        if ".highways." in name:
            rows *= 2
        if name == "encoder.characters" and self._absent_row:
            rows += 1
        return (rows, 1) if key == "column_bias.weight" else (rows, *others)

    def mismatches(self) -> list[str]:
        """What keeps the tensors from being the model's."""
        problems: dict[str, None] = {}  # both halves of a highway have the same
        for name in self._shapes:
            file, key = self._locate(name)
            state, shape = self._files[file], self._stored_shape(name, key)
            if key not in state:
                problems[f"{file}: {in_full(key)} is missing"] = None
            elif state.shape(key) != shape:
                problems[f"{file}: {in_full(key)} has the shape {state.shape(key)}, but should have {shape}"] = None
            elif state.kind(key) not in _FLOATING:
                problems[f"{file}: {in_full(key)} holds no floating-point numbers, but {state.kind(key)}"] = None
        return list(problems)

    def without_place(self, belongs: Callable[[str], bool] = lambda key: True) -> list[str]:
        """What belongs to such a model, but not to this one: the settings are those of another."""
        known = {self._locate(name) for name in self._shapes}
        return [
            f"{file}: {in_full(key)} has no place in the model that the settings describe"
            for file, state in self._files.items()
            for key in state
            if belongs(key) and (file, key) not in known
        ]

    def arrays(self) -> FileArrays:
        return FileArrays(self._config, self._read, self._place)

    def _place(self, name: str) -> str:
        file, key = self._locate(name)
        return f"{self._where}: {file}: {in_full(key)}"

    def _read(self, name: str) -> Array:
        file, key = self._locate(name)
        array = self._files[file][key]
        if ".highways." in name:
            half = len(array) // 2
            array = -array[half:] if ".gate." in name else array[:half]
        if name == "encoder.characters" and self._absent_row:
            array = array[1:]
        return np.require(array.reshape(self._shapes[name]), np.float32, "A")
