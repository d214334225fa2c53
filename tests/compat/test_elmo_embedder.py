"""`ElmoEmbedder` of AllenNLP 0.9: arrays, batches, carried state, and the file it writes."""

import inspect
import io
import json

import h5py
import numpy as np
import pytest
import torch
from models import FIXTURES, lively, needs_shared, tiny

from elmofire import Embedder, InputError, ModelError, load_weights, open_embeddings, save_weights
from elmofire.compat.allennlp import ElmoEmbedder

PUBLISHED = (FIXTURES / "allennlp/options.json", FIXTURES / "allennlp/lm_weights.hdf5")
SENTENCES = [["the", "cat", "sat"], ["why"], [], ["a", "mat", "."], ["on", "it"]]


@pytest.fixture
def files(tmp_path):
    save_weights(lively(tiny(encoder_max_characters=50)), tmp_path / "model", to="hdf5")
    return tmp_path / "model/options.json", tmp_path / "model/weights.hdf5"


def test_the_signatures_are_the_old_ones():
    def names(function):
        found = inspect.signature(function).parameters.values()
        return [p.name for p in found if p.kind is not inspect.Parameter.KEYWORD_ONLY]

    assert names(ElmoEmbedder) == ["options_file", "weight_file", "cuda_device"]
    assert names(ElmoEmbedder.embed_sentences) == ["self", "sentences", "batch_size"]
    assert names(ElmoEmbedder.embed_file)[1:] == [
        "input_file",
        "output_file_path",
        "output_format",
        "batch_size",
        "forget_sentences",
        "use_sentence_keys",
    ]


def test_sentences_come_in_order_whatever_the_batches(files):
    elmo = ElmoEmbedder(*files)
    expected = Embedder(load_weights(files)).embed(SENTENCES, layers="all")
    for batch_size in (1, 2, 64):
        found = list(elmo.embed_sentences(iter(SENTENCES), batch_size))
        assert [array.dtype for array in found] == [np.float32] * 5
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(elmo.embed_sentence(SENTENCES[0]), expected[0], rtol=1e-5, atol=2e-6)
    assert elmo.embed_batch([[]])[0].shape == (3, 0, 12)


def test_a_batch_is_padded_with_its_mask(files):
    vectors, mask = ElmoEmbedder(*files).batch_to_embeddings(SENTENCES)
    assert vectors.shape == (5, 3, 3, 12)
    assert mask.sum(dim=1).tolist() == [3, 1, 0, 3, 2]
    assert not vectors.requires_grad
    assert not vectors[1, :, 1:].any()


@needs_shared
def test_the_carried_state_gives_the_published_vectors():
    elmo = ElmoEmbedder(*PUBLISHED, stateful=True)
    lanes = json.loads((FIXTURES / "allennlp/sentences.json").read_text())
    batches = [[text.split() for text in batch] for batch in zip(*lanes, strict=True)]
    with h5py.File(FIXTURES / "expected_embeddings.hdf5") as expected:
        for i, batch in enumerate(batches):
            for k, found in enumerate(elmo.embed_batch(batch)):
                np.testing.assert_allclose(found, expected[f"carried/{k}/{i}"][()], rtol=1e-5, atol=2e-6)
        elmo.elmo_bilm._elmo_lstm.reset_states()
        for k, found in enumerate(elmo.embed_batch(batches[4])):
            np.testing.assert_allclose(found, expected[f"stateless/{k}/4"][()], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("output_format", "layers"), [("all", "all"), ("top", "top"), ("average", "average")], ids=lambda value: value
)
def test_a_file_has_a_dataset_a_line_and_an_index(files, tmp_path, output_format, layers):
    text = io.StringIO("the cat  sat\nwhy\nwhy \n")
    ElmoEmbedder(*files).embed_file(text, tmp_path / "out.hdf5", output_format, batch_size=2)
    assert text.closed
    expected = Embedder(load_weights(files)).embed([["the", "cat", "sat"], ["why"]], layers=layers)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert sorted(file) == ["0", "1", "2", "sentence_to_index"]
        assert json.loads(file["sentence_to_index"][0]) == {"the cat  sat": "0", "why": "2"}
        assert file["0"].dtype == np.float32
        for number, array in (("0", expected[0]), ("1", expected[1]), ("2", expected[1])):
            np.testing.assert_allclose(file[number][()], array, rtol=1e-5, atol=2e-6)
    assert open_embeddings(tmp_path / "out.hdf5").tokens(2) == ["why"]


def test_sentences_can_be_forgotten_or_be_the_names(files, tmp_path):
    elmo = ElmoEmbedder(*files)
    elmo.embed_file(io.StringIO("a b\nc\n"), tmp_path / "numbers.hdf5", forget_sentences=True)
    elmo.embed_file(io.StringIO("a b\nc / d\n"), tmp_path / "names.hdf5", use_sentence_keys=True)
    with h5py.File(tmp_path / "numbers.hdf5") as file:
        assert sorted(file) == ["0", "1"]
    with h5py.File(tmp_path / "names.hdf5") as file:
        assert file["a b"].shape == (3, 2, 12)
        assert file["c / d"].shape == (3, 3, 12)
        assert "sentence_to_index" not in file


def test_mistakes_leave_no_file(files, tmp_path):
    elmo = ElmoEmbedder(*files)
    with pytest.raises(InputError, match=r"empty lines at the indexes \[1\]"):
        elmo.embed_file(io.StringIO("a\n\nb\n"), tmp_path / "out.hdf5")
    with pytest.raises(InputError, match="'a' at index 1 is there twice"):
        elmo.embed_file(io.StringIO("a\na\n"), tmp_path / "out.hdf5", use_sentence_keys=True)
    with pytest.raises(InputError, match="output_format"):
        elmo.embed_file(io.StringIO("a\n"), tmp_path / "out.hdf5", "middle")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_the_old_defaults_name_what_to_fetch(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMOFIRE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="elmofire models get allenai/original"):
        ElmoEmbedder()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error(files):
    with pytest.raises(InputError, match="torch sees no GPU"):
        ElmoEmbedder(*files, cuda_device=0)
