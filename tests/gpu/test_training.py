"""Training on a GPU: graphs, exact resume, memory."""

import os
import random
from itertools import islice

import numpy as np
import pytest
import torch

from elmofire.train.corpus.prepare import prepare
from elmofire.train.corpus.reader import Corpus
from elmofire.train.files.checkpoints import Checkpoints
from elmofire.train.files.log import read_log
from elmofire.train.recipes import find_recipe
from elmofire.train.run.loop import train
from elmofire.train.run.ranks import joined
from elmofire.train.run.session import Session
from elmofire.train.step.staging import Shape, Staging

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")]

SMALL = (
    "model.cells=64",
    "model.projection=32",
    "encoder.width=32",
    "encoder.filters=[[1, 8], [2, 8], [3, 16]]",
    "lengths=[4, 8, 12]",
    "batch_tokens=1024",
    "samples=64",
    "log_every=1",
    "minutes=none",
)
WAYS = {
    "sentences": ("reading=sentences",),
    "lanes": ("reading=lanes", "steps=8"),
    "resets": ("reading=lanes", "steps=8", "reset=true"),
    "few lanes": ("reading=lanes", "steps=8", "batch_tokens=160"),
    "lanes in parts": ("reading=lanes", "steps=8", "accumulate=2"),
    "different text": ("text=different",),
    "full": ("softmax=full",),
    "parts": ("accumulate=2", "average=0.9"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sentences of up to 30 words, so that some are longer than the grid."""
    folder = tmp_path_factory.mktemp("corpus")
    choose = random.Random(3)
    words = [f"word{number}" for number in range(400)]
    starts = [(choose.randrange(300), choose.randint(1, 30)) for _ in range(3000)]
    lines = [" ".join(words[start : start + size]) for start, size in starts]  # each word says which comes next
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "held.txt").write_text("\n".join(lines[:100]), encoding="utf-8")
    prepare([str(folder / "text.txt")], folder / "corpus", pretokenized=True, held_out_texts={"held": [str(folder / "held.txt")]}, processes=1)  # fmt: skip
    return folder / "corpus"


def recipe_of(*settings):
    return find_recipe("small", [*SMALL, *settings])


def stepped(corpus, recipe, updates, *, graphs):
    """Weights and losses after some updates, with graphs or without."""
    with joined("cuda") as ranks:
        session = Session(recipe, Corpus.open(corpus), ranks)
        if not graphs:
            session.stepper._gpu._pool = None
        stream = session.stream.updates()
        for _ in range(updates):
            session.stepper(next(stream), 1e-2)
        torch.cuda.synchronize()
        return session.parameters.weights.clone(), session.stepper.losses.clone(), session.stepper.tokens.clone()


@pytest.fixture
def repeating():
    yield
    torch.use_deterministic_algorithms(False)  # what a deterministic run has asked for


@pytest.mark.parametrize("way", WAYS)
def test_graphs_give_the_same_bits_as_plain_steps(corpus, way, repeating):
    recipe = recipe_of(*WAYS[way], "updates=30", "deterministic=true")
    with_graphs, without = (stepped(corpus, recipe, 30, graphs=graphs) for graphs in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(with_graphs, without, strict=True))


@pytest.mark.parametrize("way", ["sentences", "lanes"])
def test_an_interrupted_run_ends_with_the_same_bits(corpus, way, tmp_path, repeating):
    recipe = recipe_of(*WAYS[way], "updates=24", "deterministic=true", "checkpoint_every=5", "evaluate_every=8")

    def stop(record):
        if record["update"] == 17:
            raise ConnectionError

    train(recipe, data=corpus, output=tmp_path / "whole", device="cuda")
    with pytest.raises(ConnectionError):
        train(recipe, data=corpus, output=tmp_path / "stopped", device="cuda", show=stop)
    train(recipe, data=corpus, output=tmp_path / "stopped", device="cuda")
    one, other = (Checkpoints(tmp_path / name / "checkpoints").newest() for name in ("whole", "stopped"))
    assert one.update == other.update == 24
    assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    logs = [
        [{key: value for key, value in record.items() if key != "clock"} for record in read_log(tmp_path / name)]
        for name in ("whole", "stopped")
    ]
    assert logs[0] == logs[1]


def test_steps_are_those_of_the_cpu_each_with_its_batch_and_its_rate(corpus):
    """More of them than there are buffers for batches on their way."""
    recipe = recipe_of(
        "updates=7",
        "precision=float32",
        "accumulate=1",
        "optimizer.name=sgd",
        "dropout.input=0",
        "dropout.layers=0",
        "dropout.output=0",
    )
    found = []
    for device in ("cpu", "cuda"):
        with joined(device) as ranks:
            session = Session(recipe, Corpus.open(corpus), ranks)
            steps = []
            for number, update in enumerate(islice(open_like(session).updates(), 7)):
                session.stepper(update, (1e-2, 0.0, 3e-2)[number % 3])
                now = session.stepper.losses, session.stepper.norm, session.parameters.weights
                steps += [tensor.to("cpu", copy=True) for tensor in now]
            found.append(steps)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


def test_batches_land_ahead_and_are_taken_in_their_order_from_a_place_that_grows(corpus):
    with joined("cuda") as ranks:
        session = Session(recipe_of("updates=9"), Corpus.open(corpus), ranks)
        staging, taken = Staging(ranks.device), []
        updates = sorted(islice(session.stream.updates(), 9), key=lambda update: update.parts[0].inputs.size)
        for number, update in enumerate(updates):
            (batch,) = update.parts
            shape = Shape.of(batch, update, words=len(batch.words))
            if not staging.fits(shape):
                staging.reserve(shape.numbers)
            torch.cuda._sleep(20_000_000)  # the device is behind: batches wait for their turn
            staging.send(batch, update, shape, number / 8)
            tensors, per_token = staging.take(shape)
            taken.append([tensor.clone() for tensor in (tensors.inputs, tensors.targets, tensors.words, per_token)])
            taken[-1].append(staging.rate.clone())
            staging.taken()
        torch.cuda.synchronize()
    for number, (update, found) in enumerate(zip(updates, taken, strict=True)):
        (batch,) = update.parts
        for array, tensor in zip((batch.inputs, batch.targets, batch.words), found, strict=False):
            np.testing.assert_array_equal(array, tensor.cpu().numpy())
        assert found[3].tolist() == pytest.approx([1 / tokens for tokens in update.tokens])
        assert found[4].item() == number / 8


def open_like(session):
    """The stream as a GPU cuts it, whose rows are multiples of a tile."""
    from elmofire.train.stream.stream import open_stream

    return open_stream(session.corpus, session.recipe, directions=2, row_multiple=128)


def test_tokens_are_counted_on_the_device_as_the_stream_counts_them_and_only_with_finite_losses(corpus):
    with joined("cuda") as ranks:
        session = Session(recipe_of("updates=9", "text=different", "softmax=full"), Corpus.open(corpus), ranks)
        updates, tokens = session.stream.updates(), np.zeros(2, np.int64)
        assert session.stepper.tokens.tolist() == [0, 0]  # what was made ready left nothing
        for number in range(9):
            update = next(updates)
            if number == 6:
                session.bilm.arrays()["head.bias"].data.fill_(float("nan"))
            session.stepper(update, 1e-2)
            tokens += np.array(update.tokens) * (number < 6)
        assert session.stepper.tokens.tolist() == tokens.tolist()
        assert session.stepper.losses.isfinite().all()
        assert int(session.stepper.skipped) == 3


def test_fewer_lanes_than_a_tile_are_as_many_as_is_asked_for(corpus):
    with joined("cuda") as ranks:
        session = Session(recipe_of(*WAYS["few lanes"], "updates=1"), Corpus.open(corpus), ranks)
        assert session.stream.shapes() == [(8, 20)]


def test_as_many_graphs_are_made_as_memory_is_kept_for(corpus):
    for way in ("sentences", "parts", "lanes in parts"):
        with joined("cuda") as ranks:
            session = Session(recipe_of(*WAYS[way], "updates=1"), Corpus.open(corpus), ranks)
            made = [key for key, graph in session.stepper._gpu._graphs.items() if graph is not None]
            assert len(made) - made.count("optimizer") == session.stream.number_of_ways


def test_a_run_leaves_the_gpu_as_it_was(corpus, tmp_path):
    torch.cuda.manual_seed(7)
    before = torch.cuda.get_rng_state(), torch.cuda.current_device(), os.environ.get("PYTORCH_ALLOC_CONF")
    train(recipe_of("updates=4"), data=corpus, output=tmp_path / "run", device="cuda")
    after = torch.cuda.get_rng_state(), torch.cuda.current_device(), os.environ.get("PYTORCH_ALLOC_CONF")
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_it_learns(corpus, tmp_path):
    train(
        recipe_of("updates=200", "rate=0.01", "evaluate_every=200"), data=corpus, output=tmp_path / "run", device="cuda"
    )
    losses = [record["loss"] for record in read_log(tmp_path / "run") if record["kind"] == "train"]
    assert np.mean(losses[-20:]) < np.mean(losses[:5]) - 0.5
