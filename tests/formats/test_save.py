"""A model appears whole or not at all, and never in the place of something else."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from formats.strategies import vocabulary_of
from models import lively, tiny

from elmofire import ModelError, Weights, load_weights, save_weights
from elmofire.formats import native
from elmofire.text.vocabulary import Vocabulary

both = pytest.mark.parametrize("to", ["native", "hdf5"])


class Failing(Mapping):
    """Arrays of which one cannot be read."""

    def __init__(self, arrays: Mapping[str, np.ndarray], broken: str) -> None:
        self.arrays, self.broken = arrays, broken

    def __getitem__(self, name: str) -> np.ndarray:
        if name == self.broken:
            raise ModelError(f"{name}: is broken")
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def model(seed: int = 0) -> Weights:
    config = tiny(head=8)
    return lively(config, seed=seed, vocabulary=vocabulary_of(config))


@both
def test_folders_above_are_made(tmp_path, to):
    save_weights(model(), tmp_path / "a" / "b" / "model", to=to)
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["model"]


@both
def test_an_empty_folder_is_filled(tmp_path, to):
    (tmp_path / "model").mkdir()
    save_weights(model(), tmp_path / "model", to=to)
    assert load_weights(tmp_path / "model").config.head == 8


@both
def test_an_older_model_of_the_same_format_is_replaced(tmp_path, to):
    save_weights(model(seed=1), tmp_path / "model", to=to)
    save_weights(model(seed=2), tmp_path / "model", to=to)
    read = load_weights(tmp_path / "model").arrays["forward.0.bias"]
    np.testing.assert_array_equal(read, model(seed=2).arrays["forward.0.bias"])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@both
def test_a_model_can_be_written_over_the_files_it_is_read_from(tmp_path, to):
    save_weights(model(), tmp_path / "model", to=to)
    before = dict(load_weights(tmp_path / "model").arrays)
    save_weights(load_weights(tmp_path / "model"), tmp_path / "model", to=to)
    for name, array in load_weights(tmp_path / "model").arrays.items():
        np.testing.assert_array_equal(array, before[name])


@both
@pytest.mark.parametrize(
    "others",
    [
        {"thesis.txt": "a year's work"},
        {"config.json": '{"model_type": "bert"}', "model.safetensors": "", "vocab.txt": "the\n"},
        {"config.json": "{}", "options.json": "{}"},
        {"options.json": '{"editor": "vi"}'},
        {"config.json": "no JSON", "options.json": "no JSON"},
    ],
    ids=["a text", "another library's model", "objects", "other options", "no JSON"],
)
def test_a_folder_of_something_else_is_left_alone(tmp_path, to, others):
    (tmp_path / "model").mkdir()
    for name, content in others.items():
        (tmp_path / "model" / name).write_text(content)
    before = contents(tmp_path)
    with pytest.raises(ModelError, match="exists and is not just a model of this format"):
        save_weights(model(), tmp_path / "model", to=to)
    assert contents(tmp_path) == before


@both
def test_a_model_with_other_files_beside_it_is_left_alone(tmp_path, to):
    save_weights(model(seed=1), tmp_path / "model", to=to)
    (tmp_path / "model" / "notes.txt").write_text("which run this was")
    before = contents(tmp_path)
    with pytest.raises(ModelError, match="exists and is not just a model of this format"):
        save_weights(model(seed=2), tmp_path / "model", to=to)
    assert contents(tmp_path) == before


@both
def test_a_file_of_that_name_is_left_alone(tmp_path, to):
    (tmp_path / "model").write_text("a file")
    with pytest.raises(ModelError, match="exists and is not just a model"):
        save_weights(model(), tmp_path / "model", to=to)
    assert (tmp_path / "model").read_text() == "a file"


@both
@pytest.mark.parametrize("broken", ["encoder.characters", "forward.1.weight_hh", "head.bias"])
@pytest.mark.parametrize("older", [True, False], ids=["over an older model", "into nothing"])
def test_a_write_that_fails_leaves_all_as_it_was(tmp_path, to, broken, older):
    if older:
        save_weights(model(seed=1), tmp_path / "model", to=to)
    before = contents(tmp_path)
    weights = model(seed=2)
    failing = Weights(config=weights.config, arrays=Failing(weights.arrays, broken), vocabulary=weights.vocabulary)
    with pytest.raises(ModelError, match="is broken"):
        save_weights(failing, tmp_path / "model", to=to)
    assert contents(tmp_path) == before


@both
def test_words_that_cannot_be_written_leave_all_as_it_was(tmp_path, to):
    save_weights(model(seed=1), tmp_path / "model", to=to)
    before = contents(tmp_path)
    words = Vocabulary(["two\nlines", *"abcdefg"])
    with pytest.raises(ModelError, match=r"vocab\.txt: the word 'two\\nlines'"):
        save_weights(lively(tiny(head=8), vocabulary=words), tmp_path / "model", to=to)
    assert contents(tmp_path) == before


@both
def test_when_the_new_model_cannot_take_its_place_the_old_one_comes_back(tmp_path, to, monkeypatch):
    save_weights(model(seed=1), tmp_path / "model", to=to)
    before = contents(tmp_path)
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if Path(target) == tmp_path / "model" and ".old." not in str(self):
            raise OSError("the disk is gone")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        save_weights(model(seed=2), tmp_path / "model", to=to)
    assert contents(tmp_path) == before


def test_an_array_of_another_shape_than_the_config_says_is_not_written(tmp_path):
    weights = model()
    wrong = Weights(config=weights.config, arrays={**weights.arrays, "forward.0.bias": np.zeros(3, dtype=np.float32)})
    with pytest.raises(ValueError, match=r"forward\.0\.bias: 12 bytes do not have the shape \(44,\)"):
        save_weights(wrong, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_names_the_known_ones(tmp_path):
    with pytest.raises(ModelError, match="cannot write the format 'onnx'\nhint: known are native, hdf5"):
        save_weights(model(), tmp_path / "model", to="onnx")


def test_the_folder_where_one_stands_can_be_filled(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    save_weights(model(), ".")
    assert load_weights(tmp_path / "model").config.head == 8
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    save_weights(model(seed=1), tmp_path / "version-1")
    (tmp_path / "current").symlink_to("version-1")
    save_weights(model(seed=2), tmp_path / "current")
    assert (tmp_path / "current").is_symlink()
    read = load_weights(tmp_path / "version-1").arrays["forward.0.bias"]
    np.testing.assert_array_equal(read, model(seed=2).arrays["forward.0.bias"])


def test_others_may_read_what_was_written_as_far_as_the_umask_lets_them(tmp_path):
    usual = os.umask(0o027)
    try:
        save_weights(model(), tmp_path / "model")
    finally:
        os.umask(usual)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o750
    assert all(file.stat().st_mode & 0o777 == 0o640 for file in (tmp_path / "model").iterdir())


def test_what_was_put_beside_a_model_is_not_lost_with_it(tmp_path):
    save_weights(lively(tiny()), tmp_path / "model")
    (tmp_path / "model/vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    with pytest.raises(ModelError, match=r"holds vocab\.txt, which the new model does not have"):
        save_weights(lively(tiny(), seed=2), tmp_path / "model")
    assert (tmp_path / "model/vocab.txt").is_file()
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_a_copy_is_stored_as_its_model_is_and_has_its_card(tmp_path):
    native.write(lively(tiny()), tmp_path / "one", storage="int8", card="# What it is good for\n")
    save_weights(load_weights(tmp_path / "one"), tmp_path / "copy")
    for file in ("model.safetensors", "README.md"):
        assert (tmp_path / "copy" / file).read_bytes() == (tmp_path / "one" / file).read_bytes()
    save_weights(load_weights(tmp_path / "one"), tmp_path / "wide", storage="float32")
    assert native.storage_of(load_weights(tmp_path / "wide")) == "float32"
    card = (tmp_path / "wide/README.md").read_text()  # a new one: the old may say how the numbers were stored
    assert "stored as float32" in card
    assert "What it is good for" not in card


def test_what_the_system_refuses_is_told_of_the_folder_that_was_asked_for(tmp_path, monkeypatch):
    def refused(aside, *_):
        raise PermissionError(13, "Permission denied", str(aside))

    (tmp_path / "model").mkdir()
    monkeypatch.setattr("pathlib.Path.mkdir", lambda path, *_, **how: None if how else refused(path))
    with pytest.raises(PermissionError) as caught:
        save_weights(lively(tiny()), tmp_path / "model")
    assert caught.value.filename == str(tmp_path / "model")
