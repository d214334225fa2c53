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
from elmofire.formats.published.datasets import DatasetFile, Datasets
from elmofire.formats.published.options_2018 import Options, options_of
from elmofire.formats.weights import Array, FileArrays, Source, Weights
from elmofire.recipe import named
from elmofire.text.vocabulary import Vocabulary, read_vocabulary, write_vocabulary

OPTIONS, WEIGHTS, SOFTMAX, VOCABULARY = "options.json", "weights.hdf5", "softmax_weights.hdf5", "vocab.txt"

_GATE_ORDER = (0, 2, 1, 3)  # our gate k is their block _GATE_ORDER[k]; the permutation is its own inverse
_PARTS = {"weight": "W_0", "bias": "B", "weight_hr": "W_P_0"}
# Models of one direction kept the names that the trainer gave.
_ONE_WAY_PARTS = {"weight": "kernel", "bias": "bias", "weight_hr": "projection/kernel"}
_MODEL_GROUPS = ("char_embed", "CNN", "CNN_proj", "CNN_high_", "RNN_", "rnn", "embedding")


class Layout:
    """Which of the names that bilm-tf gave to LSTM variables a file uses."""

    def __init__(self, *, one_way: bool = False, bare_cell: bool = False) -> None:
        self.one_way = one_way  # one direction alone: `rnn/...`
        self.bare_cell = bare_cell  # one-layer models were dumped without `MultiRNNCell/Cell0`

    @classmethod
    def of(cls, names: set[str]) -> "Layout":
        one_way = not any(name.startswith("RNN_") for name in names) and any(name.startswith("rnn/") for name in names)
        return cls(
            one_way=one_way,
            bare_cell=any("RNN/LSTMCell/" in name or name.startswith("rnn/LSTMCell/") for name in names),
        )

    @property
    def directions(self) -> tuple[str, ...]:
        return (FORWARD,) if self.one_way else (FORWARD, BACKWARD)

    def lstm(self, direction: str, layer: int, part: str) -> str:
        cell = "LSTMCell" if self.bare_cell and layer == 0 else f"MultiRNNCell/Cell{layer}/LSTMCell"
        if self.one_way:
            return f"rnn/{cell}/{_ONE_WAY_PARTS[part]}"
        return f"RNN_{(FORWARD, BACKWARD).index(direction)}/RNN/{cell}/{_PARTS[part]}"

    def has_projection(self, names: set[str]) -> bool:
        part = (_ONE_WAY_PARTS if self.one_way else _PARTS)["weight_hr"]
        return any(name.endswith(f"/LSTMCell/{part}") for name in names)

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
    head = opened if opened.has("softmax") or not softmax_file else DatasetFile(softmax_file)
    files = tuple(file for file in (options_file, weight_file, softmax_file, vocabulary_file) if file)
    source = Source(what or (str(options_file), str(weight_file)), "hdf5", files)
    return weights_of(options, opened, head, vocabulary_file=vocabulary_file, source=source)


def weights_of(
    options: Options, opened: Datasets, head: Datasets, *, vocabulary_file: Path | None, source: Source
) -> Weights:
    """The model that options describe and opened files hold; all that is wrong between them at once."""
    vocabulary = read_vocabulary(vocabulary_file) if vocabulary_file else None
    layout = Layout.of(opened.names)
    config = options.config(
        directions=layout.directions,
        words=max(1, opened.rows("embedding")),
        encoder_projection=opened.has("CNN_proj") or options.filter_count != options.projection,
        lstm_projection=layout.has_projection(opened.names) or options.cells != options.projection,
        head=_head_rows(head, vocabulary),
    )
    shapes = tensor_shapes(config)
    problems = _mismatches(options, config, layout, opened, head)
    if vocabulary_file and vocabulary is not None:
        words = opened.rows("embedding") if config.encoder.words else 0
        tables = {"embedding has": words, "softmax/W and softmax/b have": config.head}
        problems += [
            f"{vocabulary_file.name} has {len(vocabulary)} words, but {datasets} {rows} rows"
            for datasets, rows in tables.items()
            if rows not in (0, len(vocabulary))
        ]
    elif config.encoder.words:
        problems.append(f"{VOCABULARY} is missing, and this model takes whole words")
    if problems:
        hint = "the options probably belong to another model" if len(problems) > 1 else ""
        raise ModelError.from_problems(f"{options.path} and {opened.path.name}", problems, hint=hint)

    def read_array(name: str) -> Array:
        return _from_file(
            name, shapes[name], config.cells, head if name.startswith("head.") else opened, layout.dataset(name)
        )

    def where(name: str) -> str:
        file = head if name.startswith("head.") else opened
        return f"{file.path}: {file.spelled(layout.dataset(name))}"

    return Weights(config=config, arrays=FileArrays(config, read_array, where), vocabulary=vocabulary, source=source)


def _head_rows(head: Datasets, vocabulary: Vocabulary | None) -> int:
    """Where the two datasets of a head differ, the vocabulary tells which is right."""
    if not head.has("softmax"):
        return 0
    rows = (head.rows("softmax/W"), head.rows("softmax/b"))
    return len(vocabulary) if vocabulary is not None and len(vocabulary) in rows else max(1, *rows)


def _file_shape(name: str, shape: tuple[int, ...], config: BilmConfig) -> tuple[int, ...]:
    """The shape that an array of ours has in the file."""
    if name.endswith(".weight_ih"):
        return (shape[1] + config.projection, shape[0])
    if name.startswith("encoder.convolutions.") and name.endswith("weight"):
        return (1, *shape[::-1])
    if name.startswith(("encoder.characters", "encoder.words", "head.")):
        return shape
    return shape[::-1]


def _mismatches(options: Options, config: BilmConfig, layout: Layout, opened: Datasets, head: Datasets) -> list[str]:
    """All that is wrong between the options and the datasets."""
    if not any(name.split("/")[0].startswith(_MODEL_GROUPS) for name in opened.names):
        return [f"{opened.path.name}: holds no ELMo's weights: neither char_embed or embedding, nor RNN_0"]
    problems: list[str] = []
    # weight_hh is stored together with weight_ih
    shapes = {
        name: _file_shape(name, shape, config)
        for name, shape in tensor_shapes(config).items()
        if not name.endswith("_hh")
    }
    known: set[str] = set()
    for file in {opened.path: opened, head.path: head}.values():
        asked = {
            layout.dataset(name): shape
            for name, shape in shapes.items()
            if (head if name.startswith("head.") else opened) is file
        }
        problems += [f"{file.path.name}: {mismatch}" for mismatch in file.mismatches(asked)]
        known |= asked.keys()
    # What belongs to an ELMo and has no place in this one: the options are those of another model.
    problems += [
        f"{opened.path.name}: {named(opened.spelled(name))} has no place in the model that {options.path.name} describes"
        for name in sorted(opened.names - known)
        if name.split("/")[0].startswith(_MODEL_GROUPS)
    ]
    return problems


def _from_file(name: str, shape: tuple[int, ...], cells: int, file: Datasets, dataset: str) -> Array:
    """An array of ours; LSTM gates are put in our order as they are read."""
    gates = _gate_blocks(cells)
    if name.endswith((".weight_ih", ".weight_hh")):
        first = 0 if name.endswith("_ih") else file.rows(dataset) - shape[1]
        rows = slice(first, first + shape[1])
        return file.read(
            dataset, *[((rows, theirs), (slice(None), ours)) for ours, theirs in gates], shape=shape[::-1]
        ).T
    if name.endswith(".bias") and not name.startswith(("encoder.", "head.")):
        return file.read(dataset, *[((theirs,), (ours,)) for ours, theirs in gates])
    array = file.read(dataset)
    return array if name.startswith(("encoder.characters", "encoder.words", "head.")) else array.reshape(shape[::-1]).T


def _gate_blocks(cells: int) -> list[tuple[slice, slice]]:
    """(our columns, their columns) of each gate."""
    return [(slice(k * cells, (k + 1) * cells), slice(g * cells, (g + 1) * cells)) for k, g in enumerate(_GATE_ORDER)]


def write(weights: Weights, folder: Path) -> None:
    """Write `options.json`, `weights.hdf5` and, where there are such, `softmax_weights.hdf5` and `vocab.txt`."""
    config = weights.config
    if problems := beyond_the_format(config):
        raise ModelError.from_problems("the 2018 format cannot hold this model", problems, hint="write it as native")
    # With MultiRNNCell also for one layer: that is what the old readers look for.
    layout = Layout(one_way=config.directions == (FORWARD,))
    with folder_written_aside(folder, replaces=_is_ours) as aside:
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
            write_vocabulary(aside / VOCABULARY, weights.vocabulary)


def beyond_the_format(config: BilmConfig) -> list[str]:
    """What of a model has no place in files of 2018."""
    encoder = config.encoder
    problems: list[str] = []
    if config.directions == (BACKWARD,):
        problems.append("it has no names for a model of the backward direction alone")
    if encoder.filters and encoder.alphabet != "bytes":
        problems.append(f"its characters are bytes, but this model's are {encoder.alphabet}")
    if encoder.filters and encoder.one_hot:
        problems.append("its characters have vectors that are trained, but this model's are one-hot")
    if encoder.filters and encoder.highways and encoder.highway != "tied":
        problems.append(f"its highways are 'tied', but this model's are {encoder.highway!r}")
    if encoder.filters and encoder.words:
        problems.append("it has words or characters, but this model has a word table beside its characters")
    elif encoder.words and encoder.projection:
        problems.append("it has no projection behind a word table")
    if encoder.width != config.projection:
        problems.append(f"it needs an encoder as wide as the LSTM's output: {encoder.width} is not {config.projection}")
    return problems


def _is_ours(folder: Path) -> bool:
    """Whether a folder is one that `write` has written, so that nothing else is lost with it."""
    only_ours = {file.name for file in folder.iterdir()} <= {OPTIONS, WEIGHTS, SOFTMAX, VOCABULARY}
    return only_ours and (folder / OPTIONS).is_file() and "lstm" in read_json_object(folder / OPTIONS)


def _to_file(name: str, weights: Weights) -> Array:
    array = weights.arrays[name]
    if name.endswith(".weight_ih"):
        return _their_gates(np.concatenate([array.T, weights.arrays[name.replace("_ih", "_hh")].T]))
    if name.endswith(".bias") and not name.startswith("encoder."):
        return _their_gates(array, without=1.0 - weights.config.forget_bias)
    if name.startswith("encoder.convolutions.") and array.ndim == 3:
        return array.T[None]
    return array if name.startswith(("encoder.characters", "encoder.words")) else array.T


def _their_gates(array: Array, *, without: float = 0.0) -> Array:
    """Gate columns in their order; a model whose bias holds the forget gate's 1 already gives it back, since their readers add it."""
    gates = np.split(array, 4, axis=-1)
    if without:
        gates[1] = gates[1] - np.float32(without)
    return np.ascontiguousarray(np.concatenate([gates[k] for k in _GATE_ORDER], axis=-1), dtype=np.float32)
