"""Models in files, and how to break them one way at a time with other libraries than ours."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import safetensors.numpy
from models import lively, tiny, words_only

from elmofire import ModelError, Weights, load_weights, save_weights
from elmofire.text.vocabulary import Vocabulary

WORDS = ["<S>", "</S>", "<UNK>", "the", "cat", "sat", "on", "mats", "."]
CONFIGS = {"characters": tiny(head=len(WORDS)), "words": words_only(len(WORDS), head=len(WORDS))}

_LSTM_2018 = [
    f"RNN_{d}/RNN/MultiRNNCell/Cell{k}/LSTMCell/{part}"
    for d in (0, 1)
    for k in (0, 1)
    for part in ("W_0", "B", "W_P_0")
]
_LSTM_NATIVE = [
    f"{direction}.{k}.{part}"
    for direction in ("forward", "backward")
    for k in (0, 1)
    for part in ("weight_ih", "weight_hh", "bias", "weight_hr")
]
# Every dataset of the two models by the written rules, file by file.
DATASETS = {
    ("hdf5", "characters"): {
        "weights.hdf5": [
            "char_embed",
            *[f"CNN/{letter}_cnn_{k}" for k in (0, 1, 2) for letter in "Wb"],
            *[f"CNN_high_0/{letter}_{part}" for part in ("carry", "transform") for letter in "Wb"],
            *["CNN_proj/W_proj", "CNN_proj/b_proj"],
            *_LSTM_2018,
        ],
        "softmax_weights.hdf5": ["softmax/W", "softmax/b"],
    },
    ("hdf5", "words"): {
        "weights.hdf5": ["embedding", *_LSTM_2018],
        "softmax_weights.hdf5": ["softmax/W", "softmax/b"],
    },
    ("native", "characters"): {
        "model.safetensors": [
            "encoder.characters",
            *[f"encoder.convolutions.{k}.{part}" for k in (0, 1, 2) for part in ("weight", "bias")],
            *[f"encoder.highways.0.{gate}.{part}" for gate in ("transform", "gate") for part in ("weight", "bias")],
            *["encoder.projection.weight", "encoder.projection.bias"],
            *_LSTM_NATIVE,
            *["head.weight", "head.bias"],
        ]
    },
    ("native", "words"): {"model.safetensors": ["encoder.words", *_LSTM_NATIVE, "head.weight", "head.bias"]},
}


@cache
def _files(format: str, model: str, storage: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        weights = lively(CONFIGS[model], vocabulary=Vocabulary(WORDS))
        save_weights(weights, Path(folder) / "model", to=format, storage=storage)
        return {file.name: file.read_bytes() for file in (Path(folder) / "model").iterdir()}


def write_model(folder: Path, format: str, model: str = "characters", *, storage: str = "float32") -> Path:
    """A whole model in a new folder `folder/model`."""
    folder = folder / "model"
    folder.mkdir(parents=True)
    for name, content in _files(format, model, storage).items():
        (folder / name).write_bytes(content)
    return folder


def load_all(what: Any) -> Weights:
    """Load a model and look at every array, as an Embedder does."""
    weights = load_weights(what)
    for name in weights.arrays:
        assert weights.arrays[name].dtype == np.float32
    return weights


def error_of(what: Any) -> str:
    """What is said about a model that cannot be loaded."""
    with pytest.raises(ModelError) as caught:
        load_all(what)
    return str(caught.value)


def edit_dataset(file: Path, name: str, edit: Callable[[np.ndarray], Any], *, rename: str | None = None) -> None:
    """Replace a dataset of either format by what `edit` makes of it; by nothing where that is None."""
    if file.suffix == ".hdf5":
        with h5py.File(file, "r+") as opened:
            edited = edit(opened[name][()])
            del opened[name]
            if edited is not None:
                opened[rename or name] = edited
    else:
        tensors = safetensors.numpy.load_file(file)
        edited = edit(tensors.pop(name))
        if edited is not None:
            tensors[rename or name] = np.array(edited, order="C")  # save_file writes the memory as it lies
        safetensors.numpy.save_file(tensors, file)


def shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """What a file holds."""
    if file.suffix != ".hdf5":
        return {name: array.shape for name, array in safetensors.numpy.load_file(file).items()}
    shapes = {}

    def note(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            shapes[name] = found.shape

    with h5py.File(file) as opened:
        opened.visititems(note)
    return shapes


MISSING = object()


def edit_json(file: Path, key: str, value: Any) -> None:
    """Set `a.b.c` in a JSON file, or take it out."""
    table = json.loads(file.read_text())
    *outer, last = key.split(".")
    inner = table
    for part in outer:
        inner = inner[part]
    if value is MISSING:
        del inner[last]
    else:
        inner[last] = value
    file.write_text(json.dumps(table))


def keys_of(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """All keys of nested objects as `a.b.c`."""
    for key, value in table.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from keys_of(value, f"{prefix}{key}.")


class Run(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str
    peak: int  # bytes of memory


def run_embed(what: Any, *arguments: str, text: str = "the cat sat\n") -> Run:
    """`elmofire embed` as a user runs it, in a process of its own."""
    command = [sys.executable, "-m", "elmofire", "embed", "--model", str(what), "--device", "cpu", *arguments]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err, text=True)
        assert process.stdin
        try:
            process.stdin.write(text)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended without reading
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return Run(process.returncode, out.read(), err.read(), usage.ru_maxrss * 1024)
