"""The vectors of the original implementations, on the numpy engine and on the torch model: |x - expected| <= 2e-6 + 1e-5 |expected|."""

import json

import h5py
import numpy as np
import pytest
from models import ENGINES, FIXTURES, OUR_FIXTURES, embedder_on, needs_shared

from elmofire import load_weights
from elmofire.engine import definition
from elmofire.engine.batches import token_ids
from elmofire.text.characters import character_ids

MODELS = {  # folder of the model: its sentences, the expected three layers
    "allennlp": ("allennlp/sentences.json", "expected_embeddings.hdf5"),
    "bilm-tf": ("bilm-tf/lm_embeddings_sentences.json", "bilm-tf/expected_embeddings.hdf5"),
}
VARIANTS = sorted(folder.name for folder in (OUR_FIXTURES / "variants").iterdir() if folder.is_dir())


def assert_published(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def sentences_of(model):
    """S[k][i]: three lanes of ten sentences."""
    return [[text.split() for text in lane] for lane in json.loads((FIXTURES / MODELS[model][0]).read_text())]


@needs_shared
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
class TestPublishedModels:
    def test_three_layers_from_zero_state(self, model, engine):
        elmo = embedder_on(engine, load_weights(FIXTURES / model))
        with h5py.File(FIXTURES / MODELS[model][1]) as expected:
            for k, lane in enumerate(sentences_of(model)):
                for i, vectors in enumerate(elmo.embed(lane, layers="all")):
                    assert_published(vectors, expected[f"stateless/{k}/{i}"][()])

    def test_three_layers_with_the_state_carried(self, model, engine):
        elmo = embedder_on(engine, load_weights(FIXTURES / model))
        state = elmo.zero_state()
        with h5py.File(FIXTURES / MODELS[model][1]) as expected:
            for i, batch in enumerate(zip(*sentences_of(model), strict=True)):
                vectors, state = elmo.embed(batch, layers="all", state=state)
                for k in range(3):
                    assert_published(vectors[k], expected[f"carried/{k}/{i}"][()])

    def test_the_published_top_layer_sets(self, model, engine):
        elmo = embedder_on(engine, load_weights(FIXTURES / model))
        state = elmo.zero_state()
        published = [h5py.File(FIXTURES / model / f"lm_embeddings_{k}.hdf5") for k in range(3)]
        for i, batch in enumerate(zip(*sentences_of(model), strict=True)):
            vectors, state = elmo.embed(batch, layers="top", state=state)
            for k in range(3):
                assert_published(vectors[k], np.concatenate(published[k][str(i)][()], axis=1))


@needs_shared
@pytest.mark.parametrize("engine", ENGINES)
class TestPublishedTokens:
    def test_the_token_vectors_of_the_vocabulary(self, engine):
        elmo = embedder_on(engine, load_weights(FIXTURES / "allennlp"))
        words = (FIXTURES / "allennlp/vocab_test.txt").read_text(encoding="utf-8").split("\n")
        vectors = elmo._engine.encode(character_ids(words))
        with h5py.File(FIXTURES / "allennlp/elmo_token_embeddings.hdf5") as expected:
            assert_published(vectors, expected["embedding"][()])

    def test_odd_tokens_have_their_ids_and_vectors(self, engine):
        elmo = embedder_on(engine, load_weights(FIXTURES / "allennlp"))
        odd = json.loads((FIXTURES / "edge_tokens.json").read_text())
        tokens = [case["token"] for case in odd]
        np.testing.assert_array_equal(character_ids(tokens), [case["char_ids"] for case in odd])
        with h5py.File(FIXTURES / "edge_tokens.hdf5") as expected:
            vectors = elmo._engine.encode(character_ids([*tokens, "<S>", "</S>"]))
            assert_published(vectors[:-2], expected["token_vectors"][()])
            assert_published(vectors[-2], expected["bos"][()])
            assert_published(vectors[-1], expected["eos"][()])
            assert_published(elmo._engine.encode(np.zeros((1, 50), dtype=np.int16))[0], expected["mask_token"][()])
            # The same through the front door: layer 0 is the token's vector, once per direction.
            through = elmo.embed([tokens], layers=0)[0]
            assert_published(through, np.tile(expected["token_vectors"][()], 2))

    def test_the_state_follows_batches_of_changing_size(self, engine):
        elmo = embedder_on(engine, load_weights(FIXTURES / "allennlp"))
        state = elmo.zero_state()
        with h5py.File(FIXTURES / "stateful_resize.hdf5") as expected:
            for call, batch in enumerate(json.loads((FIXTURES / "stateful_resize.json").read_text())):
                vectors, state = elmo.embed(batch, layers="all", state=state)
                for row in range(len(batch)):
                    assert_published(vectors[row], expected[f"{call}/{row}"][()])
            assert_published(state.hidden, expected["final_state/hidden"][()])
            assert_published(state.memory, expected["final_state/memory"][()])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_the_architecture(variant, engine):
    folder = OUR_FIXTURES / "variants" / variant
    elmo = embedder_on(engine, load_weights((folder / "options.json", folder / "weights.hdf5")))
    sentences = json.loads((OUR_FIXTURES / "variants/sentences.json").read_text())
    with h5py.File(folder / "expected.hdf5") as expected:
        for i, vectors in enumerate(elmo.embed(sentences, layers="all")):
            assert_published(vectors, expected[str(i)][()])


class TestDefinition:
    """The definition that everything else is held against is itself held against every fixture."""

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_variants_of_the_architecture(self, variant):
        folder = OUR_FIXTURES / "variants" / variant
        weights = load_weights((folder / "options.json", folder / "weights.hdf5"))
        sentences = json.loads((OUR_FIXTURES / "variants/sentences.json").read_text())
        with h5py.File(folder / "expected.hdf5") as expected:
            for i, sentence in enumerate(sentences):
                ids = token_ids(["<S>", *sentence, "</S>"], weights.config, None, weights.alphabet)
                layers, _ = definition.layers(weights.config, dict(weights.arrays), ids)
                assert_published(np.stack(layers)[:, 1:-1], expected[str(i)][()])

    @needs_shared
    @pytest.mark.parametrize("model", MODELS)
    def test_the_published_models_stateless_and_carried(self, model):
        weights = load_weights(FIXTURES / model)
        arrays = dict(weights.arrays)
        lane = sentences_of(model)[1]
        state = None
        with (
            h5py.File(FIXTURES / MODELS[model][1]) as expected,
            h5py.File(FIXTURES / model / "lm_embeddings_1.hdf5") as published,
        ):
            for i, sentence in enumerate(lane):
                ids = token_ids(["<S>", *sentence, "</S>"], weights.config, None, weights.alphabet)
                if i < 3:
                    layers, _ = definition.layers(weights.config, arrays, ids)
                    assert_published(np.stack(layers)[:, 1:-1], expected[f"stateless/1/{i}"][()])
                layers, state = definition.layers(weights.config, arrays, ids, state)
                assert_published(np.stack(layers)[:, 1:-1], expected[f"carried/1/{i}"][()])
                assert_published(layers[-1][1:-1], np.concatenate(published[str(i)][()], axis=1))

    @needs_shared
    def test_odd_tokens_and_the_vocabulary(self):
        weights = load_weights(FIXTURES / "allennlp")
        arrays = dict(weights.arrays)
        odd = json.loads((FIXTURES / "edge_tokens.json").read_text())
        with h5py.File(FIXTURES / "edge_tokens.hdf5") as expected:
            for case, vector in zip(odd, expected["token_vectors"][()], strict=True):
                assert_published(definition.encode(weights.config, arrays, np.array(case["char_ids"])), vector)
            assert_published(
                definition.encode(weights.config, arrays, np.zeros(50, dtype=int)), expected["mask_token"][()]
            )
        with h5py.File(FIXTURES / "allennlp/elmo_token_embeddings.hdf5") as expected:
            words = (FIXTURES / "allennlp/vocab_test.txt").read_text(encoding="utf-8").split("\n")
            for ids, vector in zip(character_ids(words), expected["embedding"][()], strict=True):
                assert_published(definition.encode(weights.config, arrays, ids), vector)

    @needs_shared
    def test_the_carried_state_of_a_row(self):
        weights = load_weights(FIXTURES / "allennlp")
        arrays, state = dict(weights.arrays), None
        calls = json.loads((FIXTURES / "stateful_resize.json").read_text())
        with h5py.File(FIXTURES / "stateful_resize.hdf5") as expected:
            for call, batch in enumerate(calls):  # row 0 is in every call
                ids = token_ids(["<S>", *batch[0], "</S>"], weights.config, None, weights.alphabet)
                layers, state = definition.layers(weights.config, arrays, ids, state)
                assert_published(np.stack(layers)[:, 1:-1], expected[f"{call}/0"][()])
            for k in range(2):
                hidden = np.concatenate([state[direction][k][0] for direction in ("forward", "backward")])
                assert_published(hidden, expected["final_state/hidden"][k, 0])
