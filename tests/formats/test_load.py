"""What a name, a folder or a pair of files holds is found out, not asked; what it does not hold is said."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
from formats.strategies import vocabulary_of
from models import FIXTURES, lively, needs_shared, tiny, words_only

from elmofire import Embedder, InputError, ModelError, Weights, embed_to_file, load_weights, save_weights
from elmofire.formats import names
from elmofire.formats.config import BilmConfig, small
from elmofire.text.tokenizers import TokenizerInfo


def save(folder, to: str, config: BilmConfig | None = None) -> Weights:
    weights = lively(config or tiny(), vocabulary=vocabulary_of(config or tiny()))
    save_weights(weights, folder, to=to)
    return weights


class TestNames:
    def test_random_small_is_seeded_and_of_the_published_size(self):
        first, second = load_weights("random-small"), load_weights("random-small")
        assert first.config == small()
        for name in ("encoder.characters", "backward.1.weight_hr"):
            np.testing.assert_array_equal(first.arrays[name], second.arrays[name])
        assert "never trained" in first.training["note"]

    def test_the_order_of_asking_changes_no_array(self):
        first, second = load_weights("random-small").arrays, load_weights("random-small").arrays
        assert np.array_equal(first["forward.0.bias"], second["forward.0.bias"])
        expected = first["forward.1.weight_ih"]
        second["backward.0.weight_hh"]
        np.testing.assert_array_equal(second["forward.1.weight_ih"], expected)

    def test_an_unknown_name_suggests_the_nearest_and_says_what_can_be_named(self):
        with pytest.raises(ModelError) as caught:
            load_weights("random-smal")
        assert "random-smal: no such file or folder, and no model of that name; did you mean random-small?" in str(
            caught.value
        )
        assert "hint: name a folder with a model, an options and a weight file, or one of: " in str(caught.value)

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            ("EN-SMALL", "; did you mean en-small?"),
            ("en-smal", "; did you mean en-small?"),
            ("AllenAI/Small", "; did you mean allenai/small?"),
            ("google", "; models of google: google/elmo-3"),
            ("allenai/", "; models of allenai: allenai/small, allenai/medium, allenai/original, "),
            ("nothing-like-it-at-all", ""),
        ],
    )
    def test_what_may_be_meant_is_said(self, monkeypatch, what, said):
        monkeypatch.setattr(names, "packaged_models", lambda: ["en-small"])
        assert str(names.unknown_model(what)).partition("\n")[0].partition("of that name")[2].startswith(said)
        assert bool(said) == (";" in str(names.unknown_model(what)).partition("\n")[0])

    def test_without_the_default_model_the_error_says_how_to_name_one(self, monkeypatch):
        monkeypatch.setattr(names, "packaged_models", list)
        with pytest.raises(ModelError) as caught:
            load_weights()
        assert "the default model en-small is not in this package" in str(caught.value)
        assert "name a folder with a model, an options and a weight file, or one of: random-small" in str(caught.value)

    def test_a_name_of_the_package_is_not_taken_for_what_is_called_so_here(self, tmp_path, monkeypatch):
        monkeypatch.setattr(names, "_PACKAGED", tmp_path / "package")
        save(tmp_path / "package/en-small", "native")
        monkeypatch.chdir(tmp_path)
        other = save(tmp_path / "en-small", "native", tiny(head=7))
        with pytest.warns(
            UserWarning, match=r"en-small is the model in the package; what is called so here is \./en-small"
        ):
            assert load_weights("en-small").config == tiny()
        assert load_weights("./en-small").config == other.config
        assert load_weights(tmp_path / "en-small").config == other.config

    def test_a_model_in_the_package_loads_by_its_name_and_is_the_default(self, tmp_path, monkeypatch):
        monkeypatch.setattr(names, "_PACKAGED", tmp_path)
        weights = save(tmp_path / "en-small", "native")
        assert names.packaged_models() == ["en-small"]
        for loaded in (load_weights("en-small"), load_weights()):
            assert loaded.config == tiny()
            assert loaded.tokenizer == weights.tokenizer
            np.testing.assert_array_equal(loaded.arrays["forward.0.bias"], weights.arrays["forward.0.bias"])
            assert loaded.source
            assert loaded.source.what == "en-small"
            assert {file.parent for file in loaded.source.files} == {tmp_path / "en-small"}

    def test_a_model_in_the_package_keeps_its_own_tokenizer(self, tmp_path, monkeypatch):
        """Even under the name of a published model, whose files would not say which one is theirs."""
        monkeypatch.setattr(names, "_PACKAGED", tmp_path)
        weights = replace(lively(tiny()), tokenizer=TokenizerInfo("whitespace", "", 1))
        save_weights(weights, tmp_path / "german")
        assert load_weights("german").tokenizer == weights.tokenizer

    def test_a_name_that_leads_out_of_the_package_names_no_model_there(self, tmp_path, monkeypatch):
        monkeypatch.setattr(names, "_PACKAGED", tmp_path / "models")
        (tmp_path / "models").mkdir()
        save(tmp_path / "outside", "native")
        for name in ("../outside", "", "."):
            assert names.packaged_folder(name) is None

    def test_a_folder_comes_before_a_name(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        save(tmp_path / "random-small", "native")
        assert load_weights("random-small").config == tiny()

    @pytest.mark.parametrize("what", ["", "a\0b", "~nobody-at-all", "../..", "no/such/folder"], ids=ascii)
    def test_odd_names_are_errors_of_ours(self, tmp_path, monkeypatch, what):
        monkeypatch.chdir(tmp_path)
        with pytest.raises((ModelError, InputError)):
            load_weights(what)


class TestFolders:
    @pytest.mark.parametrize("to", ["native", "hdf5"])
    def test_the_format_is_found_out(self, tmp_path, to):
        save(tmp_path / "model", to)
        for what in (tmp_path / "model", str(tmp_path / "model")):
            weights = load_weights(what)
            assert weights.config == tiny()
            assert weights.source
            assert (weights.source.what, weights.source.format) == (str(tmp_path / "model"), to)

    def test_the_users_folder_is_found(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        save(tmp_path / "model", "native")
        assert load_weights("~/model").config == tiny()

    def test_published_names_of_files_are_found(self, tmp_path):
        weights = save(tmp_path / "model", "hdf5", tiny(head=9))
        for old, new in {
            "options.json": "elmo_2x11_6_options.json",
            "weights.hdf5": "elmo_2x11_6_weights.hdf5",
            "softmax_weights.hdf5": "elmo_2x11_6_softmax_weights.hdf5",
            "vocab.txt": "vocab-2016-09-10.txt",
        }.items():
            (tmp_path / "model" / old).rename(tmp_path / "model" / new)
        read = load_weights(tmp_path / "model")
        assert read.config.head == 9
        np.testing.assert_array_equal(read.arrays["head.weight"], weights.arrays["head.weight"])
        assert read.vocabulary
        assert len(read.vocabulary) == 9

    def test_other_hdf5_files_beside_the_weights_are_no_weights(self, tmp_path):
        save(tmp_path / "model", "hdf5")
        for name, dataset in {"vectors.hdf5": "0", "words.h5": "embedding"}.items():
            with h5py.File(tmp_path / "model" / name, "w") as file:
                file[dataset] = np.ones((3, 6), dtype=np.float32)
        assert load_weights(tmp_path / "model").config == tiny()

    @needs_shared
    def test_a_published_folder_with_much_else_in_it_loads(self):
        assert load_weights(FIXTURES / "allennlp").config.projection == 16

    def test_two_weight_files_ask_for_a_pair(self, tmp_path):
        save(tmp_path / "model", "hdf5")
        (tmp_path / "model" / "other.hdf5").write_bytes((tmp_path / "model" / "weights.hdf5").read_bytes())
        with pytest.raises(ModelError, match=r"several weight files: other\.hdf5, weights\.hdf5\nhint: load the pair"):
            load_weights(tmp_path / "model")

    def test_two_options_files_ask_for_a_pair(self, tmp_path):
        save(tmp_path / "model", "hdf5")
        options = (tmp_path / "model" / "options.json").rename(tmp_path / "model" / "a_options.json")
        (tmp_path / "model" / "b_options.json").write_text(options.read_text())
        with pytest.raises(
            ModelError, match=r"several options files: a_options\.json, b_options\.json\nhint: load the pair"
        ):
            load_weights(tmp_path / "model")

    @pytest.mark.parametrize(
        ("files", "said"),
        [
            ([], "holds no model that is known here; it holds nothing"),
            (["notes.txt"], "holds no model that is known here; it holds notes.txt"),
            (["config.json"], "model.safetensors is missing beside config.json"),
            (["weights.hdf5"], "no options file (options.json) beside weights.hdf5"),
            (["options.json"], "holds no model that is known here; it holds options.json"),
        ],
        ids=str,
    )
    def test_a_folder_without_a_model_says_what_it_holds(self, tmp_path, files, said):
        for name in files:
            (tmp_path / name).touch()
        with pytest.raises(ModelError) as caught:
            load_weights(tmp_path)
        assert f"{tmp_path}: {said}" in str(caught.value)

    def test_hdf5_files_without_an_elmo_are_listed(self, tmp_path):
        (tmp_path / "options.json").write_text("{}")
        with h5py.File(tmp_path / "vectors.hdf5", "w") as file:
            file["0"] = np.ones((3, 6), dtype=np.float32)
        with pytest.raises(ModelError, match=r"none of vectors\.hdf5 has char_embed or embedding"):
            load_weights(tmp_path)

    def test_a_config_of_something_else_says_so(self, tmp_path):
        save(tmp_path / "model", "native")
        (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 768}))
        with pytest.raises(ModelError, match=r"config\.json: model_type is 'bert', but should be 'elmofire'"):
            load_weights(tmp_path / "model")

    def test_a_file_says_what_to_name_instead(self, tmp_path):
        save(tmp_path / "model", "hdf5")
        with pytest.raises(ModelError, match=r"is one file of a model\nhint: name its folder, .*, or both files"):
            load_weights(tmp_path / "model" / "weights.hdf5")
        save(tmp_path / "ours", "native")
        for name in ("model.safetensors", "config.json"):
            with pytest.raises(ModelError, match=rf"{name}: is one file of a model\nhint: name its folder, .*ours$"):
                load_weights(tmp_path / "ours" / name)

    @pytest.mark.parametrize("suffix", ["hdf5", "npz", "safetensors"])
    def test_a_file_of_vectors_is_no_model(self, tmp_path, suffix):
        embed_to_file(Embedder.load("random-small"), [["a"]], tmp_path / f"v.{suffix}")
        with pytest.raises(ModelError, match=r"holds vectors, not a model\nhint: .*open_embeddings"):
            load_weights(tmp_path / f"v.{suffix}")
        (tmp_path / f"broken.{suffix}").write_text("no such thing")
        with pytest.raises(ModelError, match=rf"broken\.{suffix}: is (no model|one file)"):
            load_weights(tmp_path / f"broken.{suffix}")


class TestPairs:
    @pytest.mark.parametrize("kind", [tuple, list])
    def test_options_and_weights_may_lie_anywhere(self, tmp_path, kind):
        weights = save(tmp_path / "model", "hdf5", words_only(9))
        options = (tmp_path / "model" / "options.json").rename(tmp_path / "anything.json")
        read = load_weights(kind([options, tmp_path / "model" / "weights.hdf5"]))
        np.testing.assert_array_equal(read.arrays["encoder.words"], weights.arrays["encoder.words"])
        assert read.source
        assert read.source.what == (str(options), str(tmp_path / "model" / "weights.hdf5"))

    def test_the_head_that_is_named_like_the_weights_belongs_to_them(self, tmp_path):
        weights = save(tmp_path, "hdf5", tiny(head=7))
        pair = (tmp_path / "options.json", tmp_path / "weights.hdf5")
        np.testing.assert_array_equal(load_weights(pair).arrays["head.weight"], weights.arrays["head.weight"])
        other = (tmp_path / "weights.hdf5").rename(tmp_path / "mine_weights.hdf5")
        assert load_weights((pair[0], other)).config.head == 0

    def test_a_broken_head_that_nobody_named_is_left_out_with_a_warning(self, tmp_path):
        weights = save(tmp_path, "hdf5", tiny(head=7))
        (tmp_path / "softmax_weights.hdf5").write_bytes(b"half a download")
        with pytest.warns(UserWarning, match=r"softmax_weights.hdf5: is not a whole HDF5 file, so .* without its head"):
            found = load_weights((tmp_path / "options.json", tmp_path / "weights.hdf5"))
        assert found.config.head == 0
        np.testing.assert_array_equal(found.arrays["forward.0.bias"], weights.arrays["forward.0.bias"])

    def test_a_pair_is_two_files(self, tmp_path):
        with pytest.raises(ModelError, match=r"a pair of files is \(options, weights\), but 3 were given"):
            load_weights((tmp_path, tmp_path, tmp_path))  # pyright: ignore[reportArgumentType]

    def test_a_pair_the_wrong_way_round_is_said_to_be(self, tmp_path):
        save(tmp_path / "model", "hdf5")
        with pytest.raises(ModelError, match="the options file comes first"):
            load_weights((tmp_path / "model" / "weights.hdf5", tmp_path / "model" / "options.json"))


@pytest.mark.parametrize("to", ["native", "hdf5"])
def test_the_stamp_changes_with_every_file_that_counts(tmp_path, to):
    save(tmp_path / "model", to, words_only(9))
    source = load_weights(tmp_path / "model").source
    assert source
    for file in (tmp_path / "model").iterdir():
        if file.name != "README.md":
            before = source.stamp
            with file.open("ab") as opened:
                opened.write(b" ")
            assert source.stamp != before, file.name


class TestGiven:
    def test_a_vocabulary_may_come_apart_from_a_model_of_whole_words(self, tmp_path):
        save(tmp_path / "words", "hdf5", words_only(4))
        vocabulary = (tmp_path / "words/vocab.txt").rename(tmp_path / "elsewhere.txt")
        with pytest.raises(ModelError, match=r"vocab\.txt is missing"):
            load_weights(tmp_path / "words")
        assert len(load_weights(tmp_path / "words", vocab=vocabulary).vocabulary) == 4

    def test_options_given_take_the_place_of_the_folders_own(self, tmp_path):
        save(tmp_path / "model", "hdf5")
        described = json.loads((tmp_path / "model/options.json").read_text())
        described["lstm"]["cell_clip"] = None
        (tmp_path / "other.json").write_text(json.dumps(described))
        assert load_weights(tmp_path / "model", options=tmp_path / "other.json").config.cell_clip is None

    def test_options_for_a_model_that_has_its_own_are_an_error(self, tmp_path):
        save(tmp_path / "model", "native")
        with pytest.raises(ModelError, match="has its own settings"):
            load_weights(tmp_path / "model", options=tmp_path / "other.json")
