"""Every option of 2018's `options.json`, wrong or missing: one error that names the file and the option, or what contradicts it."""

import json
from collections.abc import Iterator

import pytest
from hostile.breaking import CONFIGS, MISSING, edit_json, error_of, keys_of, load_all, write_model

NOT_SIZES = ["11", 11.5, 11.0, True, None, [11], {}, 0, -1, 2**31, 10**30, float("nan"), float("inf")]
NOT_CLIPS = ["3", True, [3], {}, 0, -3, float("nan"), float("inf"), float("-inf"), 10**400]
NOT_OBJECTS = [3, "x", True, None, []]
NOT_FLAGS = ["true", 1, 0, [], {}]
WRONG = {
    "lstm": NOT_OBJECTS,
    "lstm.dim": NOT_SIZES,
    "lstm.projection_dim": NOT_SIZES,
    "lstm.n_layers": [value for value in NOT_SIZES if value is not None] + [1001],
    "lstm.cell_clip": NOT_CLIPS,
    "lstm.proj_clip": NOT_CLIPS,
    "lstm.use_skip_connections": [*NOT_FLAGS, None],
    "bidirectional": NOT_FLAGS,
    "char_cnn": NOT_OBJECTS,
    "char_cnn.embedding": NOT_OBJECTS,
    "char_cnn.embedding.dim": NOT_SIZES,
    "char_cnn.activation": ["sigmoid", "ReLU", "", 1, None, ["relu"], {}],
    "char_cnn.filters": [
        *["x", 3, None, {}, [], [3], [[1]], [[1, 2, 3]], [["1", 3]], [[1, 0]], [[0, 3]], [[-1, 3]], [[1.5, 3]]],
        *[[[True, 3]], [[1, None]], [[14, 3]], [[1, 2**31]], [[1, 1]] * 1001],
    ],
    "char_cnn.n_highway": ["1", 1.5, True, [1], {}, -1, 1001, 10**30],
    "char_cnn.n_characters": [260, 263, "262", 262.0, True, None, []],
    "char_cnn.max_characters_per_token": [*NOT_SIZES, 2, 1001],
}
CONTRADICTED = {  # of the right type, but no model of these datasets: what is named instead
    "lstm.dim": (12, "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"),
    "lstm.projection_dim": (7, "CNN_proj/W_proj"),
    "lstm.n_layers": (1, "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"),
    "char_cnn.embedding.dim": (4, "char_embed"),
    "char_cnn.filters": ([[1, 3], [3, 5], [4, 7]], "CNN/W_cnn_1"),
    "char_cnn.n_highway": (2, "CNN_high_1/W_carry"),
}
CONTRADICTED_WHERE_MISSING = {
    "lstm.n_layers": "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/W_0",  # 1
    "char_cnn.n_highway": "CNN_high_0/W_carry",  # none
    "char_cnn": "embedding",  # a model that takes whole words
}
MAY_BE_MISSING = ("lstm.cell_clip", "lstm.proj_clip", "bidirectional")  # the last is training's: the datasets tell


def every_wrong_option() -> Iterator:
    for key, values in WRONG.items():
        for value in values:
            yield pytest.param(key, value, id=f"{key}={json.dumps(value)[:24]}")


def test_every_option_that_is_written_is_broken_here(tmp_path):
    written = set(keys_of(json.loads((write_model(tmp_path, "hdf5") / "options.json").read_text())))
    assert written == set(WRONG)


@pytest.mark.parametrize(("key", "value"), list(every_wrong_option()))
def test_a_wrong_option_is_named_with_its_file(tmp_path, key, value):
    folder = write_model(tmp_path, "hdf5")
    edit_json(folder / "options.json", key, value)
    said = error_of(folder)
    assert "options.json" in said
    assert key in said
    assert len(said) < 1000


@pytest.mark.parametrize("key", CONTRADICTED)
def test_an_option_that_the_datasets_contradict_names_both_files_and_the_dataset(tmp_path, key):
    folder = write_model(tmp_path, "hdf5")
    value, named = CONTRADICTED[key]
    edit_json(folder / "options.json", key, value)
    said = error_of(folder)
    assert "options.json and weights.hdf5" in said
    assert named in said


@pytest.mark.parametrize("key", WRONG)
def test_a_missing_option_is_named_or_has_the_default_of_2018(tmp_path, key):
    folder = write_model(tmp_path, "hdf5")
    edit_json(folder / "options.json", key, MISSING)
    if key in MAY_BE_MISSING:
        config = load_all(folder).config
        assert config.directions == ("forward", "backward")
        assert key == "bidirectional" or {config.cell_clip, config.projection_clip} == {None, 3.0}
        return
    said = error_of(folder)
    assert "options.json" in said
    assert CONTRADICTED_WHERE_MISSING.get(key, f"{key} is missing") in said


@pytest.mark.parametrize("key", ["lstm.dim", "lstm.projection_dim", "lstm.n_layers", "lstm.use_skip_connections"])
def test_models_of_whole_words_are_checked_in_the_same_way(tmp_path, key):
    folder = write_model(tmp_path, "hdf5", "words")
    edit_json(folder / "options.json", key, -1)
    assert f"options.json: {key} is -1" in error_of(folder)


def test_options_of_whole_words_beside_a_character_model_name_both_tables(tmp_path):
    folder = write_model(tmp_path, "hdf5")
    (folder / "options.json").write_text(
        (write_model(tmp_path / "other", "hdf5", "words") / "options.json").read_text()
    )
    said = error_of(folder)
    assert "weights.hdf5: embedding is missing" in said
    assert "weights.hdf5: char_embed has no place" in said


def test_all_wrong_options_are_named_in_one_error(tmp_path):
    folder = write_model(tmp_path, "hdf5")
    leaves = [key for key in WRONG if key not in ("lstm", "char_cnn", "char_cnn.embedding")]
    for key in leaves:
        edit_json(folder / "options.json", key, "wrong")
    said = error_of(folder)
    assert f"options.json: {len(leaves)} problems" in said
    for key in leaves:
        assert f"{key} is 'wrong'" in said


def test_keys_of_the_trainer_are_ignored(tmp_path):
    folder = write_model(tmp_path, "hdf5")
    for key, value in {"dropout": 0.1, "n_tokens_vocab": 793471, "unroll_steps": 20, "all_clip_norm_val": 10.0}.items():
        edit_json(folder / "options.json", key, value)
    assert load_all(folder).config == CONFIGS["characters"]


def test_a_filter_wider_than_a_token_names_both_options(tmp_path):
    folder = write_model(tmp_path, "hdf5")
    edit_json(folder / "options.json", "char_cnn.max_characters_per_token", 3)
    said = error_of(folder)
    assert "char_cnn.filters" in said
    assert "char_cnn.max_characters_per_token" in said
