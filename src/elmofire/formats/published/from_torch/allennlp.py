"""AllenNLP's task archives (`model.tar.gz`) and bare `weights.th` that hold an ELMo, somewhere among the task's own parameters.

Sizes follow from the shapes; what shapes do not tell (the activation, the clips, how many characters are read) stands in an options file,
which archives of AllenNLP 0.9 and before carry along. The forget gate's bias holds its 1 already.
"""

import gzip
import re
import tarfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO, cast

import numpy as np

from elmofire.errors import ModelError, RecipeError
from elmofire.formats.config import MOST, BilmConfig, EncoderConfig
from elmofire.formats.files import json_object, most_unpacked, read_json_object
from elmofire.formats.published.from_torch.pickles import StateDict, read_state_dict
from elmofire.formats.published.from_torch.state_dicts import ModuleArrays, ModuleNames, in_full
from elmofire.formats.published.options_2018 import Options
from elmofire.formats.weights import LearnedMix, Source, Weights
from elmofire.recipe import named

WEIGHTS = "weights.th"

_ELMO = "_elmo_lstm._token_embedder._char_embedding_weights"
_WORD_CACHE = "_elmo_lstm._word_embedding.weight"  # vectors of a fixed vocabulary: they follow from the rest
_MOST_MEMBERS, _MOST_ELMOS = 10_000, 100
_LONGEST_READ = 32 << 20  # at a time: tarfile reads a header as long as it says it is
_LONGEST_OPTIONS = 1 << 20
_DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)


def read(path: Path, *, options: Path | None = None) -> Weights:
    """Read the ELMo of a task's model, and how the task mixed its layers.

    `options` is the options.json of the ELMo. Where there is none, neither here nor in the archive, those of the published models are
    taken, with a warning.
    """
    inside: Options | None = None
    if path.name.endswith(".th"):
        state = read_state_dict(path, str(path))
    else:
        state, inside = _read_archive(path)
    known = inside if options is None else Options(options, read_json_object(options))
    prefixes = [key.removesuffix(_ELMO) for key in state if key.endswith(_ELMO)]
    if not prefixes:
        raise ModelError(f"{path}: holds no ELMo: no parameter is called ...{_ELMO}; the first is {named(min(state))}")
    if len(prefixes) > _MOST_ELMOS:
        raise ModelError(f"{path}: holds {len(prefixes)} ELMos")
    first, *others = [_elmo(state, prefix, known, str(path)) for prefix in prefixes]
    if known is None:
        warnings.warn(
            f"{path}: no options file, so relu, clips of 3, skip connections and 50 characters are taken for granted, as in "
            "the published models; to be sure, name the ELMo's options.json: load_weights(..., options=FILE), or --options FILE",
            stacklevel=2,
        )
    mixes = first.mixes
    if all(_equal(first, other) for other in others):
        mixes = tuple(mix for elmo in (first, *others) for mix in elmo.mixes)
    else:
        listed = ", ".join(named(prefix) or "the top" for prefix in prefixes[1:])
        warnings.warn(f"{path}: the ELMo at {named(prefixes[0])} is read; another one is at {listed}", stacklevel=2)
    files = (path,) if options is None else (path, options)
    return replace(first, mixes=mixes, source=Source(str(path), "allennlp", files))


def _elmo(state: StateDict, prefix: str, options: Options | None, where: str) -> Weights:
    inner = f"{prefix}_elmo_lstm."
    names = ModuleNames(
        characters=f"{prefix}{_ELMO}",
        convolution=f"{inner}_token_embedder.char_conv_",
        highway=f"{inner}_token_embedder._highways._layers.",
        projection=f"{inner}_token_embedder._projection.",
        lstm=f"{inner}_elmo_lstm.",
    )
    config = _config_from_shapes(state, names, where) if options is None else _config_from_options(options)
    modules = ModuleArrays(config, {WEIGHTS: state}, lambda name: (WEIGHTS, names.key(name)), where, absent_row=True)
    problems = modules.mismatches()
    problems += modules.without_place(lambda key: key.startswith(inner) and key != f"{prefix}{_WORD_CACHE}")
    table = state[names.characters]
    if table.ndim == 2 and len(table) and np.any(table[0]):
        problems.append(
            f"{WEIGHTS}: {in_full(names.characters)} should have zeros in its first row, which stands for no token"
        )
    mixes = _mixes(state, prefix, config.layers + 1, problems)
    if problems:
        hint = "the sizes follow from the shapes of its convolutions, its projection and its LSTM's projections"
        raise ModelError.from_problems(
            where, problems, hint=hint if options is None else f"the sizes are those of {options.path}"
        )
    return Weights(config=config, arrays=modules.arrays(), mixes=mixes)


def _config_from_options(options: Options) -> BilmConfig:
    if options.char_cnn is None:
        options.problems.append("char_cnn is missing, but an ELMo of AllenNLP reads characters")
    config = options.config(
        directions=("forward", "backward"), words=0, encoder_projection=True, lstm_projection=True, head=0
    )
    return replace(config, forget_bias=0.0)


def _config_from_shapes(state: StateDict, names: ModuleNames, where: str) -> BilmConfig:
    """The published switches, and sizes by the shapes. Where a shape makes no sense, the comparison with all others will say so."""

    def size(key: str, axis: int) -> int:
        shape = state.shape(key) if key in state else ()
        return shape[axis] if axis < len(shape) else 1

    def count(key: Callable[[int], str]) -> int:
        return next(k for k in range(MOST + 1) if key(k) not in state)

    filters = count(lambda k: f"{names.convolution}{k}.weight")
    width = size(f"{names.projection}weight", 0)
    try:
        encoder = EncoderConfig(
            width=width,
            filters=tuple(
                (size(f"{names.convolution}{k}.weight", 2), size(f"{names.convolution}{k}.weight", 0))
                for k in range(filters)
            ),
            character_dim=size(names.characters, 1),
            highways=count(lambda k: f"{names.highway}{k}.weight"),
        )
        return BilmConfig(
            encoder=encoder,
            layers=max(1, count(lambda k: f"{names.lstm}forward_layer_{k}.state_projection.weight")),
            cells=size(f"{names.lstm}forward_layer_0.state_projection.weight", 1),
            projection=width,
            forget_bias=0.0,
        )
    except (RecipeError, StopIteration) as error:
        raise ModelError(f"{where}: {WEIGHTS}: the shapes are not those of an ELMo: {error or 'too many'}") from None


def _mixes(state: StateDict, prefix: str, layers: int, problems: list[str]) -> tuple[LearnedMix, ...]:
    """The scalar mixes that stand beside an ELMo; what is wrong with them goes to `problems`."""
    pattern = re.compile(re.escape(prefix) + r"(scalar_mix_\d{1,4})\.(?:gamma|scalar_parameters\.\d+)", re.ASCII)
    names = dict.fromkeys(prefix + match[1] for key in state if (match := pattern.fullmatch(key)))
    mixes: list[LearnedMix] = []
    for name in names:
        keys = [f"{name}.gamma", *[f"{name}.scalar_parameters.{k}" for k in range(layers)]]
        wrong = [f"{in_full(key)} is missing" for key in keys if key not in state]
        if f"{name}.scalar_parameters.{layers}" in state:
            wrong.append(f"{in_full(name)} has more than the {layers} weights of {layers} layers")
        values = [float(state[key].flat[0]) for key in keys if key in state and state.shape(key) in ((), (1,))]
        if not wrong and (len(values) < len(keys) or not np.isfinite(values).all()):
            wrong.append(f"{in_full(name)} should hold one finite number for gamma and for each layer")
        problems += [f"{WEIGHTS}: {problem}" for problem in wrong]
        if not wrong:
            mixes.append(LearnedMix(name=name, weights=tuple(values[1:]), gamma=values[0]))
    return tuple(mixes)


def _equal(one: Weights, other: Weights) -> bool:
    return one.config == other.config and all(
        np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays
    )


# -- the archive -------------------------------------------------------------------------------------------------------


def _read_archive(path: Path) -> tuple[StateDict, Options | None]:
    """The weights and, if they are there, the options: read where they stand, never unpacked to where their names say."""
    state: StateDict | None = None
    found: dict[str, bytes] = {}
    try:
        for name, file in _members(path):
            if name == WEIGHTS:
                if state is not None:
                    raise ModelError(f"{path}: has two members called {WEIGHTS}")
                state = read_state_dict(file, f"{path}: {WEIGHTS}")
            elif name.startswith("fta/") and name.endswith("options_file"):
                found[name] = file.read(_LONGEST_OPTIONS)
    except _DAMAGE as error:
        said = getattr(error, "strerror", None) or error
        raise ModelError(f"{path}: is not a whole tar.gz archive: {said}", hint="a broken download?") from None
    if state is None:
        raise ModelError(f"{path}: has no {WEIGHTS}, so it is no archive of AllenNLP's")
    if not found:
        return state, None
    if len(set(found.values())) > 1:
        listed = ", ".join(map(named, found))
        raise ModelError(
            f"{path}: has several options files: {listed}",
            hint="name the one that you mean: load_weights(..., options=FILE), or --options FILE",
        )
    name, content = found.popitem()
    where = f"{path}: {named(name)}"
    return state, Options(Path(where), json_object(content, where))


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """What an archive holds, one after the other."""
    limit = most_unpacked(path.stat().st_size)
    with gzip.open(path) as unpacked:
        archive = tarfile.open(fileobj=cast("BinaryIO", _Limited(unpacked, limit, path)), mode="r:")  # noqa: SIM115
        for number, member in enumerate(archive):
            if number >= _MOST_MEMBERS:
                raise ModelError(f"{path}: has more than {_MOST_MEMBERS:,} members")
            name = member.name.removeprefix("./")
            if name != WEIGHTS and not name.startswith("fta/"):
                continue
            # A sparse file has holes that the archive need not hold.
            if (not member.isreg() and not member.isdir()) or member.issparse():
                raise ModelError(f"{path}: {named(name)} is a link or something else that is no plain file")
            if member.isreg() and (file := archive.extractfile(member)):
                yield name, file


class _Limited:
    """An unpacked stream that gives no more than `limit` bytes in all."""

    def __init__(self, file: gzip.GzipFile, limit: int, path: Path) -> None:
        self._file, self._limit, self._path = file, limit, path

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, place: int) -> int:
        self._check(place)
        return self._file.seek(place)

    def read(self, count: int) -> bytes:
        if not 0 <= count <= _LONGEST_READ:
            raise ModelError(f"{self._path}: an entry of its table of contents claims {count:,} bytes")
        self._check(self._file.tell() + count)
        return self._file.read(count)

    def _check(self, place: int) -> None:
        if place > self._limit:
            raise ModelError(
                f"{self._path}: unpacks to more than {self._limit:,} bytes, but has {self._path.stat().st_size:,}"
            )
