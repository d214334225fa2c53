"""The character-aware language model that ELMo builds on (Kim et al. 2016), at its own size: read from files, embedded and scored."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from lm.reference import SENTENCES, WORDS, walked
from models import DEVICES, ONE_HOT, lively, one_way

from elmofire import BiLM, Embedder, LanguageModel, load_weights, save_weights
from elmofire.engine.batches import token_ids
from elmofire.formats.config import BilmConfig, EncoderConfig
from elmofire.formats.initial import initial_weights

KIM2016 = BilmConfig(
    encoder=EncoderConfig(
        width=525,
        filters=tuple((width, 25 * width) for width in range(1, 7)),
        character_dim=15,
        activation="tanh",
        highways=1,
        projection=False,
    ),
    directions=("forward",),
    cells=300,
    projection=300,
    lstm_projection=False,
    cell_clip=None,
    projection_clip=None,
    skip_connections=False,
    head=len(WORDS),
)
VARIANTS = {
    "none": {"highways": 0},
    "mlp": {"highway": "mlp"},
    "tied": {},
    "learned": {"highway": "learned"},
    "one-hot": {"one_hot": True, "character_dim": 261},
}


def variant(name):
    return replace(KIM2016, encoder=replace(KIM2016.encoder, **VARIANTS[name]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_of_2016_is_saved_and_loaded_and_embeds_and_scores(tmp_path, name, device):
    weights = lively(variant(name), vocabulary=WORDS)
    save_weights(weights, tmp_path / "model")
    found = load_weights(tmp_path / "model")
    assert (found.config, list(found.arrays)) == (weights.config, list(weights.arrays))
    elmo = Embedder(found, device=device)
    assert [vectors.shape for vectors in elmo.embed(SENTENCES, "top")] == [(len(s), 300) for s in SENTENCES]
    assert elmo.embed(SENTENCES, 0)[0].shape == (7, 525)
    lm = LanguageModel.load(tmp_path / "model", device=device)
    [score] = lm.score([["the", "cat"]])
    np.testing.assert_allclose(score.forward, walked(weights, ["the", "cat"], "forward"), rtol=1e-5, atol=1e-5)
    perplexity = lm.perplexity(SENTENCES)
    assert (score.backward, perplexity.backward) == (None, None)
    assert perplexity.mean == perplexity.forward > 1


def test_the_kinds_have_the_numbers_of_parameters_that_their_maps_say():
    maps = {name: variant(name).parameters - variant("none").parameters for name in ("mlp", "tied", "learned")}
    assert maps == {name: k * (525 * 525 + 525) for k, name in enumerate(("mlp", "tied", "learned"), start=1)}
    one_hot = sum((261 - 15) * width * 25 * width for width in range(1, 7)) - 261 * 15
    assert variant("one-hot").parameters - variant("tied").parameters == one_hot


def test_one_hot_characters_are_what_a_table_of_the_identity_gives():
    weights = lively(one_way(**ONE_HOT))
    config = replace(weights.config, encoder=replace(weights.config.encoder, one_hot=False))
    table = replace(
        weights, config=config, arrays={**weights.arrays, "encoder.characters": np.eye(261, dtype=np.float32)}
    )
    for device in DEVICES:
        both = [Embedder(each, device=device).embed(SENTENCES, "top") for each in (weights, table)]
        for found, expected in zip(*both, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_one_hot_characters_are_not_trained_while_all_that_is_stored_is():
    bilm = BiLM.from_weights(lively(one_way(encoder_highway="learned", **ONE_HOT)))
    assert not any("characters" in name for name in (*bilm.state_dict(), *dict(bilm.named_parameters())))
    ids = torch.from_numpy(token_ids(["the", "cat"], bilm.config, None, bilm.alphabet).astype(np.int64))
    layers, _ = bilm(ids, torch.tensor([[0, 1]]), torch.tensor([2]))
    layers[-1].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in bilm.arrays().values())


@pytest.mark.parametrize("kind", ["tied", "learned"])
def test_gated_highways_start_by_carrying(kind):
    filters = 525
    config = variant(kind)
    bilm = BiLM.from_weights(initial_weights(config, seed=2))
    x = torch.randn(50, filters, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        carried = torch.stack([(highway(x) * x).sum() / x.square().sum() for highway in bilm.encoder.highways])
    assert 0.75 < carried.item() < 0.95
