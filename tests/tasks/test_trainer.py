"""The loop that trains task models, with a model whose score is told."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmofire import RecipeError
from elmofire.tasks.trainer import TrainerSettings, batches_by_length, fit


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 9), st.integers(0, 5))
def test_every_sentence_is_in_one_batch_beside_others_of_nearly_its_length(lengths, size, seed):
    lengths = np.array(lengths)
    batches = list(batches_by_length(lengths, size, np.random.default_rng(seed)))
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert sorted(map(len, batches))[1:] == [size] * (len(batches) - 1)
    spans = [(lengths[batch].min(), lengths[batch].max()) for batch in batches]
    for one, other in itertools.combinations(spans, 2):  # either may be the one of shorter sentences, within a tenth
        assert one[1] * 0.9 <= other[0] * 1.1 or other[1] * 0.9 <= one[0] * 1.1


def told(scores: list[float], **settings) -> tuple[list, list, torch.nn.Linear]:
    """Train until these scores have stopped it: the epochs, the weight after each, and the model."""
    torch.manual_seed(1)
    model, remaining, seen = torch.nn.Linear(3, 1), iter(scores), []

    def score() -> float:
        seen.append(model.weight.detach().clone())
        assert not model.training
        return next(remaining)

    def loss(numbers):
        assert model.training
        return model(torch.from_numpy(numbers)[:, None].float().expand(-1, 3)).square().mean()

    epochs = fit(model, np.arange(1, 11), loss, score, TrainerSettings(batch=4, **settings), seed=1)
    return epochs, seen, model


def test_training_ends_when_patience_does_with_the_best_weights():
    epochs, seen, model = told([1.0, 5.0, 3.0, 5.0, 4.0, 9.0], epochs=50, patience=3)
    assert [epoch.score for epoch in epochs] == [1.0, 5.0, 3.0, 5.0, 4.0]
    assert torch.equal(model.weight, seen[1])  # the first of equals
    assert not torch.equal(model.weight, seen[-1])


def test_training_ends_after_its_epochs_and_lowers_the_loss():
    epochs, seen, model = told([1.0, 2.0, 3.0], epochs=3, patience=3)
    assert len(epochs) == 3
    assert epochs[2].loss < epochs[0].loss
    assert torch.equal(model.weight, seen[2])


def test_scores_of_zero_still_leave_a_trained_model():
    _, seen, model = told([0.0, 0.0, 0.0], epochs=3, patience=2)
    assert torch.equal(model.weight, seen[0])


def test_settings_that_train_nothing_are_refused():
    with pytest.raises(RecipeError, match="patience is 0"):
        TrainerSettings(patience=0)
