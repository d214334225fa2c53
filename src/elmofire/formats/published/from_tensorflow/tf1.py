"""TensorFlow 1: the checkpoints that bilm-tf trains, and TF-Hub's module google/elmo.

Their matrices lie as in 2018's HDF5 files, which are dumps of such checkpoints; only the names differ.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from elmofire.errors import ModelError
from elmofire.formats.config import BilmConfig
from elmofire.formats.files import read_json_object
from elmofire.formats.published.datasets import Block
from elmofire.formats.published.from_tensorflow.bundle import Bundle
from elmofire.formats.published.hdf5_2018 import weights_of
from elmofire.formats.published.options_2018 import Options
from elmofire.formats.weights import Array, LearnedMix, Source, Weights
from elmofire.recipe import named
from elmofire.text.characters import BYTES

_HUB_INDEX = Path("variables", "variables.index")
_TRAINER, _HUB = "lm", "bilm"  # the scopes of their variables
_LARGEST_NOTE = 1 << 20  # bytes of the file `checkpoint`
_CELL = "MultiRNNCell/Cell{}/"
_SAME_NAMES = re.compile(
    "char_embed|embedding|CNN/[Wb]_cnn_[0-9]+|CNN_high_[0-9]+/[Wb]_(?:carry|transform)|CNN_proj/[Wb]_proj|softmax/[Wb]"
)
_LSTM = re.compile("(RNN_[01]/)?rnn/(?:multi_rnn_cell/cell_([0-9]{1,4})/)?lstm_cell/(kernel|bias|projection/kernel)")
_PARTS = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}
_TRAINER_SPELLING = {"RNN": "rnn", "MultiRNNCell": "multi_rnn_cell", "Cell": "cell_", "LSTMCell": "lstm_cell"}
_HUB_SPELLING = {"MultiRNNCell": "MultiRNNCell", "Cell": "Cell", "LSTMCell": "rnn/lstm_cell"}
_ASSUMED = {"activation": "relu", "max_characters_per_token": 50}
_ASSUMED_LSTM = {"cell_clip": 3, "proj_clip": 3, "use_skip_connections": True}


def recognizes(path: Path) -> bool:
    """Whether a folder holds checkpoints or a TF-Hub module, or a path is a checkpoint's index or prefix."""
    if path.is_dir():
        return (path / _HUB_INDEX).is_file() or bool(_checkpoints(path))
    return path.suffix == ".index" or path.with_name(f"{path.name}.index").is_file()


def read(path: Path, *, options: Path | None = None, vocabulary_file: Path | None = None) -> Weights:
    """Read a checkpoint: the latest of a folder, or the one whose prefix or index is named."""
    bundle = Bundle(_prefix(path))
    variables = Variables(bundle, _scope(bundle))
    options_file = options or _options_in(path if path.is_dir() else path.parent)
    if variables.scope == _HUB:
        described = _merged(_sizes(variables), read_json_object(options_file) if options_file else {})
        _tell_assumptions(bundle.path, options_file)
    elif options_file:
        described = read_json_object(options_file)
    else:
        raise ModelError(
            f"{path}: options.json is missing beside {bundle.path.name}",
            hint="it says what the shapes of variables do not; put one there, or name it: load_weights(..., options=FILE), or --options FILE",
        )
    read_options = Options(options_file or bundle.path, described)
    if read_options.problems:
        raise ModelError.from_problems(str(read_options.path), read_options.problems)
    files = [*bundle.files, *[file for file in (options_file, vocabulary_file) if file]]
    source = Source(str(path), "tf-hub" if variables.scope == _HUB else "tensorflow", tuple(files))
    weights = weights_of(read_options, variables, variables, vocabulary_file=vocabulary_file, source=source)
    step = _number(bundle, "global_step")
    return replace(
        weights,
        mixes=_mixes(bundle, weights.config),
        training={} if step is None else {"global_step": int(step)},
    )


class Variables:
    """A checkpoint's variables under the names that the same arrays have in 2018's HDF5 files; all others are left out."""

    def __init__(self, bundle: Bundle, scope: str) -> None:
        self.scope = scope
        self.path = bundle.path
        self._bundle = bundle
        self._theirs: dict[str, str] = {}
        twice: list[str] = []
        for variable in bundle.names:
            name = _trainer_place(variable) if scope == _TRAINER else _hub_place(variable)
            if name in self._theirs:
                twice.append(f"{named(self._theirs[name])} and {named(variable)} would be the same array")
            elif name:
                self._theirs[name] = variable
        if twice:
            raise ModelError.from_problems(str(self.path), twice)
        # Trained with `share_embedding_softmax`, the table of words is the head's matrix too.
        if "softmax/b" in self._theirs and "softmax/W" not in self._theirs and "embedding" in self._theirs:
            self._theirs["softmax/W"] = self._theirs["embedding"]

    @property
    def names(self) -> set[str]:
        return set(self._theirs)

    def spelled(self, name: str) -> str:
        """A variable's name in the checkpoint; that of a missing one is what it would be."""
        if name in self._theirs:
            return self._theirs[name]
        parts = name.split("/")
        for theirs, ours in _PARTS.items():
            if parts[-2:] == ["LSTMCell", ours]:
                parts[-1] = theirs
        spelling = _TRAINER_SPELLING if self.scope == _TRAINER else _HUB_SPELLING
        return "/".join([self.scope, *[spelling.get(part, part.replace("Cell", spelling["Cell"])) for part in parts]])

    def has(self, group: str) -> bool:
        return any(f"{name}/".startswith(f"{group}/") for name in self._theirs)

    def shape(self, name: str) -> tuple[int, ...]:
        return (self._bundle.shape(self._theirs[name]) if name in self._theirs else None) or ()

    def rows(self, name: str) -> int:
        return next(iter(self.shape(name)), 0)

    def mismatches(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
        asked = {self.spelled(name): shape for name, shape in shapes.items()}
        if "char_embed" in shapes and self._has_row_of_no_token():
            asked[self.spelled("char_embed")] = (BYTES + 1, *shapes["char_embed"][1:])
        yield from self._bundle.mismatches(asked)

    def read(self, name: str, *blocks: Block, shape: tuple[int, ...] | None = None) -> Array:
        array = self._bundle.read(self.spelled(name), *blocks, shape=shape)
        if name != "char_embed" or not self._has_row_of_no_token():
            return array
        if array[0].any():
            raise ModelError(
                f"{self.path}: {self.spelled(name)} has {BYTES + 1} rows, but the first is not one of zeros",
                hint=f"a table of {BYTES} rows, or one with zeros before them for where there is no token",
            )
        return array[1:]

    def _has_row_of_no_token(self) -> bool:
        return self.scope == _HUB and self.rows("char_embed") == BYTES + 1


def _scope(bundle: Bundle) -> str:
    if any(name.startswith(f"{_TRAINER}/") for name in bundle.names):
        return _TRAINER
    if any(_HUB in name.split("/") for name in bundle.names):
        return _HUB
    listed = ", ".join(map(named, bundle.names[:8])) or "none"
    raise ModelError(f"{bundle.path}: holds no ELMo, whose variables begin with lm/ or bilm/; it has {listed}")


def _trainer_place(variable: str) -> str | None:
    """What bilm-tf's dump calls a variable."""
    scope, _, name = variable.partition("/")
    if scope != _TRAINER:
        return None
    if _SAME_NAMES.fullmatch(name):
        return name
    if not (found := _LSTM.fullmatch(name)):
        return None
    direction, layer, part = found.groups()
    cell = f"{'' if layer is None else _CELL.format(int(layer))}LSTMCell"
    return f"{direction}RNN/{cell}/{_PARTS[part]}" if direction else f"rnn/{cell}/{part}"


def _hub_place(variable: str) -> str | None:
    """The same for the names of a TF-Hub module, of which users quote some: by how they end, and what leads there for LSTMs."""
    parts = variable.split("/")
    if _HUB not in parts:
        return None
    parts = parts[parts.index(_HUB) + 1 :]
    for last in (1, 2):
        if _SAME_NAMES.fullmatch(name := "/".join(parts[-last:])):
            return name
    part = "projection/kernel" if parts[-2:] == ["projection", "kernel"] else parts[-1] if parts else ""
    direction = next((part for part in parts if part in ("RNN_0", "RNN_1")), None)
    cell = next((found for each in parts if (found := re.fullmatch("[Cc]ell_?([0-9]{1,4})", each))), None)
    if direction is None or cell is None or part not in _PARTS:
        return None
    return f"{direction}/RNN/{_CELL.format(int(cell[1]))}LSTMCell/{_PARTS[part]}"


# -- which checkpoint, which options ---------------------------------------------------------------------------------


def _checkpoints(folder: Path) -> list[Path]:
    """The indexes in a folder that lie beside data, or are named as checkpoints are."""
    with_data = {file.name.rpartition(".data-")[0] for file in folder.glob("*.data-*-of-*")}
    return [index for index in sorted(folder.glob("*.index")) if ".ckpt" in index.name or index.stem in with_data]


def _prefix(path: Path) -> Path:
    """The path without `.index` that all files of a checkpoint begin with."""
    if not path.is_dir():
        return path.with_suffix("") if path.suffix == ".index" else path
    if (path / _HUB_INDEX).is_file():
        return (path / _HUB_INDEX).with_suffix("")
    found = {index.stem: index.with_suffix("") for index in _checkpoints(path)}
    latest = _latest(path / "checkpoint")
    if latest in found:
        return found[latest]
    if not found:
        raise ModelError(f"{path}: holds no checkpoint")
    chosen = max(found, key=lambda name: (_step(name), name))
    if len(found) > 1:
        warnings.warn(f"{path}: of {len(found)} checkpoints, {chosen} is read", stacklevel=3)
    return found[chosen]


def _latest(file: Path) -> str | None:
    """The base name of the checkpoint that the file `checkpoint` names: folders may have moved since."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_LARGEST_NOTE).decode("utf-8", "replace")
    except OSError:
        return None
    found = re.search(r'^model_checkpoint_path:[ \t]*"([^"\n]*)"', text, re.MULTILINE)
    return re.split(r"[/\\]", found[1])[-1] if found else None


def _step(name: str) -> int:
    found = re.search("-([0-9]{1,18})$", name)
    return int(found[1]) if found else -1


def _options_in(folder: Path) -> Path | None:
    if (folder / "options.json").is_file():
        return folder / "options.json"
    others = sorted(folder.glob("*options*.json"))
    return others[0] if len(others) == 1 else None


# -- what a TF-Hub module does not say -------------------------------------------------------------------------------


def _sizes(variables: Variables) -> dict[str, Any]:
    """Options out of the shapes of variables, and the published model's where shapes do not tell."""
    problems: list[str] = []

    def shape(name: str, axes: int) -> tuple[int, ...]:
        found = variables.shape(name)
        if name not in variables.names:
            problems.append(f"{variables.spelled(name)} is missing")
        elif len(found) != axes:
            problems.append(f"{named(variables.spelled(name))} has the shape {found}, but should have {axes} axes")
        return found if len(found) == axes else (1,) * axes

    def count(pattern: str) -> int:
        return next(k for k in range(len(variables.names) + 1) if pattern.format(k) not in variables.names)

    cell = f"RNN_0/RNN/{_CELL}LSTMCell/"
    filters = [shape(f"CNN/W_cnn_{k}", 4) for k in range(max(1, count("CNN/W_cnn_{}")))]
    cells = shape(f"{cell.format(0)}B", 1)[0] // 4
    projected = f"{cell.format(0)}W_P_0" in variables.names
    options = {
        "lstm": {
            "dim": cells,
            "projection_dim": shape(f"{cell.format(0)}W_P_0", 2)[1] if projected else cells,
            "n_layers": max(1, count(f"{cell}B")),
            **_ASSUMED_LSTM,
        },
        "char_cnn": {
            "embedding": {"dim": shape("char_embed", 2)[1]},
            "n_characters": BYTES,
            "filters": [[width, kinds] for _, width, _, kinds in filters],
            "n_highway": count("CNN_high_{}/W_carry"),
            **_ASSUMED,
        },
    }
    if problems:
        raise ModelError.from_problems(str(variables.path), problems)
    return options


def _merged(assumed: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What is given wins, key by key."""
    both = assumed.keys() & given.keys()
    inner = {
        key: _merged(assumed[key], given[key])
        for key in both
        if isinstance(assumed[key], dict) and isinstance(given[key], dict)
    }
    return {**assumed, **given, **inner}


def _tell_assumptions(index: Path, options_file: Path | None) -> None:
    said = f"what {options_file.name} leaves open is" if options_file else "its other options are"
    warnings.warn(
        f"{index}: a TF-Hub module gives its sizes by its shapes alone; {said} taken to be the published model's "
        "(relu, clips of 3, skip connections, tokens of 50 characters)",
        stacklevel=3,
    )


def _mixes(bundle: Bundle, config: BilmConfig) -> tuple[LearnedMix, ...]:
    """The mix that a TF-Hub module was trained with."""
    ends = {name.removesuffix("weights"): name for name in bundle.names if f"/{name}".endswith("/aggregation/weights")}
    mixes: list[LearnedMix] = []
    for scope, name in ends.items():
        gamma = _number(bundle, f"{scope}scaling")
        if bundle.shape(name) != (config.layers + 1,) or gamma is None:
            raise ModelError(
                f"{bundle.path}: {named(name)} should have {config.layers + 1} numbers, and {named(scope)}scaling one"
            )
        weights = bundle.read(name)
        if not np.isfinite([*weights, gamma]).all():
            raise ModelError(f"{bundle.path}: {named(name)} or scaling is not finite")
        mixes.append(LearnedMix(name=scope.rstrip("/"), weights=tuple(map(float, weights)), gamma=gamma))
    return tuple(mixes)


def _number(bundle: Bundle, name: str) -> float | None:
    """A variable of one number."""
    if bundle.shape(name) not in ((), (1,)):
        return None
    number = float(bundle.stored(name).reshape(-1)[0])
    return number if np.isfinite(number) else None
