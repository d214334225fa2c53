"""ELMoForManyLangs' `sents2elmo`: layers by their numbers, order kept, state by rank on request."""

import inspect
import json

import h5py
import numpy as np
import pytest
from models import FIXTURES, lively, needs_shared, tiny

from elmofire import Embedder as OurEmbedder
from elmofire import InputError, load_weights, save_weights
from elmofire.compat.manylangs import Embedder
from elmofire.errors import ElmofireError

SENTENCES = [["why"], ["the", "cat", "sat"], [], ["on", "a", "mat"], ["it", "rained"]]


@pytest.fixture
def model(tmp_path):
    save_weights(lively(tiny()), tmp_path / "model")
    return tmp_path / "model"


def toy(name):
    """A folder of ELMoForManyLangs, where its format is read."""
    try:
        load_weights(FIXTURES / "efml_toy" / name)
    except ElmofireError as error:
        pytest.skip(f"ELMoForManyLangs' folders are not read here: {error}")
    return FIXTURES / "efml_toy" / name


def test_the_signatures_are_the_old_ones():
    assert list(inspect.signature(Embedder).parameters) == ["model_dir", "batch_size", "stateful"]
    assert inspect.signature(Embedder).parameters["batch_size"].default == 64
    assert inspect.signature(Embedder.sents2elmo).parameters["output_layer"].default == -1


@pytest.mark.parametrize(("output_layer", "layers"), [(-1, "average"), (-2, "all"), (0, 0), (1, 1), (2, 2)])
@pytest.mark.parametrize("stateful", [False, True])
def test_layers_have_their_numbers(model, output_layer, layers, stateful):
    """One batch of a fresh embedder is zero state, carried or not."""
    found = Embedder(model, stateful=stateful).sents2elmo(SENTENCES, output_layer)
    for x, y in zip(found, OurEmbedder.load(model).embed(SENTENCES, layers), strict=True):
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6)


def test_the_same_sentence_has_the_same_vectors_unless_the_state_is_carried(model):
    plain, carried = Embedder(model, batch_size=2), Embedder(model, batch_size=2, stateful=True)
    first = plain.sents2elmo(SENTENCES)
    for x, y in zip(first, plain.sents2elmo(SENTENCES), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6)
    assert np.abs(carried.sents2elmo(SENTENCES)[0] - first[0]).max() > 1e-3


def test_rows_are_ranks_and_batches_follow_the_sorted_order(model):
    elmo = OurEmbedder.load(model)
    state = elmo.zero_state()
    expected = {}
    for _ in range(2):
        for rows in ([1, 3], [4, 0], [2]):  # longest first, those of one length as they came
            found, state = elmo.embed([SENTENCES[row] for row in rows], state=state)
            expected.update(zip(rows, found, strict=True))
    embedder = Embedder(model, batch_size=2, stateful=True)
    embedder.sents2elmo(SENTENCES)
    for number, found in enumerate(embedder.sents2elmo(SENTENCES)):
        np.testing.assert_allclose(found, expected[number], rtol=1e-5, atol=2e-6)
    embedder.reset_states()
    one_batch = embedder.sents2elmo(SENTENCES[:2])
    np.testing.assert_allclose(one_batch[0], elmo.embed(SENTENCES[:1])[0], rtol=1e-5, atol=2e-6)


@needs_shared
@pytest.mark.parametrize("name", ["word_char", "char_only"])
def test_the_vectors_are_those_of_the_original(name):
    folder = toy(name)
    sentences = json.loads((folder / "sentences.json").read_text())
    with h5py.File(folder / "expected.hdf5") as expected:
        for layer in (-2, -1, 0, 1, 2):
            for number, found in enumerate(Embedder(folder).sents2elmo(sentences, layer)):
                np.testing.assert_allclose(found, expected[f"layer_{layer}/{number}"][()], rtol=1e-5, atol=2e-6)
        carried = Embedder(folder, stateful=True)
        carried.sents2elmo(sentences, -2)
        for number, found in enumerate(carried.sents2elmo(sentences, -2)):
            np.testing.assert_allclose(found, expected[f"second_call_layer_-2/{number}"][()], rtol=1e-5, atol=2e-6)


def test_mistakes_are_named(model):
    embedder = Embedder(model)
    with pytest.raises(InputError, match="lists of tokens, not strings"):
        embedder.sents2elmo(["why", "not"])
    with pytest.raises(InputError, match="output_layer is 3"):
        embedder.sents2elmo(SENTENCES, 3)
    with pytest.raises(InputError, match="batch_size is 0"):
        Embedder(model, batch_size=0)
    assert embedder.sents2elmo([]) == []
