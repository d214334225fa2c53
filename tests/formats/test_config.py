"""Configs are plain data: they compare, save as JSON and come back, and say what is wrong with them."""

import json
from dataclasses import FrozenInstanceError, asdict

import pytest
from formats.strategies import configs
from hypothesis import given, settings
from hypothesis import strategies as st
from models import tiny

from elmofire import RecipeError
from elmofire.formats.config import BilmConfig, EncoderConfig, small, tensor_shapes
from elmofire.recipe import build, shown


@settings(deadline=None)
@given(configs())
def test_a_config_comes_back_from_json(config):
    assert build(BilmConfig, json.loads(json.dumps(asdict(config)))) == config


@settings(deadline=None)
@given(configs())
def test_a_model_has_as_many_parameters_as_its_arrays_have_numbers(config):
    count = 0
    for name, shape in tensor_shapes(config).items():
        size = 1
        for side in shape:
            size *= side
        count += 0 if name.startswith("head.") else size
    assert config.parameters == count


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        pytest.param(small(), 13_593_296, id="small"),
        pytest.param(
            BilmConfig(encoder=EncoderConfig(width=256, highways=1), cells=2048, projection=256),
            28_027_728,
            id="medium",
        ),
        pytest.param(BilmConfig(), 93_600_848, id="original"),
    ],
)
def test_published_sizes_have_the_published_numbers_of_parameters(config, parameters):
    assert config.parameters == parameters


def test_widths_of_layers_are_those_of_both_directions():
    config = tiny(encoder_width=7, layers=3)
    assert (config.width, config.layer_widths) == (12, (14, 12, 12, 12))
    assert tiny(directions=("backward",)).layer_widths == (6, 6, 6)


def test_a_config_does_not_change():
    with pytest.raises(FrozenInstanceError):
        tiny().layers = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layers": 0}, "layers is 0, but should be at least 1"),
        ({"layers": 1001}, "layers is 1001, but should be at most 1000"),
        ({"cells": 0}, "cells is 0"),
        ({"projection": -1}, "projection is -1"),
        ({"head": -1}, "head is -1"),
        ({"cell_clip": 0.0}, "cell_clip is 0"),
        ({"projection_clip": float("inf")}, "projection_clip is inf"),
        ({"cell_clip": float("nan")}, "cell_clip is nan"),
        ({"forget_bias": float("nan")}, "forget_bias is nan"),
        ({"directions": ("backward", "forward")}, "directions"),
        ({"lstm_projection": False}, "lstm_projection is off"),
        ({"encoder_width": 0}, "width is 0"),
        ({"encoder_filters": ()}, "filters"),
        ({"encoder_words": 5}, "words"),
        ({"encoder_filters": ((14, 1),)}, "filters hold one of 14 characters, but max_characters is 13"),
        ({"encoder_filters": ((1, 0),)}, "filters hold [1, 0]"),
        ({"encoder_filters": ((1, 1),) * 1001}, "the number of filters is 1001"),
        ({"encoder_max_characters": 2}, "max_characters is 2"),
        ({"encoder_max_characters": 1001}, "max_characters is 1001"),
        ({"encoder_highways": -1}, "highways is -1"),
        ({"encoder_highway": "gated"}, "highway is 'gated', but should be 'tied', 'mlp' or 'learned'"),
        ({"encoder_one_hot": True}, "one_hot is on, so character_dim should be the 261 characters, not 5"),
        (
            {"encoder_one_hot": True, "encoder_characters": 10_001, "encoder_alphabet": "code points"},
            "characters is 10001, but should be at most 10000",
        ),
        ({"encoder_activation": "sigmoid"}, "activation is 'sigmoid'"),
        ({"encoder_projection": False}, "projection is off, so width should be the 15 features, not 6"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_a_wrong_value_is_named(changes, named):
    with pytest.raises(RecipeError) as caught:
        tiny(**changes)
    assert named in str(caught.value)


def test_all_wrong_values_of_a_table_are_named():
    with pytest.raises(RecipeError) as caught:
        tiny(layers=0, cells=0, cell_clip=-1.0, directions=())
    for name in ("layers", "cells", "cell_clip", "directions"):
        assert name in str(caught.value)


class TestBuild:
    def test_unknown_missing_and_wrong_keys_are_named_at_once_with_their_tables(self):
        with pytest.raises(RecipeError) as caught:
            build(BilmConfig, {"cell": 3, "layers": "2", "encoder": {"width": 1.5, "higways": 1}}, where="x.toml")
        said = str(caught.value)
        assert said.startswith("x.toml: ")
        assert "unknown key `cell`, did you mean `cells`?" in said
        assert "`layers` is '2', but should be of type int" in said
        assert "`encoder.width` is 1.5, but should be of type int" in said
        assert "unknown key `encoder.higways`, did you mean `highways`?" in said

    def test_wrong_values_of_an_inner_table_name_the_table(self):
        with pytest.raises(RecipeError, match="`encoder`: width is 0"):
            build(BilmConfig, {"encoder": {"width": 0}})

    def test_whole_numbers_serve_as_floats_but_not_the_other_way_round(self):
        assert build(BilmConfig, {"cell_clip": 5, "projection_clip": None}).cell_clip == 5.0
        with pytest.raises(RecipeError, match=r"`layers` is 2\.0"):
            build(BilmConfig, {"layers": 2.0})

    def test_of_a_list_the_first_wrong_item_is_named(self):
        with pytest.raises(RecipeError) as caught:
            build(EncoderConfig, {"filters": [[1, 2], [3, "4"], [5, "6"]]})
        assert str(caught.value) == "`filters[1][1]` is '4', but should be of type int"

    @settings(deadline=None)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
    )
    def test_whatever_stands_in_a_table_there_is_a_config_or_a_recipe_error(self, value):
        for key in ("layers", "cell_clip", "directions", "encoder", "skip_connections"):
            try:
                build(BilmConfig, {key: value})
            except RecipeError as error:
                said = str(error)
            else:
                said = key
            assert key in said


@settings(deadline=None)
@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner, max_size=30), max_leaves=40))
def test_what_is_shown_of_a_value_is_short(value):
    assert len(shown(value)) <= 100


def test_what_is_shown_of_a_small_value_is_the_value():
    assert shown([[1, 32], [2, 64]]) == "[[1, 32], [2, 64]]"
    assert shown({"a": None}) == "{'a': None}"
