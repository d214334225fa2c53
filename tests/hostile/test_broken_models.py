"""Every dataset of a model's files, broken in every way: one error that names the file and the dataset."""

from collections.abc import Iterator

import h5py
import numpy as np
import pytest
from hostile.breaking import (
    CONFIGS,
    DATASETS,
    WORDS,
    edit_dataset,
    error_of,
    load_all,
    shapes_in,
    write_model,
)
from models import lively

from elmofire import save_weights
from elmofire.formats.config import tensor_shapes
from elmofire.text.vocabulary import Vocabulary


def with_one(value):
    """One number of an array replaced."""

    def edit(array):
        array.flat[array.size // 2] = value
        return array

    return edit


WAYS = {
    "dropped": lambda array: None,
    "transposed": lambda array: array.T,
    "truncated": lambda array: array[:-1],
    "too long": lambda array: np.concatenate([array, array[:1]]),
    "flattened": lambda array: array.reshape(-1),
    "of rank plus one": lambda array: array[..., None],
    "scalar": lambda array: array.flat[0],
    "without rows": lambda array: array[:0],
    "NaN": with_one(np.nan),
    "infinite": with_one(-np.inf),
    "int32": lambda array: array.astype(np.int32),
    "bool": lambda array: array > 0,
    "complex64": lambda array: array.astype(np.complex64),
}


def every_dataset() -> Iterator[tuple[str, str, str, str]]:
    for (format, model), files in DATASETS.items():
        for file, datasets in files.items():
            for dataset in datasets:
                yield format, model, file, dataset


def shapes_of(format: str) -> dict[str, tuple[int, ...]]:
    """Shapes by the written rules: (in, out) and input and recurrent rows together in 2018's files, torch's in ours."""
    if format == "native":
        return tensor_shapes(CONFIGS["characters"]) | tensor_shapes(CONFIGS["words"])
    cells, width, filters, dim, words = 11, 6, ((1, 3), (2, 5), (4, 7)), 5, len(WORDS)
    total = sum(count for _, count in filters)
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, dim), "embedding": (words, width)}
    shapes |= {"softmax/W": (words, width), "softmax/b": (words,)}
    shapes |= {"CNN_proj/W_proj": (total, width), "CNN_proj/b_proj": (width,)}
    shapes |= {f"CNN/W_cnn_{k}": (1, n, dim, count) for k, (n, count) in enumerate(filters)}
    shapes |= {f"CNN/b_cnn_{k}": (count,) for k, (_, count) in enumerate(filters)}
    for part in ("carry", "transform"):
        shapes |= {f"CNN_high_0/W_{part}": (total, total), f"CNN_high_0/b_{part}": (total,)}
    for name in DATASETS["hdf5", "words"]["weights.hdf5"][1:]:
        part = name.rsplit("/", 1)[1]
        shapes[name] = {"W_0": (2 * width, 4 * cells), "B": (4 * cells,), "W_P_0": (cells, width)}[part]
    return shapes


def every_way_to_break() -> Iterator:
    for format, model, file, dataset in every_dataset():
        shape = shapes_of(format)[dataset]
        for way in WAYS:
            unchanged = (way == "transposed" and shape == shape[::-1]) or (way == "flattened" and len(shape) == 1)
            if not unchanged:
                yield pytest.param(format, model, file, dataset, way, id=f"{format}-{model}-{dataset}-{way}")


@pytest.mark.parametrize(("format", "model"), list(DATASETS), ids="-".join)
def test_files_hold_the_datasets_of_the_written_rules_and_nothing_else(tmp_path, format, model):
    folder = write_model(tmp_path, format, model)
    for file, datasets in DATASETS[format, model].items():
        assert shapes_in(folder / file) == {dataset: shapes_of(format)[dataset] for dataset in datasets}
    assert load_all(folder).config == CONFIGS[model]


@pytest.mark.parametrize(("format", "model", "file", "dataset", "way"), list(every_way_to_break()))
def test_a_broken_dataset_is_named_with_its_file(tmp_path, format, model, file, dataset, way):
    folder = write_model(tmp_path, format, model)
    edit_dataset(folder / file, dataset, WAYS[way])
    said = error_of(folder)
    assert file in said
    assert dataset in said


@pytest.mark.parametrize(
    ("format", "model", "file", "dataset"), list(every_dataset()), ids=lambda part: part.replace("weights.hdf5", "")
)
def test_a_renamed_dataset_is_named_with_its_file(tmp_path, format, model, file, dataset):
    folder = write_model(tmp_path, format, model)
    edit_dataset(folder / file, dataset, lambda array: array, rename=f"{dataset}_of_old")
    said = error_of(folder)
    assert file in said
    assert f"{dataset} is missing" in said


@pytest.mark.parametrize("dataset", DATASETS["hdf5", "characters"]["weights.hdf5"])
def test_a_dataset_of_strings_is_named(tmp_path, dataset):
    folder = write_model(tmp_path, "hdf5")
    edit_dataset(folder / "weights.hdf5", dataset, lambda array: np.full(array.shape, b"0.5"))
    assert f"weights.hdf5: {dataset} holds no floating-point numbers" in error_of(folder)


@pytest.mark.parametrize("kind", ["group", "data type", "empty"])
@pytest.mark.parametrize("dataset", ["char_embed", "CNN/W_cnn_0", "softmax/W"])
def test_what_is_no_array_is_named(tmp_path, dataset, kind):
    folder = write_model(tmp_path, "hdf5")
    file = folder / ("softmax_weights.hdf5" if dataset.startswith("softmax") else "weights.hdf5")
    edit_dataset(file, dataset, lambda array: None)
    with h5py.File(file, "r+") as opened:
        if kind == "group":
            opened.create_group(dataset)
        else:
            opened[dataset] = np.dtype("<f4") if kind == "data type" else h5py.Empty("<f4")
    said = error_of(folder)
    assert file.name in said
    assert dataset in said


@pytest.mark.parametrize("format", ["hdf5", "native"])
def test_all_mismatches_are_named_in_one_error(tmp_path, format):
    folder = write_model(tmp_path, format)
    broken = []
    for file, datasets in DATASETS[format, "characters"].items():
        for number, dataset in enumerate(datasets):
            edit_dataset(folder / file, dataset, WAYS[["dropped", "truncated", "int32"][number % 3]])
            broken.append(dataset)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in [*WORDS, "dogs"]))
    said = error_of(folder)
    for dataset in broken:
        assert dataset in said
    assert "vocab.txt has 10 words" in said


@pytest.mark.parametrize("format", ["hdf5", "native"])
def test_a_dataset_that_the_model_has_no_place_for_is_named(tmp_path, format):
    folder = write_model(tmp_path, format)
    extra = {"hdf5": "CNN_high_1/W_carry", "native": "encoder.highways.1.gate.weight"}[format]
    file = folder / next(iter(DATASETS[format, "characters"]))
    template = DATASETS[format, "characters"][file.name][1]
    edit_dataset(file, template, lambda array: array, rename=extra)
    said = error_of(folder)
    assert f"{extra} " in said
    assert f"{template} is missing" in said


@pytest.mark.parametrize("format", ["hdf5", "native"])
def test_a_name_made_to_look_like_an_error_stays_on_its_line(tmp_path, format):
    folder = write_model(tmp_path, format)
    file = folder / next(iter(DATASETS[format, "characters"]))
    template = DATASETS[format, "characters"][file.name][0]
    for name in ("CNN\nerror: all is lost", "CNN\x1b[31m", f"CNN{'x' * 5000}"):
        edit_dataset(file, template, lambda array: array, rename=name)
        template = name
    said = error_of(folder)
    assert "\nerror:" not in said
    assert "\x1b" not in said
    assert len(said) < 1000


class TestInt8:
    @pytest.mark.parametrize("dataset", ["encoder.words", "forward.0.weight_ih", "head.weight"])
    @pytest.mark.parametrize("way", ["dropped", "truncated", "NaN", "int32", "of rank plus one"])
    def test_a_broken_scale_is_named(self, tmp_path, dataset, way):
        folder = write_model(tmp_path, "native", "words", storage="int8")
        edit_dataset(folder / "model.safetensors", f"{dataset}.scale", WAYS[way])
        said = error_of(folder)
        assert "model.safetensors" in said
        assert dataset in said

    def test_a_scale_is_not_itself_scaled(self, tmp_path):
        folder = write_model(tmp_path, "native", "words", storage="int8")
        edit_dataset(folder / "model.safetensors", "head.weight.scale", lambda array: array.astype(np.int8))
        assert "head.weight.scale is stored as I8" in error_of(folder)

    def test_a_scale_without_int8_numbers_is_named(self, tmp_path):
        folder = write_model(tmp_path, "native", "words", storage="int8")
        edit_dataset(folder / "model.safetensors", "head.weight", lambda array: array.astype(np.float32))
        assert "head.weight.scale has no place" in error_of(folder)


def test_a_head_inside_the_weight_file_is_checked_too(tmp_path):
    save_weights(lively(CONFIGS["characters"], vocabulary=Vocabulary(WORDS)), tmp_path / "model", to="hdf5")
    softmax = tmp_path / "model" / "softmax_weights.hdf5"
    with h5py.File(softmax) as theirs, h5py.File(tmp_path / "model" / "weights.hdf5", "r+") as file:
        file["softmax/W"], file["softmax/b"] = theirs["softmax/W"][()], theirs["softmax/b"][()][:-1]
    softmax.unlink()
    assert "weights.hdf5: softmax/b has the shape (8,)" in error_of(tmp_path / "model")
