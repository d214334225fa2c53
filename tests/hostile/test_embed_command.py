"""`elmofire embed` on broken models: exit code 2, one error that names what is broken, no traceback, nothing written."""

import os

import h5py
import numpy as np
import pytest
from hostile.breaking import WORDS, edit_dataset, edit_json, run_embed, write_model


def cut(folder, name, kept) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(kept * len(content))])


def with_nan(array):
    array.flat[0] = np.nan
    return array


def link_out(folder) -> None:
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        del file["char_embed"]
        file["char_embed"] = h5py.ExternalLink("/etc/passwd", "/char_embed")


def many(folder) -> None:
    for name in ("forward.0.bias", "backward.1.weight_hr"):
        edit_dataset(folder / "model.safetensors", name, lambda array: None)


CASES = {  # format, how it is broken, what is named
    "a dataset is missing": (
        "hdf5",
        lambda folder: edit_dataset(folder / "weights.hdf5", "CNN_proj/W_proj", lambda array: None),
        ["weights.hdf5", "CNN_proj/W_proj is missing"],
    ),
    "two tensors are missing": ("native", many, ["model.safetensors", "forward.0.bias", "backward.1.weight_hr"]),
    "NaN in a tensor": (
        "native",
        lambda folder: edit_dataset(folder / "model.safetensors", "backward.1.bias", with_nan),
        ["model.safetensors: backward.1.bias: holds values that are not finite"],
    ),
    "NaN in the head": (
        "hdf5",
        lambda folder: edit_dataset(folder / "softmax_weights.hdf5", "softmax/b", with_nan),
        ["softmax_weights.hdf5: softmax/b: holds values that are not finite"],
    ),
    "HDF5 cut short": ("hdf5", lambda folder: cut(folder, "weights.hdf5", 0.5), ["weights.hdf5"]),
    "empty HDF5": ("hdf5", lambda folder: cut(folder, "weights.hdf5", 0), ["weights.hdf5"]),
    "safetensors cut short": ("native", lambda folder: cut(folder, "model.safetensors", 0.9), ["model.safetensors"]),
    "JSON cut short": ("native", lambda folder: cut(folder, "config.json", 0.5), ["config.json"]),
    "JSON nested deeply": (
        "hdf5",
        lambda folder: (folder / "options.json").write_text('{"lstm": ' + "[" * 100_000),
        ["options.json"],
    ),
    "a huge JSON": ("native", lambda folder: os.truncate(folder / "config.json", 100 << 20), ["config.json"]),
    "an option of a wrong type": (
        "hdf5",
        lambda folder: edit_json(folder / "options.json", "lstm.dim", "11"),
        ["options.json: lstm.dim is '11'"],
    ),
    "an option that the datasets contradict": (
        "hdf5",
        lambda folder: edit_json(folder / "options.json", "lstm.n_layers", 3),
        ["options.json", "weights.hdf5: RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0 is missing"],
    ),
    "a newer format": (
        "native",
        lambda folder: edit_json(folder / "config.json", "format", 2),
        ["config.json", "upgrade"],
    ),
    "a path outside the folder": ("hdf5", link_out, ["weights.hdf5: char_embed is a link"]),
    "an empty vocabulary": (
        "native",
        lambda folder: (folder / "vocab.txt").write_text(""),
        ["vocab.txt: the vocabulary is empty"],
    ),
    "a vocabulary that is not utf-8": (
        "hdf5",
        lambda folder: (folder / "vocab.txt").write_bytes(b"<S>\n\xff\n"),
        ["vocab.txt:2: the vocabulary is not utf-8"],
    ),
}


def contents(folder) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_model_is_one_error_and_leaves_nothing_behind(tmp_path, case):
    format, break_it, named = CASES[case]
    folder = write_model(tmp_path, format)
    break_it(folder)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat\n")
    before = contents(tmp_path)
    run = run_embed(folder, "--output", str(tmp_path / "vectors.hdf5"), str(text))
    assert run.code == 2
    assert run.stdout == ""
    assert run.stderr.startswith("error: ")
    assert run.stderr.count("error:") == 1
    assert "Traceback" not in run.stderr
    for part in named:
        assert part in run.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "what", ["no-such-model", "~nobody-at-all/model", "x" * 300, "a\nb"], ids=lambda what: what[:12]
)
def test_a_model_that_is_nowhere_is_one_error(tmp_path, what):
    run = run_embed(what, "--output", str(tmp_path / "vectors.hdf5"))
    assert run.code == 2
    assert run.stderr.count("error:") == 1
    assert "Traceback" not in run.stderr
    assert not list(tmp_path.iterdir())


def test_repeated_words_are_a_warning_and_the_vectors_are_written(tmp_path):
    folder = write_model(tmp_path, "native", "words")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in [*WORDS[:8], "the"]))
    run = run_embed(folder, "--quiet", "--output", str(tmp_path / "vectors.hdf5"))
    assert run.code == 0
    assert run.stderr.count("warning:") == 1
    assert "1 repeated lines" in run.stderr
    with h5py.File(tmp_path / "vectors.hdf5") as file:
        assert file["0"].shape == (3, 12)
