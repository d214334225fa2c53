"""Training as TensorFlow did it: six steps of the trainer of 2018, and its sampled losses."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from models import FIXTURES, needs_shared, tiny

from elmofire import LanguageModel
from elmofire.formats import load_weights
from elmofire.formats.weights import Weights
from elmofire.model.bilm import BiLM
from elmofire.train.corpus.prepare import prepare
from elmofire.train.corpus.reader import Corpus
from elmofire.train.files.log import read_log
from elmofire.train.run.evaluate import evaluate
from elmofire.train.run.loop import train
from elmofire.train.run.ranks import Ranks
from elmofire.train.run.session import Session
from elmofire.train.settings import (
    DataSettings,
    DropoutSettings,
    LossSettings,
    OptimizerSettings,
    Recipe,
    TrainSettings,
)
from elmofire.train.step.forward import BatchLoss, Tensors

pytestmark = needs_shared

ALONE = Ranks(0, 1, torch.device("cpu"))
NO_DROPOUT = DropoutSettings(input=0.0, layers=0.0, output=0.0)
SIX_STEPS = Recipe(
    data=DataSettings(reading="lanes", steps=10, order="text"),
    loss=LossSettings(softmax="full", factor=10.0),
    optimizer=OptimizerSettings(name="adagrad", rate=0.2, clip=1.0, schedule="constant"),
    dropout=NO_DROPOUT,
    train=TrainSettings(updates=6, batch_tokens=20, precision="float32"),
)
LOSSES = [3.062922, 2.397136, 2.337899, 2.371603, 2.374643, 2.509816]
NORMS = [11.044, 6.350, 6.678, 6.103, 6.445, 5.911]


def text() -> list[list[str]]:
    return [line.split() for line in (FIXTURES / "bilm-tf/train/data.txt").read_text().splitlines()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """The text the checkpoint was trained on, with its vocabulary."""
    texts = FIXTURES / "bilm-tf/train"
    settings = {"pretokenized": True, "vocabulary": str(texts / "vocab.txt")}
    folder = tmp_path_factory.mktemp("train_steps") / "corpus"
    held_out = folder.with_name("heldout.txt")
    held_out.write_text((texts / "data.txt").read_text())
    return prepare(
        [str(texts / "data.txt")], folder, **settings, held_out_texts={"heldout": [str(held_out)]}, processes=1
    )


def checkpoint() -> Weights:
    return load_weights(FIXTURES / "tf_checkpoint", vocab=FIXTURES / "bilm-tf/train/vocab.txt")


def converted(theirs: h5py.Group) -> dict[str, np.ndarray]:
    """TensorFlow's variables, or what its optimizer keeps for them, under our names and in our shapes and order of gates."""
    arrays = {
        "encoder.characters": theirs["char_embed"][()],
        "encoder.projection.weight": theirs["CNN_proj/W_proj"][()].T,
        "encoder.projection.bias": theirs["CNN_proj/b_proj"][()],
        "head.weight": theirs["softmax/W"][()],
        "head.bias": theirs["softmax/b"][()],
    }
    for k in range(5):
        arrays[f"encoder.convolutions.{k}.weight"] = theirs[f"CNN/W_cnn_{k}"][0].T
        arrays[f"encoder.convolutions.{k}.bias"] = theirs[f"CNN/b_cnn_{k}"][()]
    for ours, name in (("gate", "carry"), ("transform", "transform")):
        arrays[f"encoder.highways.0.{ours}.weight"] = theirs[f"CNN_high_0/W_{name}"][()].T
        arrays[f"encoder.highways.0.{ours}.bias"] = theirs[f"CNN_high_0/b_{name}"][()]
    for number, direction in enumerate(("forward", "backward")):
        for k in range(2):
            cell = theirs[f"RNN_{number}/rnn/multi_rnn_cell/cell_{k}/lstm_cell"]
            kernel, bias = (
                np.concatenate([i, f, g, o])
                for i, g, f, o in (np.split(cell[name][()].T, 4) for name in ("kernel", "bias"))
            )
            arrays[f"{direction}.{k}.weight_ih"], arrays[f"{direction}.{k}.weight_hh"] = kernel[:, :8], kernel[:, 8:]
            arrays[f"{direction}.{k}.bias"] = bias
            arrays[f"{direction}.{k}.weight_hr"] = cell["projection/kernel"][()].T
    return arrays


def stored(file: str, kind: str) -> dict[str, np.ndarray]:
    with h5py.File(FIXTURES / "train_steps" / file) as opened:
        return converted(opened[f"{kind}/lm"])


def test_six_steps_end_where_the_original_trainer_did(corpus):
    session = Session(SIX_STEPS, corpus, ALONE, start=checkpoint())
    weights = session.parameters.named(session.parameters.weights)
    accumulators = session.parameters.named(session.optimizer.state()["accumulator"])
    start = stored("start.hdf5", "variable")
    assert weights.keys() == start.keys()
    for name, array in start.items():
        assert np.array_equal(weights[name].numpy(), array), name
    for name, array in stored("start.hdf5", "accumulator").items():
        accumulators[name].copy_(torch.from_numpy(array))
    losses, norms = [], []
    for _, update in zip(range(6), session.stream.updates(), strict=False):
        session.stepper.losses.zero_()
        session.stepper(update, session.schedule.rate(update.number))
        losses.append(float(session.stepper.losses.mean()) / update.tokens[0])
        norms.append(float(session.stepper.norm))
    np.testing.assert_allclose(losses, LOSSES, rtol=0, atol=1e-6)
    np.testing.assert_allclose(norms, NORMS, rtol=0, atol=6e-4)
    for found, kind in ((weights, "variable"), (accumulators, "accumulator")):
        for name, array in stored("after_6_steps.hdf5", kind).items():
            np.testing.assert_allclose(found[name].numpy(), array, rtol=0, atol=1e-6, err_msg=f"{kind} {name}")


def test_sampled_losses_are_tensorflows():
    with h5py.File(FIXTURES / "sampled_softmax.hdf5") as file:
        given = {name: torch.from_numpy(dataset[()]) for name, dataset in file.items()}
    bilm = BiLM(tiny(projection=8, head=50))
    assert bilm.head is not None
    bilm.head.weight.data, bilm.head.bias.data = given["W"], given["b"]
    loss = BatchLoss(bilm, torch.zeros(1, 13), LossSettings(), NO_DROPOUT, precision="float32")
    for ids, counts in (("labels", "true_expected_count"), ("sampled_ids", "sampled_expected_count")):
        np.testing.assert_allclose(-torch.expm1(17 * loss.log_missed[given[ids]]), given[counts], rtol=1e-6)

    def losses(inputs, targets):
        """Of batches (D, T, B)."""
        negatives = given["sampled_ids"].expand(len(targets), -1)
        no_words = torch.zeros(0, dtype=torch.int64)
        batch = Tensors(no_words, targets, targets, negatives, torch.full((len(targets),), 17), None)
        with torch.no_grad():
            return loss.losses(inputs, batch)

    # Each alone, as if it were a direction of its own; then sums over the steps and rows of two directions.
    each = losses(given["inputs"][:, None, None], given["labels"][:, None, None])
    np.testing.assert_allclose(each, given["losses"], rtol=0, atol=1e-6)
    sums = losses(given["inputs"].view(2, 5, 2, 8), given["labels"].view(2, 5, 2))
    np.testing.assert_allclose(sums, given["losses"].view(2, 10).sum(dim=1), rtol=0, atol=1e-5)


def test_the_checkpoint_goes_on_learning(corpus, tmp_path):
    longer = replace(SIX_STEPS, train=replace(SIX_STEPS.train, updates=60, evaluate_every=20, log_every=20))
    run = train(longer, data=corpus.folder, output=tmp_path / "run", device="cpu", start=checkpoint())
    records = read_log(run)
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert losses[0] < 2.6  # of the first steps; a fresh model begins at log 32 = 3.47
    assert losses == sorted(losses, reverse=True)
    found = [record["mean"] for record in records if record["kind"] == "evaluation"]
    before = LanguageModel(checkpoint()).perplexity(text()).mean
    assert before > found[0] > found[1] > found[2]
    assert LanguageModel.load(run).perplexity(text()).mean == pytest.approx(found[2], rel=1e-5)


def test_a_split_is_evaluated_as_the_language_model_does(corpus):
    """Words over the grid's last length included: its longest sentence goes through in windows."""
    session = Session(SIX_STEPS, corpus, ALONE, start=checkpoint())
    expected = LanguageModel(checkpoint()).perplexity(text())
    for lengths in (DataSettings().lengths, (7, 20)):
        recipe = replace(SIX_STEPS, data=DataSettings(lengths=lengths))
        found = evaluate(session.loss, corpus, corpus.heldout["heldout"], recipe, ALONE)
        assert found.perplexity == pytest.approx({"forward": expected.forward, "backward": expected.backward}, rel=1e-5)
        assert found.mean == pytest.approx(expected.mean, rel=1e-5)
        assert (found.events, found.unknown) == (expected.events, pytest.approx(expected.unknown))
