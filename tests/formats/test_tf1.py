"""TensorFlow's checkpoints: the trainer's own file bit for bit, and files written here by the rules, under every kind of names."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from formats.strategies import vocabulary_of
from formats.tf_writer import slow_crc32c, variables_of, write_bundle
from models import FIXTURES, lively, needs_shared, tiny, words_only

from elmofire import Embedder, ModelError, Weights, load_weights, save_weights
from elmofire.formats.published.from_tensorflow.bundle import Bundle
from elmofire.formats.published.from_tensorflow.crc32c import crc32c
from elmofire.formats.published.options_2018 import options_of
from elmofire.formats.weights import LearnedMix

CHECKPOINT = FIXTURES / "tf_checkpoint"
SENTENCES = [["The", "cat", "sat", "."], ["Why", "?"]]


def train(folder: Path, weights: Weights, *, step: int = 300, shards: int = 1, **changed: np.ndarray) -> Path:
    """A folder as the trainer leaves it, with its accumulators and scalars; and its vocabulary."""
    variables = variables_of(weights)
    variables |= {f"{name}/Adagrad": np.full_like(array, 0.25) for name, array in variables.items()}
    scalars = {"global_step": np.float32(step), "train_perplexity": np.float32(12.5)}
    variables |= {name: np.asarray(value) for name, value in scalars.items()}
    write_bundle(folder / f"model.ckpt-{step}", {**variables, **changed}, shards=shards)
    options = options_of(weights.config)
    if "char_cnn" in options:
        options["char_cnn"]["n_characters"] = 261
    (folder / "options.json").write_text(json.dumps({**options, "n_train_tokens": 134, "dropout": 0.1}))
    if weights.vocabulary is not None:
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in weights.vocabulary.words))
    return folder


def assert_same_arrays(found: Weights, expected: Weights) -> None:
    assert set(found.arrays) == set(expected.arrays)
    for name, array in expected.arrays.items():
        assert found.arrays[name].dtype == np.float32
        assert np.ascontiguousarray(found.arrays[name]).tobytes() == np.ascontiguousarray(array).tobytes(), name


@needs_shared
class TestTheTrainersOwnFile:
    def test_every_variable_is_the_same_bit_for_bit(self):
        bundle = Bundle(CHECKPOINT / "model.ckpt-300")
        expected = {}

        def note(name, found):
            if isinstance(found, h5py.Dataset):
                kind, _, variable = name.partition("/")
                expected[variable if kind == "variable" else f"{variable}/Adagrad"] = found[()]

        with h5py.File(FIXTURES / "train_steps" / "start.hdf5") as file:
            file.visititems(note)
        assert set(bundle.names) == set(expected)
        assert len(expected) == 64
        for name, array in expected.items():
            stored = bundle.stored(name)
            assert (stored.dtype, stored.shape) == (array.dtype, array.shape), name
            assert stored.tobytes() == array.tobytes(), name

    def test_every_array_of_the_model_is_the_variable_that_the_rules_name(self):
        weights = load_weights(CHECKPOINT)
        variables = variables_of(weights)
        with h5py.File(FIXTURES / "train_steps" / "start.hdf5") as file:
            for name, array in variables.items():
                assert array.tobytes() == file[f"variable/{name}"][()].tobytes(), name
        assert len(variables) == 31
        assert weights.config.head == 32
        assert weights.config.encoder.activation == "tanh"
        assert weights.training == {"global_step": 300}

    @pytest.mark.parametrize("name", ["", "model.ckpt-300", "model.ckpt-300.index"])
    def test_a_folder_a_prefix_and_an_index_are_the_same_model(self, name):
        weights = load_weights(CHECKPOINT / name)
        assert_same_arrays(weights, load_weights(str(CHECKPOINT)))
        assert weights.source
        assert (weights.source.what, weights.source.format) == (str(CHECKPOINT / name), "tensorflow")
        assert {file.name for file in weights.source.files} == {
            "model.ckpt-300.index",
            "model.ckpt-300.data-00000-of-00001",
            "options.json",
        }


MODELS = {
    "two layers": tiny(),
    "three layers": tiny(layers=3),
    "one layer": tiny(layers=1),
    "whole words": words_only(9),
    "whole words, one layer, a head": words_only(9, layers=1, head=9),
    "one direction": tiny(directions=("forward",)),
    "one direction, one layer": tiny(directions=("forward",), layers=1, head=9),
    "no projections": tiny(encoder_width=15, encoder_projection=False, cells=15, projection=15, lstm_projection=False),
    "no highway, tanh, no clips": tiny(
        encoder_highways=0, encoder_activation="tanh", cell_clip=None, projection_clip=None, skip_connections=False
    ),
    "head": tiny(head=9),
}


class TestTraining:
    @pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
    def test_every_kind_of_model_is_read(self, tmp_path, config):
        weights = lively(config, vocabulary=vocabulary_of(config))
        found = load_weights(train(tmp_path / "run", weights))
        assert found.config == config
        assert_same_arrays(found, weights)
        assert found.training == {"global_step": 300}

    def test_the_vectors_are_those_of_the_same_model_in_hdf5(self, tmp_path):
        save_weights(lively(tiny()), tmp_path / "hdf5", to="hdf5")
        train(tmp_path / "run", lively(tiny()))
        for found, expected in zip(
            Embedder.load(tmp_path / "run").embed(SENTENCES, layers="all"),
            Embedder.load(tmp_path / "hdf5").embed(SENTENCES, layers="all"),
            strict=True,
        ):
            np.testing.assert_array_equal(found, expected)

    def test_variables_may_stand_in_several_files(self, tmp_path):
        weights = lively(tiny())
        found = load_weights(train(tmp_path / "run", weights, shards=3))
        assert_same_arrays(found, weights)
        assert found.source
        assert sum(".data-" in file.name for file in found.source.files) == 3

    @pytest.mark.parametrize("type", ["float16", "float64"])
    def test_other_floating_point_numbers_become_float32(self, tmp_path, type):
        weights = lively(tiny())
        table = weights.arrays["encoder.characters"].astype(type)
        found = load_weights(train(tmp_path / "run", weights, **{"lm/char_embed": table}))
        np.testing.assert_array_equal(found.arrays["encoder.characters"], table.astype(np.float32))

    @pytest.mark.parametrize("type", ["int64", "float32"])
    def test_the_step_may_be_of_either_type(self, tmp_path, type):
        step = np.asarray(7, dtype=type)
        assert load_weights(train(tmp_path / "run", lively(tiny()), global_step=step)).training == {"global_step": 7}

    def test_a_head_that_shares_the_table_of_words_is_that_table(self, tmp_path):
        weights = lively(words_only(9, head=9), vocabulary=vocabulary_of(words_only(9)))
        variables = variables_of(weights)
        del variables["lm/softmax/W"]
        train(tmp_path / "run", weights)
        write_bundle(tmp_path / "run" / "model.ckpt-300", variables)
        found = load_weights(tmp_path / "run").arrays
        np.testing.assert_array_equal(found["head.weight"], weights.arrays["encoder.words"])

    def test_what_does_not_fit_is_named_all_at_once(self, tmp_path):
        weights = lively(tiny())
        wrong = {
            "lm/CNN_proj/W_proj": np.ones((3, 3), dtype=np.float32),
            "lm/char_embed": np.ones((261, 5), dtype=np.int32),
        }
        folder = train(tmp_path / "run", weights, **wrong)
        options = json.loads((folder / "options.json").read_text())
        options["lstm"]["n_layers"] = 3
        (folder / "options.json").write_text(json.dumps(options))
        with pytest.raises(ModelError) as caught:
            load_weights(folder)
        cell = "lm/RNN_{}/rnn/multi_rnn_cell/cell_2/lstm_cell/{} is missing"
        for said in (
            f"{folder / 'options.json'} and model.ckpt-300.index: 8 problems",
            "model.ckpt-300.index: lm/CNN_proj/W_proj has the shape (3, 3), but should have (15, 6)",
            "model.ckpt-300.index: lm/char_embed holds no floating-point numbers, but int32",
            *[cell.format(d, part) for d in (0, 1) for part in ("kernel", "bias", "projection/kernel")],
        ):
            assert said in str(caught.value)

    def test_variables_that_have_no_place_in_the_model_are_named(self, tmp_path):
        folder = train(tmp_path / "run", lively(tiny(layers=3)))
        options = json.loads((folder / "options.json").read_text())
        options["lstm"]["n_layers"] = 2
        (folder / "options.json").write_text(json.dumps(options))
        with pytest.raises(ModelError, match=r"lm/RNN_1/rnn/multi_rnn_cell/cell_2/lstm_cell/bias has no place"):
            load_weights(folder)

    def test_options_are_needed_and_may_lie_elsewhere(self, tmp_path):
        folder = train(tmp_path / "run", lively(tiny()))
        (folder / "options.json").rename(tmp_path / "other.json")
        with pytest.raises(ModelError, match=r"options\.json is missing beside model\.ckpt-300\.index\nhint: "):
            load_weights(folder)
        assert load_weights(folder, options=tmp_path / "other.json").config == tiny()

    def test_whole_words_need_a_vocabulary(self, tmp_path):
        folder = train(tmp_path / "run", lively(words_only(9)))
        with pytest.raises(ModelError, match=r"vocab\.txt is missing"):
            load_weights(folder)

    def test_only_what_is_asked_for_is_checked_and_read(self, tmp_path):
        weights = lively(tiny())
        folder = train(tmp_path / "run", weights)
        data = folder / "model.ckpt-300.data-00000-of-00001"
        kernel = variables_of(weights)["lm/RNN_1/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel"].tobytes()
        whole = data.read_bytes()
        at = whole.index(kernel) + 17
        data.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = load_weights(folder)
        np.testing.assert_array_equal(found.arrays["backward.0.weight_ih"], weights.arrays["backward.0.weight_ih"])
        for part in ("weight_ih", "weight_hh"):
            with pytest.raises(
                ModelError, match=r"of-00001: lm/RNN_1/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel: .*checksum"
            ):
                found.arrays[f"backward.1.{part}"]

    def test_numbers_that_are_not_finite_are_named(self, tmp_path):
        weights = lively(tiny())
        weights.arrays["forward.1.bias"][3] = np.nan
        found = load_weights(train(tmp_path / "run", weights))
        with pytest.raises(ModelError, match=r"index: lm/RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/bias: holds values"):
            found.arrays["forward.1.bias"]

    def test_a_checkpoint_of_something_else_says_what_it_holds(self, tmp_path):
        write_bundle(tmp_path / "model.ckpt-1", {"dense/kernel": np.ones((2, 2), dtype=np.float32)})
        with pytest.raises(ModelError, match=r"model\.ckpt-1\.index: holds no ELMo, .*; it has dense/kernel"):
            load_weights(tmp_path)


class TestWhichCheckpoint:
    @pytest.fixture
    def run(self, tmp_path):
        for step in (100, 1000, 900):
            train(tmp_path / "run", lively(tiny(), seed=step), step=step)
        return tmp_path / "run"

    @pytest.mark.parametrize(
        "named",
        ["model.ckpt-900", "/home/somebody/elmo/model.ckpt-900", r"C:\\elmo\\model.ckpt-900", "../../model.ckpt-900"],
    )
    def test_the_latest_is_the_one_that_the_trainer_noted_wherever_the_folder_was_then(self, run, named):
        (run / "checkpoint").write_text(
            f'model_checkpoint_path: "{named}"\nall_model_checkpoint_paths: "model.ckpt-1000"\n'
        )
        assert load_weights(run).training == {"global_step": 900}

    @pytest.mark.parametrize(
        "note", [None, "", "model_checkpoint_path: nonsense", 'model_checkpoint_path: ".."', b"\xff\0\xfe" * 9]
    )
    def test_without_such_a_note_it_is_the_highest_step_and_that_is_said(self, run, note):
        if note is not None:
            (run / "checkpoint").write_bytes(note if isinstance(note, bytes) else note.encode())
        with pytest.warns(UserWarning, match=r"run: of 3 checkpoints, model\.ckpt-1000 is read"):
            assert load_weights(run).training == {"global_step": 1000}

    def test_the_only_one_needs_no_note(self, tmp_path):
        assert load_weights(train(tmp_path / "run", lively(tiny()), step=5)).training == {"global_step": 5}

    def test_a_note_never_leads_out_of_the_folder(self, tmp_path, run):
        shutil.copytree(run, tmp_path / "outside")
        for file in run.glob("model.ckpt-900*"):
            file.unlink()
        (run / "checkpoint").write_text(f'model_checkpoint_path: "{tmp_path}/outside/model.ckpt-900"\n')
        with pytest.warns(UserWarning, match=r"model\.ckpt-1000 is read"):
            assert load_weights(run).training == {"global_step": 1000}

    def test_another_files_index_is_no_checkpoint(self, tmp_path):
        save_weights(lively(tiny()), tmp_path / "model", to="hdf5")
        (tmp_path / "model" / "neighbors.index").write_bytes(b"something else")
        assert load_weights(tmp_path / "model").config == tiny()


def as_published(**changes):
    """What a TF-Hub module is taken to be, in a small size."""
    return tiny(encoder_max_characters=50, encoder_highways=2, **changes)


def hub(folder: Path, weights: Weights, *, scope: str = "", **changed: np.ndarray) -> Path:
    """A TF-Hub module's folder."""
    variables = variables_of(weights, "bilm")
    mix = {"weights": np.array([0.5, -0.25, 1.0], np.float32), "scaling": np.asarray(1.5, np.float32)}
    variables |= {f"aggregation/{name}": array for name, array in mix.items()}
    variables = {f"{scope}{name}": array for name, array in {**variables, **changed}.items() if array is not None}
    write_bundle(folder / "variables" / "variables", variables)
    (folder / "saved_model.pb").write_bytes(b"never looked at")
    return folder


class TestHub:
    @pytest.mark.parametrize("scope", ["", "module/"])
    @pytest.mark.parametrize("rows", [261, 262])
    def test_sizes_come_from_shapes_and_the_rest_is_said_to_be_assumed(self, tmp_path, rows, scope):
        weights = lively(as_published())
        table = weights.arrays["encoder.characters"]
        table = np.concatenate([np.zeros((rows - 261, 5), np.float32), table])
        folder = hub(tmp_path / "elmo", weights, scope=scope, **{"bilm/char_embed": table})
        with pytest.warns(UserWarning, match="relu, clips of 3, skip connections, tokens of 50 characters"):
            found = load_weights(folder)
        assert found.config == as_published()
        assert_same_arrays(found, weights)
        assert found.mixes == (LearnedMix(name=f"{scope}aggregation", weights=(0.5, -0.25, 1.0), gamma=1.5),)
        assert found.source
        assert found.source.format == "tf-hub"

    @pytest.mark.parametrize(
        "config", [as_published(layers=1), as_published(layers=3), as_published(cells=6, lstm_projection=False)]
    )
    def test_every_size_is_found(self, tmp_path, config):
        weights = lively(config)
        mix = np.zeros(config.layers + 1, np.float32)
        with pytest.warns(UserWarning, match="shapes alone"):
            found = load_weights(hub(tmp_path / "elmo", weights, **{"aggregation/weights": mix}))
        assert found.config == config
        assert_same_arrays(found, weights)

    @pytest.mark.parametrize("beside", [False, True])
    def test_options_win_over_what_is_assumed(self, tmp_path, beside):
        weights = lively(as_published())
        folder = hub(tmp_path / "elmo", weights)
        options = (folder if beside else tmp_path) / "options.json"
        options.write_text(
            json.dumps({"lstm": {"cell_clip": 5, "proj_clip": None}, "char_cnn": {"activation": "tanh"}})
        )
        with pytest.warns(UserWarning, match=r"what options\.json leaves open"):
            found = load_weights(folder, options=None if beside else options)
        encoder = replace(as_published().encoder, activation="tanh")
        assert found.config == replace(as_published(), cell_clip=5.0, projection_clip=None, encoder=encoder)

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"bilm/CNN/b_cnn_1": None}, "bilm/CNN/b_cnn_1 is missing"),
            ({"bilm/CNN/W_cnn_0": None}, "bilm/CNN/W_cnn_0 is missing"),
            (
                {"bilm/char_embed": np.ones(5, np.float32)},
                r"bilm/char_embed has the shape \(5,\), but should have 2 axes",
            ),
            ({"bilm/char_embed": np.ones((260, 5), np.float32)}, r"bilm/char_embed has the shape \(260, 5\), but"),
            (
                {"bilm/RNN_1/RNN/MultiRNNCell/Cell1/rnn/lstm_cell/kernel": None},
                "bilm/RNN_1/RNN/MultiRNNCell/Cell1/rnn/lstm_cell/kernel is missing",
            ),
            ({"other/bilm/char_embed": np.ones((261, 5), np.float32)}, "bilm/char_embed would be the same array"),
            ({"aggregation/weights": np.ones(4, np.float32)}, "aggregation/weights should have 3 numbers"),
            ({"aggregation/scaling": None}, "aggregation/scaling one"),
            ({"aggregation/scaling": np.asarray(np.nan, np.float32)}, "aggregation/scaling one"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    @pytest.mark.filterwarnings("ignore:.* a TF-Hub module gives its sizes")
    def test_what_is_wrong_is_named(self, tmp_path, changed, said):
        folder = hub(tmp_path / "elmo", lively(as_published()), **changed)
        with pytest.raises(ModelError, match=said):
            load_weights(folder)

    def test_a_row_of_numbers_before_the_bytes_is_refused(self, tmp_path):
        folder = hub(tmp_path / "elmo", lively(as_published()), **{"bilm/char_embed": np.ones((262, 5), np.float32)})
        with pytest.warns(UserWarning, match="shapes alone"):
            found = load_weights(folder)
        with pytest.raises(ModelError, match="has 262 rows, but the first is not one of zeros"):
            found.arrays["encoder.characters"]


# Around the sizes at which the message is folded in rows of 2 KB, and of 128 KB.
@pytest.mark.parametrize("size", [0, 1, 8, 4095, 4096, 4097, 6143, 262_143, 262_144, 262_151, 393_216 + 4099])
@pytest.mark.parametrize("start", [0, 1])
def test_the_checksum_is_that_of_the_slow_loop(size, start):
    data = np.random.default_rng(size).integers(0, 256, size + start, dtype=np.uint8)
    assert crc32c(data[start:]) == slow_crc32c(data[start:].tobytes())


@pytest.mark.parametrize(
    ("data", "expected"),
    [(bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_the_checksum_is_that_of_the_standard(data, expected):
    assert crc32c(np.frombuffer(data, dtype=np.uint8)) == expected  # RFC 3720, B.4
