"""Updates against a slow trainer, gradients against differences, and parts against the whole."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, islice

import numpy as np
import pytest
import torch
from models import ONE_HOT, lively, one_way, tiny
from train.step.slow_training import Cell, SlowModel, detached
from train.stream.made_corpora import made_corpus
from train.stream.slow_reading import cells, pairs, shown, slow_lanes, slow_sentences

from elmofire.kernels import LstmState, lstmp
from elmofire.model.bilm import BiLM
from elmofire.train.run.ranks import Ranks
from elmofire.train.run.session import Session, spellings_of
from elmofire.train.settings import (
    DataSettings,
    DropoutSettings,
    LossSettings,
    OptimizerSettings,
    Recipe,
    TrainSettings,
)
from elmofire.train.step import forward
from elmofire.train.step.forward import BatchLoss, Tensors
from elmofire.train.step.full_softmax import full_softmax_loss
from elmofire.train.step.stepper import halves
from elmofire.train.stream.stream import open_stream

ALONE = Ranks(0, 1, torch.device("cpu"))
LANES, STEPS, GRID, TOKENS, VOCABULARY, UPDATES = 4, 5, (3, 6), 24, 30, 7
RATE, FACTOR = 0.3, 2.0
DATA = {
    "sentences": DataSettings(lengths=GRID, order="text"),
    "lanes": DataSettings(reading="lanes", steps=STEPS, order="text"),
    "lanes with resets": DataSettings(reading="lanes", steps=STEPS, order="text", reset=True),
}
SOFTMAX = {"full": LossSettings(softmax="full", factor=FACTOR), "sampled": LossSettings(samples=9, factor=FACTOR)}
NO_DROPOUT = DropoutSettings(input=0.0, layers=0.0, output=0.0)
MODELS = {
    "elmo": tiny(cell_clip=1.0, projection_clip=1.0),
    "forward only": one_way(encoder_highway="learned", forget_bias=0.0),
    "one-hot": tiny(**ONE_HOT, encoder_highway="mlp", encoder_activation="tanh", skip_connections=False),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return made_corpus(tmp_path_factory.mktemp("forward"), [text()], vocabulary=VOCABULARY)


def text() -> list[list[int]]:
    """Sentences that fit the grid and others that need up to four windows of it; one is empty."""
    random = np.random.default_rng(5)
    lengths = [4, 17, 1, 0, 2, 5, 14, 12, 3, 20, 6, 7]
    return [random.integers(3, 40, size).tolist() for size in lengths]


def recipe(reading: str, softmax: str, **changes) -> Recipe:
    settings = {
        "data": DATA[reading],
        "loss": SOFTMAX[softmax],
        "optimizer": OptimizerSettings(name="sgd", rate=RATE, clip=None, schedule="constant"),
        "dropout": NO_DROPOUT,
        "train": TrainSettings(updates=UPDATES, batch_tokens=LANES * STEPS if "lanes" in reading else TOKENS),
    }
    return Recipe(**{**settings, **changes})


def session(recipe: Recipe, corpus, model="elmo") -> Session:
    config = replace(MODELS[model], head=VOCABULARY)
    return Session(recipe, corpus, ALONE, start=lively(config, seed=4, vocabulary=corpus.vocabulary))


def slow_updates(reading: str, *, backward: bool) -> Iterator[tuple[list[list[Cell]], bool]]:
    """The rows of each update, and whether their state goes on."""
    if reading == "sentences":
        epoch = slow_sentences(text(), GRID, TOKENS, 1)
        for steps, _, window, members in cycle(epoch):
            rows = [pairs(text()[member], backward=backward)[window * steps :][:steps] for member in members]
            yield [shown(row, VOCABULARY) for row in rows], window > 0
    else:
        for rows in slow_lanes(cycle(text()), LANES, STEPS, backward=backward):
            yield [shown(row, VOCABULARY) for row in rows], True


@pytest.mark.parametrize(
    ("reading", "softmax", "model"),
    [
        *((reading, softmax, "elmo") for reading in DATA for softmax in SOFTMAX),
        ("lanes", "full", "forward only"),
        ("sentences", "sampled", "one-hot"),
    ],
)
def test_updates_are_those_of_a_slow_trainer(corpus, reading, softmax, model):
    made = session(recipe(reading, softmax), corpus, model)
    config = made.bilm.config
    weights = made.parameters.named(made.parameters.weights)
    spellings = corpus.character_ids(np.arange(corpus.words), config.encoder.max_characters)
    slow = SlowModel(config, {name: array.numpy() for name, array in weights.items()}, spellings)
    ways = [slow_updates(reading, backward=direction == "backward") for direction in config.directions]
    states = [[] for _ in ways]
    carried = 0
    for update, *directions in islice(zip(made.stream.updates(), *ways, strict=True), UPDATES):
        made.stepper.losses.zero_()
        made.stepper(update, RATE)
        sums = []
        for d, (rows, goes_on) in enumerate(directions):
            before = states[d] if goes_on and states[d] else [slow.zero_state() for _ in rows]
            negatives = update.negatives[d] if softmax == "sampled" else None
            read = [
                slow.losses(config.directions[d], row, state, negatives, reset=DATA[reading].reset)
                for row, state in zip(rows, before, strict=True)
            ]
            sums.append(torch.stack([total for total, _ in read]).sum())
            states[d] = [detached(state) for _, state in read]
            carried += goes_on
        assert update.tokens == tuple(sum(len(row) for row in rows) for rows, _ in directions)
        assert made.stepper.losses.tolist() == pytest.approx(torch.stack(sums).tolist(), rel=1e-5)
        slow.descend(torch.stack(sums).mean() * (FACTOR / update.tokens[0]), RATE)
    assert carried >= 3 * len(ways)
    for name, array in slow.arrays.items():
        np.testing.assert_allclose(weights[name].numpy(), array.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_where_directions_read_different_sentences_each_mean_is_over_its_own_tokens(tmp_path):
    random = np.random.default_rng(3)
    text = [random.integers(3, 40, size).tolist() for size in random.integers(0, 6, 60)]
    corpus = made_corpus(tmp_path, [text], vocabulary=VOCABULARY)
    made = session(recipe("sentences", "full", data=DataSettings(lengths=GRID, text="different")), corpus)
    weights = made.parameters.named(made.parameters.weights)
    config = made.bilm.config
    spellings = corpus.character_ids(np.arange(corpus.words), config.encoder.max_characters)
    slow = SlowModel(config, {name: array.numpy() for name, array in weights.items()}, spellings)
    apart = 0
    for update in islice(made.stream.updates(), 4):
        made.stepper.losses.zero_()
        made.stepper.tokens.zero_()
        made.stepper(update, RATE)
        rows = [cells(update.parts[0], d) for d in (0, 1)]
        tokens = [sum(cell is not None for row in direction for cell in row) for direction in rows]
        apart += tokens[0] != tokens[1]
        means = [
            sum(slow.losses(name, row, slow.zero_state(), None, reset=False)[0] for row in direction) / count
            for name, direction, count in zip(config.directions, rows, tokens, strict=True)
        ]
        found = made.stepper.losses / made.stepper.tokens
        assert found.tolist() == pytest.approx([mean.item() for mean in means], rel=1e-5)
        slow.descend((means[0] + means[1]) / 2 * FACTOR, RATE)
    assert apart
    for name, array in slow.arrays.items():
        np.testing.assert_allclose(weights[name].numpy(), array.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def objective(reading: str, softmax: str, corpus) -> tuple[BatchLoss, Callable[[], torch.Tensor]]:
    """In float64, of a batch that begins with some state."""
    settings = recipe(reading, softmax)
    weights = lively(replace(MODELS["elmo"], head=VOCABULARY), seed=4, vocabulary=corpus.vocabulary)
    bilm = BiLM.from_weights(weights).double()
    loss = BatchLoss(bilm, spellings_of(corpus, weights), settings.loss, NO_DROPOUT, precision="float32").double()
    update = next(islice(open_stream(corpus, settings, directions=2).updates(), 2, None))
    (batch,) = update.parts
    tensors = Tensors(
        *(torch.from_numpy(array) for array in (batch.words, batch.inputs, batch.targets)),
        torch.tensor(np.stack([ids for ids, _ in update.negatives])) if update.negatives else None,
        torch.tensor([tries for _, tries in update.negatives]) if update.negatives else None,
        None if batch.resets is None else torch.from_numpy(batch.resets),
    )
    torch.manual_seed(0)
    hidden, memory = bilm.zero_state(batch.inputs.shape[2])
    state = LstmState(torch.randn_like(hidden) / 2, torch.randn_like(memory) / 2)
    return loss, lambda: loss(tensors, state, 1 / torch.tensor(update.tokens, dtype=torch.float64))[0]


@pytest.mark.parametrize("softmax", SOFTMAX)
@pytest.mark.parametrize("reading", DATA)
def test_gradients_are_differences(corpus, reading, softmax):
    loss, value = objective(reading, softmax, corpus)
    value().backward()
    step = 1e-6
    for name, parameter in loss.bilm.arrays().items():
        way, start = torch.randn_like(parameter), parameter.detach().clone()
        assert parameter.grad is not None
        values = []
        for sign in (1, -1):
            parameter.data = start + sign * step * way
            values.append(value().item())
        parameter.data = start
        slope = (parameter.grad * way).sum().item()
        assert slope != 0, name
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("softmax", SOFTMAX)
@pytest.mark.parametrize("reading", DATA)
def test_parts_add_up_to_the_whole(corpus, reading, softmax):
    """Carried states, too: each part has its own rows of them."""
    ends, losses = [], []
    for parts in (1, 2, 3, 4):  # of four lanes, and of numbers of sentences that these need not divide
        settings = recipe(reading, softmax)
        made = session(replace(settings, train=replace(settings.train, accumulate=parts)), corpus)
        tokens = 0
        for update in islice(made.stream.updates(), UPDATES):
            assert len(update.parts) == parts
            made.stepper(update, RATE)
            tokens += update.tokens[0]
        ends.append(made.parameters.weights)
        losses.append(made.stepper.losses)
        assert made.stepper.tokens.tolist() == [tokens, tokens]
    for end, loss in zip(ends[1:], losses[1:], strict=True):
        torch.testing.assert_close(end, ends[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(loss, losses[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("reading", ["lanes", "sentences"])
def test_halves_of_batches_add_up_to_the_whole_and_carry_its_state(corpus, reading):
    whole, halved = (session(recipe(reading, "full"), corpus) for _ in range(2))
    carried = 0
    for update in islice(whole.stream.updates(), 40):
        carried += update.parts[0].carried
        parts = [part for batch in update.parts for part in halves(batch)]
        assert len(parts) == 2  # so both are of the rows that the only part has
        for made in (whole, halved):
            made.parameters.zero_gradients()
        whole.stepper._gradients(update)
        for part in parts:
            halved.stepper._add_gradients(part, update, 0, 1, last=True)
        torch.testing.assert_close(halved.parameters.gradients, whole.parameters.gradients)
        torch.testing.assert_close(halved.stepper.losses, whole.stepper.losses)
        assert torch.equal(halved.stepper.tokens, whole.stepper.tokens)
        if update.parts[0].kept:
            there = torch.from_numpy((update.parts[0].targets >= 0).any(axis=1))  # (D, B)
            for one, other in zip(halved.stepper.state, whole.stepper.state, strict=True):
                rows = (tensor[:, :, : there.shape[1]].transpose(1, 2)[there] for tensor in (one, other))
                torch.testing.assert_close(*rows)
    assert carried


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_in_bfloat16_the_loss_is_nearly_the_same(corpus, softmax):
    losses, gradients = [], []
    for precision in ("float32", "bfloat16"):
        settings = recipe("lanes with resets", softmax)
        made = session(replace(settings, train=replace(settings.train, precision=precision)), corpus)
        made.stepper._gradients(next(made.stream.updates()))
        assert made.parameters.weights.dtype == torch.float32
        losses.append(made.stepper.losses)
        gradients.append(made.parameters.gradients)
    assert not torch.equal(*losses)
    torch.testing.assert_close(losses[1], losses[0], rtol=0.02, atol=0)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99


def test_dropout_falls_on_inputs_layers_and_outputs(corpus, monkeypatch):
    settings = recipe("lanes", "full", dropout=DropoutSettings(input=0.3, layers=0.2, output=0.6))
    made = session(replace(settings, train=replace(settings.train, batch_tokens=400)), corpus)
    seen = []

    def spied(inputs, *others, **options):
        seen.append((inputs.detach(), options["dropout"]))
        return lstmp(inputs, *others, **options)

    def tops(vectors, *others, **options):
        seen.append(vectors.detach())
        return full_softmax_loss(vectors, *others, **options)

    monkeypatch.setattr(forward, "lstmp", spied)
    monkeypatch.setattr(forward, "full_softmax_loss", tops)
    update = next(made.stream.updates())
    made.stepper(update, 0.0)
    made.loss.eval()
    made.stepper(update, 0.0)
    (inputs, between), outputs, (whole_inputs, no_dropout), whole_outputs = seen
    assert (between, no_dropout) == (0.2, 0.0)
    for dropped, whole, share in ((inputs, whole_inputs, 0.3), (outputs, None, 0.6)):
        assert (dropped == 0).float().mean() == pytest.approx(share, abs=0.05)
        if whole is not None:
            kept = dropped != 0
            torch.testing.assert_close(dropped[kept], whole[kept] / (1 - share))
    assert (whole_outputs != 0).all()
    # The boundary stands in many places, and each has a mask of its own.
    starts = torch.from_numpy(update.parts[0].inputs == 0)
    masks = {tuple(mask.tolist()) for mask in inputs[starts] == 0}
    assert len(masks) > 20


def test_masks_follow_from_the_seed_and_the_update(corpus):
    settings = recipe("lanes", "full", dropout=DropoutSettings())
    first = next(session(settings, corpus).stream.updates())

    def losses(update, seed=1):
        made = session(replace(settings, train=replace(settings.train, seed=seed)), corpus)
        made.stepper(update, RATE)
        return made.stepper.losses.tolist()

    assert losses(first) == losses(first)
    different = [losses(first), losses(first._replace(number=1)), losses(first, seed=2)]
    assert len({tuple(each) for each in different}) == 3


def test_a_loss_that_is_not_finite_leaves_neither_itself_nor_its_tokens_behind(corpus):
    made = session(recipe("sentences", "full"), corpus)
    updates = made.stream.updates()
    made.stepper(next(updates), RATE)
    before = made.stepper.losses.clone(), made.stepper.tokens.clone()
    with torch.no_grad():
        made.bilm.arrays()["backward.0.bias"].fill_(float("nan"))
    update = next(updates)
    made.stepper(update, RATE)
    assert made.stepper.losses[0] > before[0][0]  # the forward one is as good as ever
    assert made.stepper.tokens.tolist() == [int(before[1][0]) + update.tokens[0], int(before[1][1])]
    assert made.stepper.losses[1] == before[0][1]


def test_words_are_expected_as_often_as_their_chances_say():
    """Also the last of a large vocabulary, whose chances are nearly nothing."""
    words = 793_471
    ids = np.array([0, 1, 2, 3, 1000, words - 1])
    chances = np.log1p(1 / (ids + 1.0)) / np.log(words + 1.0)
    np.testing.assert_allclose(chances[:4], [0.051026, 0.029848, 0.021178, 0.016427], rtol=1e-4)
    found = forward._log_missed(words)[torch.from_numpy(ids)].double().numpy()
    np.testing.assert_allclose(-np.expm1(found), chances, rtol=1e-6)


def test_an_update_that_is_not_finite_changes_nothing(corpus):
    made = session(recipe("lanes", "full", optimizer=OptimizerSettings(rate=RATE, average=0.9)), corpus)
    updates = made.stream.updates()
    made.stepper(next(updates), RATE)
    before = [made.parameters.weights.clone(), *(tensor.clone() for tensor in made.optimizer.state().values())]
    for times in (1, 2):
        made.loss.factor = float("nan")
        made.stepper(next(updates), RATE)
        after = [made.parameters.weights, *made.optimizer.state().values()]
        assert [torch.equal(*pair) for pair in zip(before, after, strict=True)] == [True] * (len(after) - 1) + [False]
        assert int(made.optimizer.skipped) == int(made.stepper.skipped) == times
    made.loss.factor = FACTOR
    made.stepper(next(updates), RATE)
    assert (int(made.optimizer.skipped), int(made.stepper.skipped)) == (0, 2)
    assert not torch.equal(made.parameters.weights, before[0])
    assert made.parameters.weights.isfinite().all()
