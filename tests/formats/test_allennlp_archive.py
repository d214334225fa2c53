"""AllenNLP's task archives: the ELMo inside is the one that the task was trained on, and its mixes come along."""

import io
import json
import tarfile
import warnings

import numpy as np
import pytest
from formats.torch_writers import OPTIONS, PREFIX, allennlp_arrays, drawn, saved, write_tar
from models import ENGINES, FIXTURES, embedder_on, needs_shared

from elmofire import ModelError, load_weights, save_weights
from elmofire.formats.config import FORWARD

ARCHIVE = FIXTURES / "allennlp_tagger_archive" / "model.tar.gz"
SENTENCES = [["The", "cat", "sat", "."], ["Why", "?"], ["日本語", "x" * 60]]
TASK = drawn({"encoder._module.weight_ih_l0": (7, 12), "tag_projection_layer._module.bias": (4,)}, 9)
NO_OPTIONS = r"no options file, so relu, clips of 3, skip connections and 50 characters are taken for granted"


@pytest.fixture
def options_file(tmp_path):
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    return tmp_path / "options.json"


def write_weights(tmp_path, *arrays, legacy=False):
    file = tmp_path / "weights.th"
    file.write_bytes(saved({name: array for each in arrays for name, array in each.items()}, legacy=legacy))
    return file


@needs_shared
class TestPublishedArchive:
    def test_every_parameter_is_that_of_the_hdf5_file_with_the_forget_bias_inside(self):
        with pytest.warns(UserWarning, match=NO_OPTIONS):
            found = load_weights(ARCHIVE)
        expected = load_weights(FIXTURES / "allennlp")
        assert list(found.arrays) == list(expected.arrays)
        for name, array in expected.arrays.items():
            array = np.array(array)
            if name.startswith(("forward", "backward")) and name.endswith("bias"):
                array[64:128] += 1  # of the gates i, f, g, o with 64 cells each
            np.testing.assert_array_equal(found.arrays[name], array)
        assert (found.config.forget_bias, expected.config.forget_bias) == (0.0, 1.0)

    def test_a_folder_stands_for_the_only_archive_in_it(self, tmp_path):
        for name in ("model.tar.gz", "best.th", "config.json", "metrics.json"):  # as AllenNLP's training leaves them
            (tmp_path / name).write_bytes(ARCHIVE.read_bytes() if name == "model.tar.gz" else b"{}")
        with pytest.warns(UserWarning, match=NO_OPTIONS):
            assert load_weights(tmp_path).source.what == str(tmp_path / "model.tar.gz")
        (tmp_path / "other.tgz").touch()
        with pytest.raises(ModelError, match=r"model\.tar\.gz, other\.tgz\nhint: name the one you mean"):
            load_weights(tmp_path)

    def test_with_its_options_nothing_is_taken_for_granted(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            given = load_weights(ARCHIVE, options=FIXTURES / "allennlp" / "options.json")
        with pytest.warns(UserWarning, match=NO_OPTIONS):
            assert load_weights(ARCHIVE).config == given.config

    @pytest.mark.parametrize("engine", ENGINES)
    def test_its_vectors_are_those_of_the_hdf5_file(self, engine):
        weights = load_weights(ARCHIVE, options=FIXTURES / "allennlp" / "options.json")
        found = embedder_on(engine, weights).embed(SENTENCES, "all")
        expected = embedder_on(engine, load_weights(FIXTURES / "allennlp")).embed(SENTENCES, "all")
        for one, other in zip(found, expected, strict=True):
            assert np.all(np.abs(one - other) <= 2e-6 + 1e-5 * np.abs(other))

    def test_its_mix_is_what_torch_finds_there(self):
        import torch

        with tarfile.open(ARCHIVE) as archive:
            state = torch.load(io.BytesIO(archive.extractfile("weights.th").read()), weights_only=True)
        weights = load_weights(ARCHIVE, options=FIXTURES / "allennlp" / "options.json")
        (mix,) = weights.mixes
        assert mix.name == f"{PREFIX}scalar_mix_0"
        assert mix.gamma == float(state[f"{mix.name}.gamma"])
        assert mix.weights == tuple(float(state[f"{mix.name}.scalar_parameters.{k}"]) for k in range(3))

    def test_saved_as_native_it_gives_the_same_vectors_and_mix(self, tmp_path):
        weights = load_weights(ARCHIVE, options=FIXTURES / "allennlp" / "options.json")
        save_weights(weights, tmp_path / "native")
        again = load_weights(tmp_path / "native")
        assert again.mixes == weights.mixes
        for one, other in zip(
            *[embedder_on("numpy", each).embed(SENTENCES, "all") for each in (weights, again)], strict=True
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("prefix", ["", "_elmo.", PREFIX, "model.reader.deep.er."])
def test_an_elmo_under_any_prefix_is_found(tmp_path, options_file, prefix, legacy):
    file = write_weights(tmp_path, TASK, allennlp_arrays(prefix), legacy=legacy)
    weights = load_weights(file, options=options_file)
    arrays = allennlp_arrays(prefix)
    inner = f"{prefix}_elmo_lstm."
    both = arrays[f"{inner}_token_embedder._highways._layers.0.weight"]
    np.testing.assert_array_equal(weights.arrays["encoder.highways.0.transform.weight"], both[:15])
    np.testing.assert_array_equal(weights.arrays["encoder.highways.0.gate.weight"], -both[15:])
    np.testing.assert_array_equal(
        weights.arrays["encoder.characters"], arrays[f"{inner}_token_embedder._char_embedding_weights"][1:]
    )
    np.testing.assert_array_equal(
        weights.arrays["backward.1.weight_hh"], arrays[f"{inner}_elmo_lstm.backward_layer_1.state_linearity.weight"]
    )
    assert [mix.name for mix in weights.mixes] == [f"{prefix}scalar_mix_0"]


class TestOptions:
    def test_options_in_an_old_archive_are_used(self, tmp_path):
        options = json.loads(json.dumps(OPTIONS))
        options["lstm"] |= {"cell_clip": 2, "proj_clip": None}
        options["char_cnn"]["activation"] = "tanh"
        members = {
            "config.json": b"{}",
            "weights.th": saved(allennlp_arrays()),
            "files_to_archive.json": b"{}",
            "fta/model.text_field_embedder.token_embedders.elmo.options_file": json.dumps(options).encode(),
            "fta/model.text_field_embedder.token_embedders.elmo.weight_file": b"not looked at",
        }
        config = load_weights(write_tar(tmp_path / "model.tar.gz", members)).config
        assert (config.cell_clip, config.projection_clip, config.encoder.activation) == (2.0, None, "tanh")
        assert config.forget_bias == 0.0

    def test_options_that_are_given_win(self, tmp_path, options_file):
        members = {"weights.th": saved(allennlp_arrays()), "fta/a.options_file": b"{}"}
        file = write_tar(tmp_path / "model.tar.gz", members)
        assert load_weights(file, options=options_file).config.cell_clip == 3.0
        with pytest.raises(ModelError, match=r"fta/a.options_file: (?s:.)*lstm is missing"):
            load_weights(file)

    def test_two_different_options_files_are_an_error_that_lists_them(self, tmp_path):
        members = {"weights.th": saved(allennlp_arrays()), "fta/a.options_file": b"{}", "fta/b.options_file": b"{ }"}
        with pytest.raises(ModelError, match=r"several options files: fta/a.options_file, fta/b.options_file"):
            load_weights(write_tar(tmp_path / "model.tar.gz", members))

    def test_options_of_another_model_are_an_error_that_names_all(self, tmp_path, options_file):
        options = json.loads(json.dumps(OPTIONS))
        options["lstm"] |= {"dim": 12, "n_layers": 1}
        options_file.write_text(json.dumps(options))
        with pytest.raises(ModelError) as caught:
            load_weights(write_weights(tmp_path, allennlp_arrays()), options=options_file)
        assert "forward_layer_0.state_projection.weight has the shape (6, 11), but should have (6, 12)" in str(
            caught.value
        )
        assert "backward_layer_1.input_linearity.weight has no place" in str(caught.value)

    def test_options_without_characters_are_an_error(self, tmp_path, options_file):
        options_file.write_text(json.dumps({"lstm": OPTIONS["lstm"]}))
        with pytest.raises(ModelError, match="char_cnn is missing"):
            load_weights(write_weights(tmp_path, allennlp_arrays()), options=options_file)


class TestSeveralElmos:
    def test_equal_ones_are_one_with_all_mixes(self, tmp_path, options_file):
        file = write_weights(tmp_path, allennlp_arrays("a."), allennlp_arrays("b."))
        weights = load_weights(file, options=options_file)
        assert [mix.name for mix in weights.mixes] == ["a.scalar_mix_0", "b.scalar_mix_0"]

    def test_of_different_ones_the_first_is_read_and_the_others_are_named(self, tmp_path, options_file):
        file = write_weights(tmp_path, allennlp_arrays("a."), allennlp_arrays("b.", seed=1))
        with pytest.warns(UserWarning, match=r"the ELMo at a\. is read; another one is at b\."):
            weights = load_weights(file, options=options_file)
        assert [mix.name for mix in weights.mixes] == ["a.scalar_mix_0"]
        expected = allennlp_arrays("a.")["a._elmo_lstm._token_embedder._projection.bias"]
        np.testing.assert_array_equal(weights.arrays["encoder.projection.bias"], expected)


def test_two_mixes_of_one_elmo_both_come_along(tmp_path, options_file):
    arrays = allennlp_arrays()
    arrays |= {name.replace("mix_0", "mix_1"): 2 * array for name, array in arrays.items() if "scalar_mix_0" in name}
    one, two = load_weights(write_weights(tmp_path, arrays), options=options_file).mixes
    assert two.name == f"{PREFIX}scalar_mix_1"
    assert two.gamma == 2 * one.gamma
    assert two.weights == tuple(2 * weight for weight in one.weights)


def test_the_cached_vectors_of_a_vocabulary_are_ignored(tmp_path, options_file):
    arrays = allennlp_arrays() | drawn({f"{PREFIX}_elmo_lstm._word_embedding.weight": (9, 6)})
    assert load_weights(write_weights(tmp_path, arrays), options=options_file).config.directions[0] == FORWARD


def test_a_row_for_no_token_that_is_not_zero_is_an_error(tmp_path, options_file):
    arrays = allennlp_arrays()
    arrays[f"{PREFIX}_elmo_lstm._token_embedder._char_embedding_weights"][0, 2] = 0.5
    with pytest.raises(ModelError, match="should have zeros in its first row"):
        load_weights(write_weights(tmp_path, arrays), options=options_file)


def test_a_file_without_an_elmo_says_so(tmp_path):
    with pytest.raises(ModelError, match=r"weights.th: holds no ELMo"):
        load_weights(write_weights(tmp_path, TASK))


def test_an_archive_may_be_called_tgz_and_name_its_members_from_the_folder(tmp_path, options_file):
    file = write_tar(tmp_path / "model.tgz", {"./config.json": b"{}", "./weights.th": saved(allennlp_arrays())})
    assert load_weights(file, options=options_file).config.cells == 11
