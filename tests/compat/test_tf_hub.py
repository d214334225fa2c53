"""TF-Hub's output names: what each holds, and both ways to call."""

from dataclasses import replace

import numpy as np
import pytest
from models import lively, tiny

from elmofire import Embedder, InputError, ModelError, save_weights
from elmofire.compat.tf_hub import Module, outputs
from elmofire.formats.weights import LearnedMix

TOKENS = [["the", "cat", "sat"], ["why"], []]


@pytest.fixture
def elmo():
    return Embedder(lively(tiny()))


def test_every_output_is_what_its_name_says(elmo):
    found = outputs(elmo, TOKENS)
    assert list(found) == ["word_emb", "lstm_outputs1", "lstm_outputs2", "elmo", "default"]
    for row, layers in enumerate(elmo.embed(TOKENS, layers="all")):
        tokens = layers.shape[1]
        expected = {"word_emb": layers[0][:, :6], "lstm_outputs1": layers[1], "lstm_outputs2": layers[2]}
        for name, array in {**expected, "elmo": layers.mean(axis=0)}.items():
            np.testing.assert_allclose(found[name][row, :tokens], array, rtol=1e-5, atol=2e-6)
            assert not found[name][row, tokens:].any()
        pooled = layers.mean(axis=0).mean(axis=0) if tokens else np.zeros(12)
        np.testing.assert_allclose(found["default"][row], pooled, rtol=1e-5, atol=2e-6)
    assert all(array.dtype == np.float32 for array in found.values())


def test_a_learned_mix_is_used(elmo):
    found = outputs(elmo, TOKENS, mix=LearnedMix(name="task", weights=(0.1, 0.3, 0.5), gamma=1.7))
    expected = 1.7 * elmo.embed(TOKENS, layers=[0.1, 0.3, 0.5])[0]
    np.testing.assert_allclose(found["elmo"][0], expected, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(found["default"][0], expected.mean(axis=0), rtol=1e-5, atol=2e-6)


def test_other_depths_and_no_sentences_have_their_shapes():
    deep = Embedder(lively(tiny(layers=4)))
    assert [name for name in outputs(deep, TOKENS) if name.startswith("lstm")] == [
        f"lstm_outputs{k}" for k in range(1, 5)
    ]
    none = outputs(deep, [])
    assert none["elmo"].shape == (0, 0, 12)
    assert none["default"].shape == (0, 12)


class TestModule:
    @pytest.fixture
    def module(self, tmp_path):
        mixes = (LearnedMix(name="hub", weights=(0.0, 1.0, 2.0), gamma=0.5),)
        save_weights(replace(lively(tiny()), mixes=mixes), tmp_path / "model")
        return Module(tmp_path / "model")

    def test_strings_and_tokens_give_the_same(self, module):
        strings = module(["the cat sat", "why", ""])
        padded = [["the", "cat", "sat"], ["why", "", ""], ["", "", ""]]
        calls = [
            module(tokens=padded, sequence_len=[3, 1, 0]),
            module({"tokens": padded, "sequence_len": np.array([3, 1, 0])}, signature="tokens", as_dict=True),
            module.signatures["tokens"](tokens=np.array(padded, dtype=bytes), sequence_len=[3, 1, 0]),
            module.signatures["default"](["the cat sat", "why", ""]),
        ]
        for found in calls:
            for name, array in strings.items():
                np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(module(["the cat sat", "why", ""], as_dict=False), strings["default"])

    def test_the_models_own_mix_is_used(self, module):
        elmo = Embedder(lively(tiny()))
        expected = 0.5 * elmo.embed([["the", "cat"]], layers=[0.0, 1.0, 2.0])[0]
        np.testing.assert_allclose(module(["the cat"])["elmo"][0], expected, rtol=1e-5, atol=2e-6)

    def test_mistakes_are_named(self, module):
        with pytest.raises(InputError, match="one string was given"):
            module("the cat")
        with pytest.raises(InputError, match="either strings or tokens"):
            module()
        with pytest.raises(InputError, match="sequence_len"):
            module(tokens=[["a"]])
        with pytest.raises(InputError, match=r"sequence_len\[0\] is 2"):
            module(tokens=[["a"]], sequence_len=[2])
        with pytest.raises(InputError, match="belongs to 'default'"):
            module(["a"], signature="tokens")
        with pytest.raises(InputError, match="the inputs have words"):
            module({"words": [["a"]]})


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (
            "https://tfhub.dev/google/elmo/3",
            "is google/elmo-3 in the catalogue.*\nhint: .*elmofire models get google/elmo-3$",
        ),
        ("https://tfhub.dev/google/elmo/2", "not in the catalogue; the nearest there is .*elmo/3, of google/elmo-3\n"),
    ],
)
def test_an_address_names_the_catalogues_model(address, said, tmp_path, monkeypatch):
    monkeypatch.setenv("ELMOFIRE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=said):
        Module(address)
