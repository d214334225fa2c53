"""Every way of training learns a small text by heart; means of weights, and what is done about updates that are not finite."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from elmofire import LanguageModel
from elmofire.errors import RecipeError
from elmofire.formats import load_weights
from elmofire.train.corpus.prepare import Settings, prepare
from elmofire.train.recipes import find_recipe
from elmofire.train.run.checkpoints import Checkpoints
from elmofire.train.run.log import read_log
from elmofire.train.run.loop import CHECKPOINTS, pretrain
from elmofire.train.run.processes import Ranks
from elmofire.train.run.session import Session
from elmofire.train.settings import Recipe
from elmofire.train.step.forward import BatchLoss

TYPES = 120
SMALL = ["model.cells=48", "model.projection=24", "encoder.filters=[[1,8],[2,16],[3,24]]", "encoder.max_characters=8"]
QUICK = [
    "optimizer.name=adamw",
    "optimizer.rate=0.02",
    "optimizer.clip=1.0",
    "optimizer.warmup=5",
    "optimizer.schedule=linear",
    "loss.factor=1.0",
    "dropout.input=0.0",
    "dropout.layers=0.0",
    "dropout.output=0.0",
    "train.batch_tokens=160",
    "train.precision=float32",
]
ELMO = ["model.layers=2", "encoder.width=24", "encoder.character_dim=8", "encoder.highways=1"]
KIM = ["model.projection=48", "encoder.width=48", "encoder.character_dim=8"]
LANES = ["data.reading=lanes", "data.steps=10"]
ONE_HOT = ["encoder.one_hot=true", "encoder.character_dim=261"]
WAYS = {
    "sentences, sampled": ("small", ELMO, ["loss.samples=30"]),
    "sentences, full": ("small", ELMO, ["loss.softmax=full"]),
    "lanes, sampled": ("small", ELMO, [*LANES, "loss.samples=30"]),
    "lanes, full, different text": ("small", ELMO, [*LANES, "loss.softmax=full", "data.text=different"]),
    "lanes with resets, sampled": ("small", ELMO, [*LANES, "data.reset=true", "loss.samples=30"]),
    "lanes with resets, full": ("small", ELMO, [*LANES, "data.reset=true", "loss.softmax=full"]),
    "cnn-big-lstm": ("cnn-big-lstm", ELMO, [*LANES, "loss.samples=30"]),
    "kim2016": ("kim2016", KIM, LANES),
    "kim2016 without a highway": ("kim2016", KIM, [*LANES, "encoder.highways=0"]),
    "kim2016 with a plain layer": ("kim2016", KIM, [*LANES, "encoder.highway=mlp"]),
    "kim2016 with a gate of its own": ("kim2016", KIM, [*LANES, "encoder.highway=learned"]),
    "kim2016 on one-hot characters": ("kim2016", [*KIM, *ONE_HOT], LANES),
}


def text() -> list[list[str]]:
    """Sentences of random words: only who has learned them knows what follows."""
    random = np.random.default_rng(11)
    words = [f"{a}{b}{c}" for a in "bdfgkm" for b in "aeiou" for c in "lnrs"]
    drawn = [*random.permutation(words), *random.choice(words, 180)]
    assert len(set(drawn)) == TYPES
    return [drawn[first : first + 12] for first in range(0, len(drawn), 12)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Its held-out text is the training text."""
    folder = tmp_path_factory.mktemp("learning")
    for name in ("train.txt", "same.txt"):
        (folder / name).write_text("".join(f"{' '.join(sentence)}\n" for sentence in text()))
    return prepare(
        [str(folder / "train.txt")],
        folder / "corpus",
        Settings(pretokenized=True),
        held_out_texts={"same": [str(folder / "same.txt")]},
        processes=1,
    )


def recipe(what: str, model: list[str], settings: list[str], updates: int = 150) -> Recipe:
    once = [f"train.updates={updates}", f"train.evaluate_every={updates}", "train.log_every=50"]
    return find_recipe(what, [*SMALL, *QUICK, *model, *settings, *once])


@pytest.mark.parametrize("way", WAYS)
def test_a_text_is_learned_by_heart(corpus, tmp_path, way):
    settings = recipe(*WAYS[way])
    run = pretrain(settings, data=corpus.folder, output=tmp_path / "run", device="cpu")
    records = read_log(run)
    assert not [record for record in records if record["kind"] == "note"]  # samples were not too many
    assert {record["softmax"] for record in records if record["kind"] == "train"} == {settings.loss.softmax}
    (evaluation,) = (record for record in records if record["kind"] == "evaluation")
    print(way, [r.get("loss") for r in records], evaluation["mean"], [r["clock"].get("seconds") for r in records if "clock" in r])
    assert evaluation["mean"] < 3
    assert LanguageModel.load(run).perplexity(text()).mean == pytest.approx(evaluation["mean"], rel=1e-4)
