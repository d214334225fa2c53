"""A model that TensorFlow trained and evaluated: its perplexities, and what its substitutes are worth."""

import json

import h5py
import numpy as np
import pytest
from models import DEVICES, FIXTURES, needs_shared

from elmofire import LanguageModel
from elmofire.formats.config import BACKWARD, FORWARD, BilmConfig, EncoderConfig, tensor_shapes
from elmofire.formats.weights import Weights
from elmofire.text.vocabulary import read_vocabulary

pytestmark = needs_shared


def trained() -> Weights:
    """The checkpoint's variables under our names, in our shapes and gate order."""
    options = json.loads((FIXTURES / "tf_checkpoint/options.json").read_text())
    lstm, cnn = options["lstm"], options["char_cnn"]
    config = BilmConfig(
        encoder=EncoderConfig(
            width=lstm["projection_dim"],
            filters=tuple(map(tuple, cnn["filters"])),
            character_dim=cnn["embedding"]["dim"],
            max_characters=cnn["max_characters_per_token"],
            activation=cnn["activation"],
            highways=cnn["n_highway"],
        ),
        layers=lstm["n_layers"],
        cells=lstm["dim"],
        projection=lstm["projection_dim"],
        head=options["n_tokens_vocab"],
    )
    with h5py.File(FIXTURES / "train_steps/start.hdf5") as file:
        arrays = {name: _converted(file["variable/lm"], name, config) for name in tensor_shapes(config)}
    return Weights(config=config, arrays=arrays, vocabulary=read_vocabulary(FIXTURES / "bilm-tf/train/vocab.txt"))


def _converted(variables: h5py.Group, name: str, config: BilmConfig) -> np.ndarray:
    part = name.split(".")
    if part[0] in (FORWARD, BACKWARD):
        cell = variables[f"RNN_{int(part[0] == BACKWARD)}/rnn/multi_rnn_cell/cell_{part[1]}/lstm_cell"]
        if part[2] == "weight_hr":
            return cell["projection/kernel"][()].T
        packed = cell["bias" if part[2] == "bias" else "kernel"][()]
        i, g, f, o = np.split(packed, 4, axis=-1)
        ours = np.concatenate([i, f, g, o], axis=-1)
        if part[2] == "bias":
            return ours
        inputs = packed.shape[0] - config.projection
        return (ours[:inputs] if part[2] == "weight_ih" else ours[inputs:]).T.copy()
    letter = "W" if part[-1] == "weight" else "b"
    theirs = {
        "head": f"softmax/{letter}",
        "characters": "char_embed",
        "convolutions": f"CNN/{letter}_cnn_{part[2] if len(part) > 2 else ''}",
        "highways": f"CNN_high_{part[2] if len(part) > 2 else ''}/{letter}_{'carry' if 'gate' in part else 'transform'}",
        "projection": f"CNN_proj/{letter}_proj",
    }[part[0] if part[0] == "head" else part[1]]
    array = variables[theirs][()]
    if part[0] == "head" or part[1] == "characters" or array.ndim == 1:
        return array
    return array[0].T.copy() if part[1] == "convolutions" else array.T.copy()


def on(device: str) -> LanguageModel:
    """On the CPU engine, or on torch."""
    return LanguageModel(trained(), device=device)


def text() -> list[list[str]]:
    return [line.split() for line in (FIXTURES / "bilm-tf/train/data.txt").read_text().splitlines()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("lanes", "perplexity", "events"), [(1, 11.760264, 139), (2, 12.254067, 110)])
def test_lanes_give_the_perplexity_that_2018s_evaluation_gave(device, lanes, perplexity, events):
    found = on(device).perplexity(text(), lanes=lanes)
    assert found.mean == pytest.approx(perplexity, rel=1e-5)
    assert found.events == events
    assert found.mean == pytest.approx((found.forward * found.backward) ** 0.5, rel=1e-9)


def test_both_directions_together_find_the_true_word_more_often_than_either_alone():
    lm = on("cpu")
    hits = dict.fromkeys(("forward", "backward", "both"), 0)
    for tokens in text():
        for position, token in enumerate(tokens):
            for direction in hits:
                hits[direction] += token in [
                    word for word, _ in lm.substitutes(tokens, position, top=10, direction=direction)
                ]
    print(hits, sum(map(len, text())))
    assert hits["both"] > max(hits["forward"], hits["backward"])
