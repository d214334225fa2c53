"""Every key of the native `config.json`, wrong, missing or unknown: one error that names the file and the key."""

import json
from collections.abc import Iterator

import pytest
from hostile.breaking import MISSING, edit_json, error_of, keys_of, load_all, write_model

from elmofire import Embedder

NOT_SIZES = ["6", 6.5, 6.0, True, None, [6], {}, -1, 10**30, float("nan")]
NOT_CLIPS = ["3", True, [3], {}, 0, -3, float("nan"), float("inf"), float("-inf"), 10**400]
NOT_FLAGS = ["true", 1, None, [], {}]
NOT_OBJECTS = [3, "x", True, None, []]
WRONG = {
    "model_type": ["bert", "", 3, None, []],
    "format": [0, -1, 2, 10**30, "1", 1.0, True, None, []],
    "model": NOT_OBJECTS,
    "model.encoder": NOT_OBJECTS,
    "model.encoder.width": [*NOT_SIZES, 0],
    "model.encoder.filters": [
        *["x", 3, None, {}, [], [3], [[1]], [[1, 2, 3]], [["1", 3]], [[1, 0]], [[0, 3]], [[-1, 3]], [[1.5, 3]]],
        *[[[True, 3]], [[1, None]], [[14, 3]], [[1, 10**30]], [[1, 1]] * 1001],
    ],
    "model.encoder.alphabet": ["byte", "", 3, None, ["bytes"]],
    "model.encoder.characters": [*NOT_SIZES, 0, 262],
    "model.encoder.character_dim": [*NOT_SIZES, 0],
    "model.encoder.max_characters": [*NOT_SIZES, 2, 1001, 2**31],
    "model.encoder.activation": ["sigmoid", "ReLU", "", 1, None, ["relu"], {}],
    "model.encoder.highways": [*NOT_SIZES, 1001],
    "model.encoder.projection": [*NOT_FLAGS, False],
    "model.encoder.words": [*NOT_SIZES, 9],
    "model.encoder.word_dim": [*NOT_SIZES, 6],
    "model.directions": ["forward", [], ["backward", "forward"], ["forward", "forward"], ["up"], [1], None, {}],
    "model.layers": [*NOT_SIZES, 0, 1001],
    "model.cells": [*NOT_SIZES, 0],
    "model.projection": [*NOT_SIZES, 0],
    "model.lstm_projection": [*NOT_FLAGS, False],
    "model.cell_clip": NOT_CLIPS,
    "model.projection_clip": NOT_CLIPS,
    "model.skip_connections": NOT_FLAGS,
    "model.forget_bias": ["1", True, None, [], float("nan"), float("inf"), 10**400],
    "model.head": NOT_SIZES,
    "tokenizer": NOT_OBJECTS,
    "tokenizer.name": ["pen", "", 3, None, []],
    "tokenizer.language": [3, None, []],
    "tokenizer.version": [0, -1, 99, "1", 1.0, True, None],
    "training": [3, "x", True, None, []],
    "mixes": [3, "x", True, None, {}, [3], [{"name": "m"}], [{"name": "m", "weights": ["0"], "gamma": 1}]],
}
LATER = {  # keys that are written only where they say something new
    "model.encoder.highway": ["gated", "Tied", "", 1, None, ["tied"], {}],
    "model.encoder.one_hot": [*NOT_FLAGS, True],
}
CONTRADICTED = {  # of the right type, but no model of these tensors: one that is named instead
    "model.encoder.width": (7, "encoder.projection.weight"),
    "model.encoder.filters": ([[1, 3], [3, 5], [4, 7]], "encoder.convolutions.1.weight"),
    "model.encoder.character_dim": (4, "encoder.characters"),
    "model.encoder.highways": (0, "encoder.highways.0.gate.weight"),
    "model.encoder.highway": ("mlp", "encoder.highways.0.gate.weight"),
    "model.directions": (["forward"], "backward.0.weight_ih"),
    "model.layers": (3, "forward.2.weight_ih"),
    "model.cells": (12, "forward.0.weight_hr"),
    "model.projection": (5, "forward.0.weight_hh"),
    "model.head": (0, "head.weight"),
}


def every_wrong_value() -> Iterator:
    for key, values in {**WRONG, **LATER}.items():
        for value in values:
            yield pytest.param(key, value, id=f"{key}={json.dumps(value)[:24]}")


def test_every_key_that_is_written_is_broken_here(tmp_path):
    written = set(keys_of(json.loads((write_model(tmp_path, "native") / "config.json").read_text())))
    assert written == set(WRONG)


@pytest.mark.parametrize(("key", "value"), list(every_wrong_value()))
def test_a_wrong_value_is_named_with_its_file(tmp_path, key, value):
    folder = write_model(tmp_path, "native")
    edit_json(folder / "config.json", key, value)
    said = error_of(folder)
    assert "config.json: " in said
    named = "tokenizer" if key == "tokenizer.name" else key.rsplit(".", 1)[-1]
    assert named in said.removeprefix(str(folder))
    assert len(said) < 1000


@pytest.mark.parametrize("key", CONTRADICTED)
def test_a_value_that_the_tensors_contradict_names_both_files_and_the_tensor(tmp_path, key):
    folder = write_model(tmp_path, "native")
    value, named = CONTRADICTED[key]
    edit_json(folder / "config.json", key, value)
    said = error_of(folder)
    assert "config.json and model.safetensors: " in said
    assert f"{named} " in said


def test_carry_gates_that_are_not_there_are_named(tmp_path):
    folder = write_model(tmp_path, "native")
    edit_json(folder / "config.json", "model.encoder.highway", "learned")
    assert "encoder.highways.0.carry.weight is missing" in error_of(folder)


@pytest.mark.parametrize("key", [key for key in WRONG if key not in ("training", "mixes")])
def test_a_missing_key_is_named_with_its_file(tmp_path, key):
    folder = write_model(tmp_path, "native")
    edit_json(folder / "config.json", key, MISSING)
    said = error_of(folder)
    assert "config.json: " in said
    assert f"`{key}` is missing" in said or f"{key} is None" in said


def test_what_training_was_may_be_missing(tmp_path):
    folder = write_model(tmp_path, "native")
    edit_json(folder / "config.json", "training", MISSING)
    edit_json(folder / "config.json", "mixes", MISSING)
    assert (load_all(folder).training, load_all(folder).mixes) == ({}, ())


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("tokenzier", "tokenizer"),
        ("model.cell", "cells"),
        ("model.encoder.higways", "highways"),
        ("model.encoder.filter", "filters"),
        ("tokenizer.lang", "language"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(tmp_path, key, near):
    folder = write_model(tmp_path, "native")
    edit_json(folder / "config.json", key, 1)
    assert f"config.json: unknown key `{key}`, did you mean `{near}`?" in error_of(folder)


def test_an_unknown_key_that_is_like_no_other_suggests_nothing(tmp_path):
    folder = write_model(tmp_path, "native")
    edit_json(folder / "config.json", "model.quux", 1)
    assert error_of(folder).endswith("unknown key `model.quux`")


def test_a_key_made_to_look_like_an_error_stays_on_its_line(tmp_path):
    folder = write_model(tmp_path, "native")
    edit_json(folder / "config.json", "model.cells\nerror: all is lost\x1b[31m", 1)
    said = error_of(folder)
    assert "unknown key `model.cells\\nerror: all is lost\\x1b[31m`" in said
    assert "\n" not in said


def test_a_newer_format_says_so_before_anything_else(tmp_path):
    folder = write_model(tmp_path, "native")
    edit_json(folder / "config.json", "model", {"something": "else"})
    edit_json(folder / "config.json", "format", 2)
    said = error_of(folder)
    assert "config.json: format 2 is newer than 1" in said
    assert "upgrade" in said


def test_all_wrong_keys_are_named_in_one_error(tmp_path):
    folder = write_model(tmp_path, "native")
    wrong = ["model.layers", "model.cells", "model.encoder.width", "model.encoder.activation", "tokenizer.name"]
    for key in wrong:
        edit_json(folder / "config.json", key, None)
    edit_json(folder / "config.json", "model.encoder.higways", 1)
    edit_json(folder / "config.json", "tokenizer.version", MISSING)
    said = error_of(folder)
    for key in wrong:
        assert f"`{key}` is None" in said
    assert "`model.encoder.higways`" in said
    assert "`tokenizer.version` is missing" in said


@pytest.mark.parametrize("table", ["", "model.", "model.encoder.", "tokenizer."], ids=lambda table: table or "top")
def test_a_flood_of_unknown_keys_is_cut_short(tmp_path, table):
    folder = write_model(tmp_path, "native")
    config = json.loads((folder / "config.json").read_text())
    inner = config
    for part in table.split(".")[:-1]:
        inner = inner[part]
    inner |= {f"unknown {number} {'x' * 200}": number for number in range(20_000)}
    (folder / "config.json").write_text(json.dumps(config))
    said = error_of(folder)
    assert "more unknown keys" in said
    assert len(said) < 5000


def test_a_tokenizer_whose_package_is_missing_is_no_mistake_of_the_model(tmp_path, monkeypatch):
    folder = write_model(tmp_path, "native")
    edit_json(folder / "config.json", "tokenizer.name", "icu")
    monkeypatch.setitem(__import__("sys").modules, "icu4py.breakers", None)
    assert Embedder.load(folder).embed([["the", "cat"]])[0].shape == (2, 12)
