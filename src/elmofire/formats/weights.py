"""`Weights`: what every format reads and writes, and what the engine and the torch model are built from."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import InputError, ModelError
from elmofire.formats.config import BilmConfig, tensor_shapes
from elmofire.text.characters import Alphabet, ByteAlphabet
from elmofire.text.tokenizers import TokenizerInfo
from elmofire.text.vocabulary import Vocabulary

Array = NDArray[np.float32]

ENGLISH = TokenizerInfo(name="penn", language="en", version=1)


@dataclass(frozen=True)
class Source:
    """Where a model came from: what to load again, and a stamp that tells whether it is still the same."""

    what: str | tuple[str, str]  # a name, a folder, or an (options, weights) pair
    format: str
    files: tuple[Path, ...] = ()
    stamp_when_loaded: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stamp_when_loaded", self.stamp)

    @property
    def stamp(self) -> str:
        """Sizes and times of the files: changes when the model does."""
        stats = [file.stat() for file in self.files]
        return ",".join(
            f"{file.name}:{stat.st_size}:{stat.st_mtime_ns}" for file, stat in zip(self.files, stats, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedMix:
    """How a task that was trained on top of the biLM mixes its layers: `gamma * sum_j softmax(weights)_j * layer_j`."""

    name: str  # where the task's model kept it
    weights: tuple[float, ...]
    gamma: float


@dataclass(frozen=True)
class Weights:
    """A frozen config and named float32 arrays, read on access, so that whoever consumes them one by one needs no second copy."""

    config: BilmConfig
    arrays: Mapping[str, Array]
    vocabulary: Vocabulary | None = None
    alphabet: Alphabet = field(default_factory=ByteAlphabet)
    mixes: tuple[LearnedMix, ...] = ()
    tokenizer: TokenizerInfo = ENGLISH
    training: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None


def require_kind(given: object, of: str, made_of: type = Weights) -> None:
    """An error if the class was called with a name or a folder, where `load` was meant."""
    if not isinstance(given, made_of):
        raise InputError(
            f"{of}({given!r:.80}): it is made of {made_of.__name__}",
            hint=f"{of}.load(...) takes a name, a folder or a pair",
        )


def refuse_no_model(what: object) -> None:
    """An error for what names no model; as a path, "" would be the current folder."""
    parts = what if isinstance(what, tuple | list) else [what]
    if not all(isinstance(part, str | os.PathLike) and os.fspath(part) for part in parts):
        raise InputError(
            f"{what!r:.80} names no model", hint="give a name, a folder, an archive, or a pair (options, weights)"
        )


class FileArrays(Mapping[str, Array]):
    """Arrays that stay in their files until asked for, and are checked to be finite then."""

    def __init__(self, config: BilmConfig, read: Callable[[str], Array], where: Callable[[str], str]) -> None:
        self._names = tuple(tensor_shapes(config))
        self._read = read
        self._where = where  # an array's name -> file and dataset, for errors

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        # One pass without a temporary: a sum is finite only where every number is, short of overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            array = self._read(name)
            total = np.sum(array, dtype=np.float32)
        if not np.isfinite(total) and not np.isfinite(array).all():
            raise ModelError(f"{self._where(name)}: holds values that are not finite (NaN or infinity)")
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def as_folder(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # ~somebody who is not known here
        return Path(path)
