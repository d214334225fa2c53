"""Models in zips are the models that were packed, wherever in the archive they lie and however they were packed."""

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
from formats.strategies import vocabulary_of
from models import FIXTURES, lively, needs_shared, tiny, words_only

from elmofire import Embedder, ModelError, Weights, load_weights, save_weights

SENTENCES = [["The", "cat", "sat", "."], ["Why", "?"]]


def pack(folder: Path, *, within: str = "", names: dict[str, str] | None = None, method=zipfile.ZIP_DEFLATED) -> Path:
    """All files of a folder in `folder.zip`; `names` are changed names, and those without one stay out."""
    file = folder.with_suffix(".zip")
    with zipfile.ZipFile(file, "w", method) as archive:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if (name := (names or {}).get(name, name)) and path.is_file():
                archive.write(path, within + name)
    return file


def saved(folder: Path, to: str, config=None, **options) -> Weights:
    config = config or tiny()
    weights = lively(config, vocabulary=vocabulary_of(config))
    save_weights(weights, folder, to=to, **options)
    return weights


def assert_same(found: Weights, expected: Weights) -> None:
    assert found.config == expected.config
    assert set(found.arrays) == set(expected.arrays)
    for name in expected.arrays:
        np.testing.assert_array_equal(found.arrays[name], expected.arrays[name], err_msg=name)
    words = [weights.vocabulary.words if weights.vocabulary else None for weights in (found, expected)]
    assert words[0] == words[1]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("within", ["", "213/", "some/where/"])
@pytest.mark.parametrize("to", ["hdf5", "native"])
def test_the_model_is_the_one_that_was_packed(tmp_path, to, within, method):
    weights = saved(tmp_path / "model", to)
    file = pack(tmp_path / "model", within=within, names={"weights.hdf5": "model.hdf5"}, method=method)
    found = load_weights(file)
    assert_same(found, weights)
    assert found.source
    assert (found.source.what, found.source.format, found.source.files) == (str(file), to, (file,))


@pytest.mark.parametrize("packed", [False, True])
def test_a_vocabulary_may_be_packed_once_more(tmp_path, packed):
    weights = saved(tmp_path / "model", "hdf5", words_only(9))
    words = tmp_path / "model" / "vocab.txt"
    if packed:
        words.with_name("vocab.txt.gz").write_bytes(gzip.compress(words.read_bytes()))
        words.unlink()
    assert_same(load_weights(pack(tmp_path / "model")), weights)


@pytest.mark.parametrize("to", ["hdf5", "native"])
def test_the_head_comes_along(tmp_path, to):
    weights = saved(tmp_path / "model", to, tiny(head=9))
    assert_same(load_weights(pack(tmp_path / "model")), weights)


def test_what_else_lies_there_does_not_matter(tmp_path):
    weights = saved(tmp_path / "model", "hdf5")
    (tmp_path / "model" / "weights.hdf5").rename(tmp_path / "model" / "model.hdf5")
    (tmp_path / "model" / "vectors.hdf5").write_bytes(b"something else")
    (tmp_path / "model" / "meta.json").write_text("{}")
    file = pack(tmp_path / "model", within="elmo/")
    with zipfile.ZipFile(file, "a") as archive:
        archive.mkdir("elmo/empty")
        archive.writestr("__MACOSX/elmo/._model.hdf5", b"a Mac's own")
    assert_same(load_weights(file), weights)


@pytest.mark.parametrize("to", ["hdf5", "native"])
def test_an_embedder_reads_its_zip_again_elsewhere(tmp_path, to):
    import pickle

    saved(tmp_path / "model", to)
    elmo = Embedder.load(pack(tmp_path / "model"), device="cpu")
    again = pickle.loads(pickle.dumps(elmo))
    for first, second in zip(elmo.embed(SENTENCES), again.embed(SENTENCES), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("to", ["hdf5", "native"])
def test_nothing_is_left_behind(tmp_path, monkeypatch, to):
    saved(tmp_path / "model", to)
    file = pack(tmp_path / "model")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    weights = load_weights(file)
    assert not list((tmp_path / "temporary").iterdir())
    assert np.isfinite(weights.arrays["backward.1.weight_hh"]).all()


@needs_shared
def test_a_published_model_in_a_zip_gives_the_same_vectors(tmp_path):
    pair = (FIXTURES / "bilm-tf" / "options.json", FIXTURES / "bilm-tf" / "lm_weights.hdf5")
    with zipfile.ZipFile(tmp_path / "213.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(pair[0], "options.json")
        archive.write(pair[1], "model.hdf5")
    found, expected = (Embedder.load(what).embed(SENTENCES, layers="all") for what in (tmp_path / "213.zip", pair))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@needs_shared
@pytest.mark.parametrize("model", ["char_only", "word_char"])
@pytest.mark.parametrize("within", ["", "179/"])
def test_models_of_many_languages_are_read_too(tmp_path, model, within):
    file = tmp_path / "179.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((FIXTURES / "efml_toy" / model).iterdir()):
            if path.name not in ("expected.hdf5", "sentences.json"):
                archive.write(path, within + path.name)
    found, expected = load_weights(file), load_weights(FIXTURES / "efml_toy" / model)
    assert_same(found, expected)
    assert found.source
    assert (found.source.what, found.source.files) == (str(file), (file,))


class TestErrors:
    def test_a_zip_of_something_else_says_what_it_holds(self, tmp_path):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "notes.txt").touch()
        with pytest.raises(
            ModelError, match=r"model\.zip: holds no model that is known here; it holds notes\.txt\nhint: "
        ):
            load_weights(pack(tmp_path / "model"))

    def test_an_empty_zip_holds_nothing(self, tmp_path):
        (tmp_path / "model").mkdir()
        with pytest.raises(ModelError, match="it holds nothing"):
            load_weights(pack(tmp_path / "model"))

    def test_two_weight_files_are_too_many(self, tmp_path):
        saved(tmp_path / "model", "hdf5")
        (tmp_path / "model" / "other.hdf5").write_bytes((tmp_path / "model" / "weights.hdf5").read_bytes())
        with pytest.raises(ModelError, match=r"several weight files: other\.hdf5, weights\.hdf5\nhint: .* model\.hdf5"):
            load_weights(pack(tmp_path / "model"))

    @pytest.mark.parametrize(
        ("to", "broken", "said"),
        [
            ("hdf5", "options.json", "model.zip/options.json:1: is not valid JSON"),
            ("hdf5", "weights.hdf5", "model.zip/weights.hdf5: is not a whole HDF5 file"),
            ("native", "config.json", "model.zip/config.json:1: is not valid JSON"),
            ("native", "model.safetensors", "model.zip/model.safetensors: is not a whole safetensors file"),
        ],
    )
    def test_a_broken_file_is_named_by_its_place_in_the_zip(self, tmp_path, to, broken, said):
        saved(tmp_path / "model", to)
        (tmp_path / "model" / broken).write_bytes(b"nonsense" * 9)
        with pytest.raises(ModelError) as caught:
            load_weights(pack(tmp_path / "model"))
        assert f"{tmp_path}/{said}" in str(caught.value)
        assert "elmofire-" not in str(caught.value)

    def test_a_dataset_that_does_not_fit_is_named(self, tmp_path):
        saved(tmp_path / "model", "hdf5", tiny(layers=1))
        options = tmp_path / "model" / "options.json"
        options.write_text(options.read_text().replace('"n_layers": 1', '"n_layers": 2'))
        with pytest.raises(ModelError) as caught:
            load_weights(pack(tmp_path / "model"))
        assert f"{tmp_path / 'model.zip'}/options.json and weights.hdf5: 6 problems" in str(caught.value)
        assert "weights.hdf5: RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/W_0 is missing" in str(caught.value)
