"""simple_elmo's `ElmoModel`: as it was with `quirks=True`, put right without."""

import inspect
import json

import h5py
import numpy as np
import pytest
from models import FIXTURES, lively, needs_shared, tiny

from elmofire import Embedder, InputError, ModelError, save_weights
from elmofire.compat.simple_elmo import ElmoModel
from elmofire.lm.language_model import LanguageModel
from elmofire.text.vocabulary import Vocabulary

TEXTS = [["the", "cat", "sat"], ["why"], ["on", "a", "mat", "."], []]
LAYERS = ("average", "top", "all")


@pytest.fixture
def folder(tmp_path):
    words = Vocabulary(["<S>", "</S>", "<UNK>", "the", "cat", "sat", "mat"])
    save_weights(lively(tiny(head=7), vocabulary=words), tmp_path / "model")
    return tmp_path / "model"


def loaded(folder, batch=2, **options):
    model = ElmoModel(**options)
    assert model.load(folder, max_batch_size=batch) == "The model is now loaded."
    return model


def test_the_signatures_are_the_old_ones():
    def shown(function):
        return [
            p.name if p.default is inspect.Parameter.empty else (p.name, p.default)
            for p in inspect.signature(function).parameters.values()
        ][1:]

    assert shown(ElmoModel.load) == ["directory", ("max_batch_size", 32), ("limit", 100), ("full", False)]
    vectors = ["texts", ("warmup", True), ("layers", "average"), ("session", None)]
    assert shown(ElmoModel.get_elmo_vectors) == shown(ElmoModel.get_elmo_vector_average) == vectors
    assert shown(ElmoModel.get_elmo_substitutes) == ["data", ("topn", 3), ("nodelimiters", True)]


@needs_shared
@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("layers", LAYERS)
def test_with_its_quirks_it_returns_what_the_original_returned(layers, warmup):
    model = loaded(FIXTURES / "allennlp", quirks=True)
    texts = json.loads((FIXTURES / "simple_elmo_expected.json").read_text())
    vectors = model.get_elmo_vectors(texts, warmup=warmup, layers=layers)
    averages = model.get_elmo_vector_average(texts, warmup=warmup, layers=layers)
    assert vectors.dtype == averages.dtype == np.float64
    with h5py.File(FIXTURES / "simple_elmo_expected.hdf5") as expected:
        for found, kind in ((vectors, "vectors"), (averages, "sentence_average")):
            np.testing.assert_allclose(
                found, expected[f"{kind}/{layers}/warmup_{int(warmup)}"][()], rtol=1e-5, atol=2e-6
            )


def test_a_loaded_model_tells_its_sizes(folder):
    model = loaded(folder, batch=7)
    assert (model.vector_size, model.n_layers, model.batch_size, model.max_chars) == (12, 3, 7, 13)


class TestPutRight:
    @pytest.mark.parametrize("layers", LAYERS)
    def test_without_a_warmup_every_sentence_starts_from_zero_and_padding_is_zero(self, folder, layers):
        found = loaded(folder).get_elmo_vectors(TEXTS, warmup=False, layers=layers)
        expected, mask = Embedder.load(folder).embed(TEXTS, layers=layers, padded=True)
        assert found.dtype == np.float32
        assert mask.sum() == 8
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)

    @pytest.mark.parametrize("layers", LAYERS)
    def test_a_warmup_is_one_pass_over_the_first_batch(self, folder, layers):
        elmo = Embedder.load(folder)
        state = elmo.warm_state(TEXTS[:2])
        found = loaded(folder).get_elmo_vectors(TEXTS, layers=layers)
        for first in (0, 2):
            vectors, state = elmo.embed(TEXTS[first : first + 2], layers=layers, state=state)
            for number, expected in enumerate(vectors, first):
                tokens = expected.shape[-2]
                np.testing.assert_allclose(found[number][..., :tokens, :], expected, rtol=1e-5, atol=2e-6)
                assert not found[number][..., tokens:, :].any()

    @pytest.mark.parametrize("layers", LAYERS)
    def test_averages_count_the_tokens_of_the_sentence_alone(self, folder, layers):
        found = loaded(folder).get_elmo_vector_average(TEXTS, warmup=False, layers=layers)
        for average, vectors in zip(found, Embedder.load(folder).embed(TEXTS[:3], layers=layers), strict=False):
            mean = vectors.mean(axis=-2)
            np.testing.assert_allclose(average, mean / np.sqrt((mean**2).sum()), rtol=1e-5, atol=2e-6)
        assert not found[3].any()
        assert found.shape == ((4, 3, 12) if layers == "all" else (4, 12))

    def test_the_quirks_would_have_shown(self, folder):
        """The same text through both, so that this file's bounds are known to tell them apart."""
        right, quirky = loaded(folder), loaded(folder, quirks=True)
        assert np.abs(quirky.get_elmo_vectors(TEXTS)[1, 1:3]).max() > 1e-2
        for layers in ("average", "all"):  # zeros behind the top layer's end go with the length
            difference = right.get_elmo_vector_average(TEXTS, layers=layers) - quirky.get_elmo_vector_average(
                TEXTS, layers=layers
            )
            assert np.abs(difference[1]).max() > 1e-2


class TestSubstitutes:
    def test_each_word_has_candidates_of_both_directions(self, folder):
        model = ElmoModel()
        model.load(folder, full=True)
        (found,) = model.get_elmo_substitutes(["the cat sat"], topn=2)
        assert [entry["word"] for entry in found] == ["the", "cat", "sat"]
        lm = LanguageModel.load(folder)
        for position, entry in enumerate(found):
            for direction in ("forward", "backward"):
                best = lm.substitutes(["the", "cat", "sat"], position, top=2, direction=direction)
                assert entry[direction]["candidate_words"] == [word for word, _ in best]
                np.testing.assert_allclose(entry[direction]["logp"], [score for _, score in best], atol=1e-4)
                words = ["<S>", "</S>", "<UNK>", "the", "cat", "sat", "mat"]
                assert [words[number] for number in entry[direction]["candidates"]] == [word for word, _ in best]

    def test_a_model_without_a_head_cannot(self, tmp_path):
        save_weights(lively(tiny()), tmp_path / "model")
        with pytest.raises(ModelError, match="full=True needs a language-model head"):
            ElmoModel().load(tmp_path / "model", full=True)
        with pytest.raises(ModelError, match="no language-model head"):
            loaded(tmp_path / "model").get_elmo_substitutes(["the cat"])


def test_mistakes_are_named(folder):
    with pytest.raises(InputError, match="no model is loaded"):
        ElmoModel().get_elmo_vectors(TEXTS)
    model = loaded(folder)
    with pytest.raises(InputError, match="lists of tokens"):
        model.get_elmo_vectors(["the cat"])
    with pytest.raises(InputError, match="layers is 'middle'"):
        model.get_elmo_vectors(TEXTS, layers="middle")
    with pytest.raises(InputError, match="no sessions"):
        model.get_elmo_vectors(TEXTS, session=object())
    with pytest.raises(InputError, match="a list of strings"):
        model.get_elmo_substitutes("the cat")
    with pytest.raises(InputError, match="not offered"):
        model.get_elmo_substitutes(["the cat"], nodelimiters=False)
    with pytest.raises(InputError, match="max_batch_size is 0"):
        ElmoModel().load(folder, max_batch_size=0)
    for empty in (model.get_elmo_vectors([]), model.get_elmo_vector_average([])):
        assert empty.shape[0] == 0
