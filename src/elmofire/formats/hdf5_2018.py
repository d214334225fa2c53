"""The 2018 family: `options.json` beside an HDF5 file, as bilm-tf wrote it and AllenNLP read it, and a softmax file if there is one.

Matrices are stored (in, out) and LSTM kernels hold input and recurrent rows together, with gate columns in TensorFlow's order
(input, candidate, forget, output). Arrays come out in our shapes as views of the bytes as read, so nothing is copied twice.
"""

import json
from pathlib import Path

import h5py
import numpy as np

from elmofire.errors import ModelError
from elmofire.formats.config import BACKWARD, FORWARD, BilmConfig, tensor_shapes
from elmofire.formats.files import folder_written_aside, read_json_object
from elmofire.formats.options_2018 import Options, options_of
from elmofire.formats.weights import Array, FileArrays, Source, Weights
from elmofire.text.vocabulary import Vocabulary, read_vocabulary

OPTIONS, WEIGHTS, SOFTMAX, VOCABULARY = "options.json", "weights.hdf5", "softmax_weights.hdf5", "vocab.txt"

_GATE_ORDER = (0, 2, 1, 3)  # our gate k is their block _GATE_ORDER[k]; the permutation is its own inverse
_PARTS = {"weight": "W_0", "bias": "B", "weight_hr": "W_P_0"}
_ONE_WAY_PARTS = {"weight": "kernel", "bias": "bias", "weight_hr": "projection/kernel"}  # unidirectional models kept these names
_MODEL_GROUPS = ("char_embed", "CNN", "CNN_proj", "CNN_high_", "RNN_", "rnn", "embedding")


class Layout:
    """Which of the names that bilm-tf gave to LSTM variables a file uses."""

    def __init__(self, *, one_way: bool = False, bare_cell: bool = False) -> None:
        self.one_way = one_way  # one direction alone: `rnn/...`
        self.bare_cell = bare_cell  # one-layer models were dumped without `MultiRNNCell/Cell0`

    @classmethod
    def of(cls, names: set[str]) -> "Layout":
        one_way = not any(name.startswith("RNN_") for name in names) and any(name.startswith("rnn/") for name in names)
        return cls(one_way=one_way, bare_cell=any("RNN/LSTMCell/" in name or name.startswith("rnn/LSTMCell/") for name in names))

    @property
    def directions(self) -> tuple[str, ...]:
        return (FORWARD,) if self.one_way else (FORWARD, BACKWARD)

    def lstm(self, direction: str, layer: int, part: str) -> str:
        cell = "LSTMCell" if self.bare_cell and layer == 0 else f"MultiRNNCell/Cell{layer}/LSTMCell"
        if self.one_way:
            return f"rnn/{cell}/{_ONE_WAY_PARTS[part]}"
        return f"RNN_{(FORWARD, BACKWARD).index(direction)}/RNN/{cell}/{_PARTS[part]}"

    def dataset(self, name: str) -> str:
        """Our name -> theirs."""
        part = name.split(".")
        if part[0] == "head":
            return f"softmax/{'W' if part[1] == 'weight' else 'b'}"
        if name == "encoder.characters":
            return "char_embed"
        if name == "encoder.words":
            return "embedding"
        if part[0] != "encoder":
            return self.lstm(part[0], int(part[1]), "weight" if part[2] in ("weight_ih", "weight_hh") else part[2])
        letter = "W" if part[-1] == "weight" else "b"
        if part[1] == "convolutions":
            return f"CNN/{letter}_cnn_{part[2]}"
        if part[1] == "highways":
            # Their "carry" multiplies the transformed value: it is our gate.
            return f"CNN_high_{part[2]}/{letter}_{'carry' if part[3] == 'gate' else 'transform'}"
        return f"CNN_proj/{letter}_proj"


def read(
    options_file: Path,
    weight_file: Path,
    *,
    softmax_file: Path | None = None,
    vocabulary_file: Path | None = None,
    what: str | None = None,
) -> Weights:
    """Read a pair of files, and the head and the vocabulary where they are there."""
    options = Options(options_file, read_json_object(options_file))
    if options.problems:
        raise ModelError.from_problems(str(options_file), options.problems)
    opened = DatasetFile(weight_file)
    head = opened if "softmax/W" in opened.names else (DatasetFile(softmax_file) if softmax_file else None)
    vocabulary = read_vocabulary(vocabulary_file) if vocabulary_file else None
    layout = Layout.of(opened.names)
    if ("char_embed" if options.char_cnn is not None else "embedding") not in opened.names:
        raise _no_table(options, opened)
    encoder_projection = "CNN_proj/W_proj" in opened.names or options.filter_count != options.projection
    lstm_projection = layout.lstm(FORWARD, 0, "weight_hr") in opened.names or options.cells != options.projection
    config = options.config(
        directions=layout.directions,
        words=opened.rows("embedding"),
        encoder_projection=encoder_projection,
        lstm_projection=lstm_projection,
        head=head.rows("softmax/W") if head else 0,
    )
    _check(options_file, config, layout, opened, head, vocabulary)

    def read_array(name: str) -> Array:
        file = head if name.startswith("head.") and head else opened
        return _from_file(name, config, file, layout.dataset(name))

    def where(name: str) -> str:
        return f"{head.path if name.startswith('head.') and head else weight_file}: {layout.dataset(name)}"

    files = (options_file, weight_file, *((softmax_file,) if softmax_file else ()))
    return Weights(
        config=config,
        arrays=FileArrays(config, read_array, where),
        vocabulary=vocabulary,
        source=Source(what or (str(options_file), str(weight_file)), "hdf5", files),
    )


def _no_table(options: Options, opened: "DatasetFile") -> ModelError:
    """The weight file lacks the very table that the options call for."""
    wanted, other = ("char_embed", "embedding") if options.char_cnn is not None else ("embedding", "char_embed")
    found = f", but {other} is there" if other in opened.names else ""
    said = "has char_cnn" if options.char_cnn is not None else "has no char_cnn"
    return ModelError(f"{opened.path}: {wanted} is missing{found}; {options.path.name} {said}")


class DatasetFile:
    """An HDF5 file whose datasets are plain arrays inside it: no links to elsewhere, no sizes it cannot back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise ModelError(
                f"{path}: is not a whole HDF5 file: {error}", hint="a broken download? compare its size with the published one"
            ) from None
        self.names: set[str] = set()
        self.problems: list[str] = []
        self._walk(self._file, "")

    def _walk(self, group: h5py.Group, prefix: str, depth: int = 0) -> None:
        for key in group:
            name = f"{prefix}{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                self.problems.append(f"{name} is a link; only data inside the file is read")
                continue
            if group.get(key, getclass=True) is h5py.Group:
                if depth < 8:
                    self._walk(group[key], f"{name}/", depth + 1)
            else:
                self.names.add(name)

    def rows(self, name: str) -> int:
        shape = self.dataset(name).shape if name in self.names else ()
        return shape[0] if shape else 0

    def dataset(self, name: str) -> h5py.Dataset:
        return self._file[name]

    def problem(self, name: str, shape: tuple[int, ...]) -> str | None:
        """What keeps the dataset from being read as float32 numbers of this shape."""
        if name not in self.names:
            return f"{name} is missing"
        dataset = self.dataset(name)
        if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind != "f":
            return f"{name} holds no floating-point numbers"
        if dataset.shape != shape:
            return f"{name} has the shape {dataset.shape}, but the options ask for {shape}"
        if dataset.external or dataset.is_virtual:
            return f"{name} keeps its numbers outside the file"
        stored = dataset.id.get_storage_size()
        if stored == 0 or dataset.nbytes > (1 << 26) + 50 * stored:
            return f"{name} claims {dataset.nbytes:,} bytes, but the file holds {stored:,}"
        return None

    def read(self, name: str, *blocks: tuple[tuple[slice, ...], tuple[slice, ...]], shape: tuple[int, ...] | None = None) -> Array:
        """The dataset as float32; or (source, target) blocks of it, gathered into an array of `shape`."""
        dataset = self.dataset(name)
        out = np.empty(shape or dataset.shape, dtype=np.float32)
        try:
            for source, target in blocks or [((), ())]:
                dataset.read_direct(out, np.s_[source], np.s_[target])
        except OSError as error:
            raise ModelError(f"{self.path}: {name}: cannot be read: {error}") from None
        return out


def _file_shape(name: str, config: BilmConfig) -> tuple[int, ...]:
    """The shape a dataset should have in the file."""
    shape = tensor_shapes(config)[name]
    if ".weight_ih" in name:
        return (shape[1] + config.projection, shape[0])
    if name.startswith("encoder.convolutions.") and name.endswith("weight"):
        return (1, *shape[::-1])
    if name.startswith(("encoder.characters", "encoder.words", "head.")):
        return shape
    return shape[::-1]


def _check(options_file: Path, config: BilmConfig, layout: Layout, opened: DatasetFile, head: DatasetFile | None, vocabulary: Vocabulary | None) -> None:
    problems = [f"{opened.path.name}: {problem}" for problem in opened.problems]
    known: set[str] = set()
    for name in tensor_shapes(config):
        if name.endswith(".weight_hh"):
            continue  # stored together with weight_ih
        file = head if name.startswith("head.") and head else opened
        known.add(layout.dataset(name))
        problem = file.problem(layout.dataset(name), _file_shape(name, config))
        if problem:
            problems.append(f"{file.path.name}: {problem}")
    # What belongs to an ELMo and has no place in this one: the options are those of another model.
    problems += [
        f"{opened.path.name}: {name} has no place in the model that {options_file.name} describes"
        for name in sorted(opened.names - known)
        if name.split("/")[0].startswith(_MODEL_GROUPS)
    ]
    for dataset, rows in (("embedding", config.encoder.words), ("softmax/W", config.head)):
        if vocabulary is not None and rows not in (0, len(vocabulary)):
            problems.append(f"the vocabulary has {len(vocabulary)} words, but {dataset} has {rows} rows")
    if config.encoder.words and vocabulary is None:
        problems.append(f"{VOCABULARY} is missing, and this model takes whole words")
    if problems:
        hint = "the options probably belong to another model" if len(problems) > 1 else ""
        raise ModelError.from_problems(f"{options_file} and {opened.path.name}", problems, hint=hint)


def _from_file(name: str, config: BilmConfig, file: DatasetFile, dataset: str) -> Array:
    shape = tensor_shapes(config)[name]
    if name.endswith((".weight_ih", ".weight_hh")):
        rows = slice(0, shape[1]) if name.endswith("_ih") else slice(-shape[1], None)
        total = _file_shape(name.replace("_hh", "_ih"), config)[0]
        first, last, _ = rows.indices(total)
        gates = _gate_blocks(config.cells)
        blocks = [((slice(first, last), theirs), (slice(None), ours)) for ours, theirs in gates]
        return file.read(dataset, *blocks, shape=shape[::-1]).T
    if name.endswith(".bias") and not name.startswith(("encoder.", "head.")):
        return file.read(dataset, *[((theirs,), (ours,)) for ours, theirs in _gate_blocks(config.cells)])
    array = file.read(dataset)
    return array if name.startswith(("encoder.characters", "encoder.words", "head.")) else array.reshape(shape[::-1]).T


def _gate_blocks(cells: int) -> list[tuple[slice, slice]]:
    """(our columns, their columns) of each gate."""
    return [(slice(k * cells, (k + 1) * cells), slice(g * cells, (g + 1) * cells)) for k, g in enumerate(_GATE_ORDER)]


def write(weights: Weights, folder: Path) -> None:
    """Write `options.json`, `weights.hdf5` and, where there are such, `softmax_weights.hdf5` and `vocab.txt`."""
    config = weights.config
    if config.directions == (BACKWARD,):
        raise ModelError("the 2018 format has no names for a model of the backward direction alone", hint="write it as native")
    if config.encoder.width != config.projection:
        raise ModelError(f"the 2018 format needs an encoder as wide as the LSTM's output: {config.encoder.width} is not {config.projection}")
    if not config.encoder.projection and config.encoder.filters and config.encoder.filter_count != config.projection:
        raise ModelError("the 2018 format needs a projection behind the filters of this model")
    # With MultiRNNCell also for one layer: that is what the old readers look for.
    layout = Layout(one_way=config.directions == (FORWARD,))
    with folder_written_aside(folder, marker=OPTIONS) as aside:
        with h5py.File(aside / WEIGHTS, "w") as file:
            for name in tensor_shapes(config):
                if not name.endswith(".weight_hh") and not name.startswith("head."):
                    file[layout.dataset(name)] = _to_file(name, weights)
        if config.head:
            with h5py.File(aside / SOFTMAX, "w") as file:
                for name in ("head.weight", "head.bias"):
                    file[layout.dataset(name)] = weights.arrays[name]
        (aside / OPTIONS).write_text(json.dumps(options_of(config), indent=2) + "\n", encoding="utf-8")
        if weights.vocabulary is not None:
            (aside / VOCABULARY).write_text("".join(f"{word}\n" for word in weights.vocabulary.words), encoding="utf-8")


def _to_file(name: str, weights: Weights) -> Array:
    array = weights.arrays[name]
    if name.endswith(".weight_ih"):
        return _their_gates(np.concatenate([array.T, weights.arrays[name.replace("_ih", "_hh")].T]), weights.config)
    if name.endswith(".bias") and not name.startswith("encoder."):
        return _their_gates(array, weights.config, without=1.0 - weights.config.forget_bias)
    if name.startswith("encoder.convolutions.") and array.ndim == 3:
        return array.T[None]
    return array if name.startswith(("encoder.characters", "encoder.words")) else array.T


def _their_gates(array: Array, config: BilmConfig, *, without: float = 0.0) -> Array:
    """Gate columns in their order; a model whose bias holds the forget gate's 1 already gives it back, since their readers add it."""
    gates = np.split(array, 4, axis=-1)
    if without:
        gates[1] = gates[1] - np.float32(without)
    return np.ascontiguousarray(np.concatenate([gates[k] for k in _GATE_ORDER], axis=-1), dtype=np.float32)
