"""Every implementation of the model against `engine/definition.py`, on odd sizes and on what no published file covers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import ENGINES, ONE_HOT, embedder_on, lively, one_way, tiny, words_only

from elmofire.engine import definition
from elmofire.engine.batches import token_ids
from elmofire.engine.compiled import library, packing
from elmofire.engine.state import State
from elmofire.formats.config import EncoderConfig
from elmofire.text.vocabulary import Vocabulary

WORDS = Vocabulary(["<S>", "</S>", "<UNK>", "the", "cat", "sat", "on", "a", "mat"])
CONFIGS = {
    "plain": tiny(),
    "forward only": tiny(directions=("forward",)),
    "backward only": tiny(directions=("backward",)),
    "token input": words_only(len(WORDS)),
    "one layer": tiny(layers=1),
    "four layers": tiny(layers=4),
    "no clips": tiny(cell_clip=None, projection_clip=None),
    "tight clips": tiny(cell_clip=0.3, projection_clip=0.2),
    "no skip": tiny(skip_connections=False),
    "no projection in the LSTM": tiny(cells=6, lstm_projection=False),
    "projection as wide as the cells": tiny(cells=6),
    "no projection of the encoder": tiny(encoder_width=15, encoder_projection=False, projection=15),
    "no highway": tiny(encoder_highways=0),
    "three highways, tanh": tiny(encoder_highways=3, encoder_activation="tanh"),
    "first layer of another width": tiny(encoder_width=9),
    "shortest tokens": tiny(encoder_max_characters=4),
    "widest filter": tiny(encoder_filters=((13, 4), (1, 2))),
    "forget bias in the bias": tiny(forget_bias=0.0),
    "words and characters": replace(tiny(), encoder=replace(tiny().encoder, words=len(WORDS), word_dim=4)),
    "words through a projection": replace(
        words_only(len(WORDS)), encoder=EncoderConfig(width=6, filters=(), words=len(WORDS), word_dim=4)
    ),
    "one cell": tiny(cells=1, projection=1, encoder_width=1),
    "plain layer for a highway": tiny(encoder_highway="mlp"),
    "learned carry gates": tiny(encoder_highway="learned", encoder_highways=2),
    "one-hot characters": tiny(**ONE_HOT),
    "one way": one_way(),
    "one way, plain layer": one_way(encoder_highway="mlp"),
    "one way, learned carry gate": one_way(encoder_highway="learned"),
    "one way, no highway, one-hot": one_way(encoder_highways=0, **ONE_HOT),
    "one way, learned carry gate, one-hot": one_way(encoder_highway="learned", **ONE_HOT),
}
SENTENCES = [
    ["the", "cat", "sat", "on", "a", "mat"],
    ["unseen", "cat"],
    ["a"],
    ["naïve", "日本語の長い単語", "the"] * 4,
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CONFIGS)
def test_layers_and_state_equal_the_definition(name, engine):
    config = CONFIGS[name]
    weights = lively(config, seed=3, vocabulary=WORDS)
    elmo = embedder_on(engine, weights)
    rng = np.random.default_rng(1)
    before = State(
        rng.uniform(-1, 1, State.zero(config, 4).hidden.shape).astype(np.float32),
        rng.uniform(-1, 1, State.zero(config, 4).memory.shape).astype(np.float32),
    )
    for start in (None, before):
        for j in range(config.layers + 1):
            found = elmo.embed(SENTENCES, layers=j, boundaries=True, **({"state": start} if start else {}))
            vectors, after = found if start else (found, None)
            for row, sentence in enumerate(SENTENCES):
                ids = token_ids(["<S>", *sentence, "</S>"], config, WORDS, weights.alphabet)
                state = start and definition_state(config, start, row)
                expected, expected_state = definition.layers(config, weights.arrays, ids, state)
                np.testing.assert_allclose(vectors[row], expected[j], rtol=1e-5, atol=2e-6)
                if after:
                    for d, direction in enumerate(config.directions):
                        for k in range(config.layers):
                            h, c = expected_state[direction][k]
                            np.testing.assert_allclose(
                                np.split(after.hidden[k, row], len(config.directions))[d], h, rtol=1e-5, atol=2e-6
                            )
                            np.testing.assert_allclose(
                                np.split(after.memory[k, row], len(config.directions))[d], c, rtol=1e-5, atol=2e-6
                            )


def definition_state(config, state, row):
    halves = len(config.directions)
    return {
        direction: {
            k: (np.split(state.hidden[k, row], halves)[d], np.split(state.memory[k, row], halves)[d])
            for k in range(config.layers)
        }
        for d, direction in enumerate(config.directions)
    }


@pytest.mark.parametrize("engine", library.available())
@pytest.mark.parametrize("name", ["three highways, tanh", "one-hot characters"])
def test_an_alphabet_too_large_for_tables_has_them_made_of_the_characters_at_hand(name, engine, monkeypatch):
    weights = lively(CONFIGS[name], seed=3)
    expected = embedder_on(engine, weights).embed(SENTENCES, "all")
    monkeypatch.setattr(packing, "_MOST_TABLE_BYTES", 0)
    for x, y in zip(embedder_on(engine, weights).embed(SENTENCES, "all"), expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_head_gives_the_definitions_probabilities():
    from elmofire.lm.softmax import Softmax
    from elmofire.model.bilm import BiLM

    weights = lively(tiny(head=len(WORDS)), vocabulary=WORDS)
    vectors = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32) * 20
    expected = np.stack([definition.log_probabilities(weights.arrays, vector) for vector in vectors.astype(np.float64)])
    head = Softmax(weights.arrays["head.weight"], weights.arrays["head.bias"])
    found = np.stack([head.log_probabilities(vector) for vector in vectors])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        found = BiLM.from_weights(weights).head(torch.from_numpy(vectors)).log_softmax(dim=-1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.exp(expected).sum(axis=1), 1.0)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_module_gives_back_the_weights_it_was_built_from(name):
    from elmofire.model.bilm import BiLM

    weights = lively(replace(CONFIGS[name], head=9), vocabulary=WORDS)
    given = BiLM.from_weights(weights).weights()
    assert given.config == weights.config
    assert list(given.arrays) == list(weights.arrays)
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(given.arrays[name], array)
