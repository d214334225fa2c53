"""Every way of training learns a small text by heart; means of weights, and what is done about updates that are not finite."""

import math
from itertools import count, islice

import numpy as np
import pytest
import torch

from elmofire import LanguageModel
from elmofire.errors import RecipeError
from elmofire.formats import load_weights
from elmofire.train.corpus.prepare import prepare
from elmofire.train.files.checkpoints import Checkpoints
from elmofire.train.files.log import read_log
from elmofire.train.recipes import find_recipe
from elmofire.train.run.loop import CHECKPOINTS, train
from elmofire.train.run.ranks import Ranks
from elmofire.train.run.session import Session
from elmofire.train.settings import Recipe
from elmofire.train.step.forward import BatchLoss

TYPES = 120
SMALL = ["model.cells=48", "model.projection=24", "encoder.filters=[[1,8],[2,16],[3,24]]", "encoder.max_characters=8"]
QUICK = [
    "optimizer.name=adamw",
    "optimizer.rate=0.03",
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
LANES = [
    "data.reading=lanes",
    "data.steps=10",
    "data.order=shuffled",
]  # from a zero state nobody knows what came before
ONE_HOT = ["encoder.one_hot=true", "encoder.character_dim=261"]
SAMPLED, FULL = "loss.samples=30", "loss.softmax=full"
WAYS = {
    "sentences, sampled": ("small", 220, [*QUICK, *ELMO, SAMPLED]),
    "sentences, full": ("small", 150, [*QUICK, *ELMO, FULL]),
    "lanes, sampled": ("small", 180, [*QUICK, *ELMO, *LANES, SAMPLED]),
    "lanes, full, different text": ("small", 150, [*QUICK, *ELMO, *LANES, FULL, "data.text=different"]),
    "lanes with resets, sampled": ("small", 180, [*QUICK, *ELMO, *LANES, SAMPLED, "data.reset=true"]),
    "lanes with resets, full": ("small", 130, [*QUICK, *ELMO, *LANES, FULL, "data.reset=true"]),
    # These three as their recipes say, with their own optimizers and dropout.
    "original": ("original", 400, [*ELMO, SAMPLED, "epochs=none", "data.steps=10", "batch_tokens=160"]),
    "cnn-big-lstm": ("cnn-big-lstm", 540, ["encoder.width=24", "encoder.character_dim=8", SAMPLED, "batch_tokens=160"]),
    "kim2016": ("kim2016", 250, [*KIM, "train.batch_tokens=175", "train.evaluate_every=50"]),
    "without a highway": ("kim2016", 200, [*QUICK, *KIM, *LANES, "encoder.highways=0"]),
    "with a plain layer": ("kim2016", 320, [*QUICK, *KIM, *LANES, "encoder.highway=mlp", "optimizer.rate=0.02"]),
    "with a gate of its own": ("kim2016", 200, [*QUICK, *KIM, *LANES, "encoder.highway=learned"]),
    "on one-hot characters": ("kim2016", 220, [*QUICK, *KIM, *LANES, *ONE_HOT, "optimizer.rate=0.02"]),
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
        pretokenized=True,
        held_out_texts={"same": [str(folder / "same.txt")]},
        processes=1,
    )


def recipe(what: str, updates: int, settings: list[str]) -> Recipe:
    """At a tiny size; where the settings do not say otherwise, evaluated at its end alone."""
    return find_recipe(what, [*SMALL, f"train.updates={updates}", "train.evaluate_every=1000", *settings])


def evaluations(run) -> list[float]:
    return [record["mean"] for record in read_log(run) if record["kind"] == "evaluation"]


@pytest.mark.parametrize("way", WAYS)
def test_a_text_is_learned_by_heart(corpus, tmp_path, way):
    settings = recipe(*WAYS[way])
    run = train(settings, data=corpus.folder, output=tmp_path / "run", device="cpu")
    records = read_log(run)
    assert not [record for record in records if record["kind"] == "note"]  # samples were not too many
    assert {record["softmax"] for record in records if record["kind"] == "train"} == {settings.loss.softmax}
    found = min(evaluations(run))
    assert found < 3
    assert LanguageModel.load(run).perplexity(text()).mean == pytest.approx(found, rel=1e-4)


def test_the_mean_of_the_weights_is_what_is_evaluated_and_kept(corpus, tmp_path):
    settings = recipe("small", 6, [*QUICK, *ELMO, FULL, "optimizer.average=0.8"])
    session = Session(settings, corpus, Ranks(0, 1, torch.device("cpu")))
    history = []
    for update in islice(session.stream.updates(), 6):
        session.stepper(update, session.schedule.rate(update.number))
        history.append(
            {
                name: tensor.double().numpy()
                for name, tensor in session.parameters.named(session.parameters.weights).items()
            }
        )
    share = np.array([0.8 ** (5 - number) for number in range(6)])
    share /= share.sum()
    run = train(settings, data=corpus.folder, output=tmp_path / "run", device="cpu")
    kept = load_weights(run)
    for name, last in history[-1].items():
        mean = sum(part * weights[name] for part, weights in zip(share, history, strict=True))
        np.testing.assert_allclose(kept.arrays[name], mean, rtol=1e-4, atol=1e-6, err_msg=name)
        assert np.abs(mean - last).max() > 1e-3, name
    assert LanguageModel.load(run).perplexity(text()).mean == pytest.approx(evaluations(run)[0], rel=1e-4)


@pytest.fixture
def poison(monkeypatch):
    """Make the gradients of some updates, numbered from 0, NaN."""
    plain = BatchLoss.forward

    def poisoned(numbers):
        calls = count()

        def forward(self, *given):
            objective, losses, state = plain(self, *given)
            return objective * (math.nan if next(calls) in numbers else 1.0), losses, state

        monkeypatch.setattr(BatchLoss, "forward", forward)

    return poisoned


POISONED = [
    *QUICK,
    *ELMO,
    *LANES,
    FULL,
    "train.log_every=1",
    "train.checkpoint_every=1",
    "optimizer.schedule=constant",
]


def weights_after(run, update: int) -> dict[str, torch.Tensor]:
    checkpoint = Checkpoints(run / CHECKPOINTS).newest()
    assert checkpoint is not None
    assert checkpoint.update == update
    return {
        name: tensor for name, tensor in checkpoint.tensors.items() if name.split("/")[0] in ("weights", "first_moment")
    }


def test_updates_that_are_not_finite_are_skipped_and_reported(corpus, tmp_path, poison):
    poison({2, 5, 6})
    run = train(recipe("small", 9, POISONED), data=corpus.folder, output=tmp_path / "run", device="cpu")
    lines = [record for record in read_log(run) if record["kind"] == "train"]
    assert [line["skipped"] for line in lines] == [0, 0, 1, 1, 1, 2, 3, 3, 3]
    assert [line["update"] for line in lines if line["norm"] is None] == [3, 6, 7]
    assert math.isfinite(evaluations(run)[0])


def test_the_loss_of_a_line_is_that_of_the_updates_in_which_it_is_finite(corpus, tmp_path, monkeypatch):
    plain = BatchLoss.forward
    lines = {}
    for every in (1, 3):
        calls = count()

        def forward(self, *given, calls=calls):
            objective, losses, state = plain(self, *given)
            bad = math.nan if next(calls) in (1, 5, 6, 7, 8) else 1.0
            return objective * bad, losses * bad, state

        monkeypatch.setattr(BatchLoss, "forward", forward)
        settings = recipe("small", 9, [*POISONED, f"train.log_every={every}"])
        run = train(settings, data=corpus.folder, output=tmp_path / str(every), device="cpu")
        lines[every] = [record for record in read_log(run) if record["kind"] == "train"]
    each = [line["loss"] for line in lines[1]]
    assert [number for number, loss in enumerate(each) if loss is None] == [1, 5, 6, 7, 8]
    first, second, last = (line["loss"] for line in lines[3])
    assert first == pytest.approx((each[0] + each[2]) / 2)  # all updates have as many tokens
    assert second == pytest.approx((each[3] + each[4]) / 2)
    assert last is None
    assert (tmp_path / "3" / "run.svg").is_file()


def test_a_run_that_cannot_go_on_stops_with_its_weights_as_they_were(corpus, tmp_path, poison):
    untouched = train(recipe("small", 4, POISONED), data=corpus.folder, output=tmp_path / "short", device="cpu")
    poison(range(4, 100))
    said = r"update 14: .* last 10 updates were not finite.*weights are as before them\nhint: a lower optimizer.rate"
    with pytest.raises(RecipeError, match=said):
        train(recipe("small", 50, POISONED), data=corpus.folder, output=tmp_path / "run", device="cpu")
    skipped = [record["skipped"] for record in read_log(tmp_path / "run") if record["kind"] == "train"]
    assert skipped == [0] * 4 + list(range(1, 11))
    expected, found = weights_after(untouched, 4), weights_after(tmp_path / "run", 13)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_a_run_that_diverges_ends_and_keeps_its_best_model(corpus, tmp_path):
    steep = [
        "optimizer.name=sgd",
        "optimizer.clip=none",
        "optimizer.rate=2000",
        "optimizer.warmup=2000",
        "loss.softmax=full",
    ]
    settings = recipe(
        "small",
        400,
        [*QUICK, *ELMO, *steep, "optimizer.schedule=constant", "train.evaluate_every=10", "train.log_every=5"],
    )
    with pytest.raises(
        RecipeError,
        match=r"the held-out perplexity is .* the run has diverged; its best model is kept\nhint: .* lower",
    ):
        train(settings, data=corpus.folder, output=tmp_path / "run", device="cpu")
    *before, last = evaluations(tmp_path / "run")
    assert last > 10 * min(before)
    assert all(later <= 10 * min(before[: number + 1]) for number, later in enumerate(before))
    kept = load_weights(tmp_path / "run").training["held_out"]["mean"]
    assert kept == pytest.approx(min(before))
    assert (tmp_path / "run/run.svg").read_text(encoding="utf-8").endswith("</svg>\n")
