"""Negatives are drawn as TensorFlow's log-uniform sampler draws them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmofire.errors import InputError
from elmofire.train.stream.negatives import draw_negatives
from elmofire.train.stream.randomness import Purpose, generator


def chances(vocabulary):
    return np.array([(math.log(c + 2) - math.log(c + 1)) / math.log(vocabulary + 1) for c in range(vocabulary)])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 300).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))),
    st.integers(0, 99),
    st.integers(0, 1),
)
def test_draws_until_enough_are_distinct_are_counted(sizes, update, direction):
    vocabulary, samples = sizes
    random = generator(7, Purpose.NEGATIVES, update, direction)
    picked: list[int] = []
    tries = 0
    while len(picked) < samples:
        tries += 1
        drawn = math.floor(math.exp(random.random() * math.log(vocabulary + 1))) - 1
        if drawn not in picked:
            picked.append(drawn)
    ids, counted = draw_negatives(vocabulary, samples, 7, update, direction)
    assert (ids.tolist(), counted) == (picked, tries)
    assert ids.dtype == np.int32


def test_single_draws_have_the_log_uniform_distribution():
    draws = [int(draw_negatives(20, 1, 3, update, 0)[0][0]) for update in range(4000)]
    expected = 4000 * chances(20)
    found = np.bincount(draws, minlength=20)
    assert ((found - expected) ** 2 / expected).sum() < 52  # 19 degrees of freedom: passed by one seed in 20,000


def test_ids_come_as_often_as_is_expected():
    drawn = [draw_negatives(400, 60, 3, update, 1) for update in range(1500)]
    share = np.bincount(np.concatenate([ids for ids, _ in drawn]), minlength=400) / 1500
    expected = np.mean([1 - (1 - chances(400)) ** tries for _, tries in drawn], axis=0)
    assert abs(share.sum() - expected.sum()) < 0.5
    spread = np.sqrt(expected * (1 - expected) / 1500)
    assert (np.abs(share - expected) < 5 * spread + 1e-9).all()


def test_updates_directions_and_seeds_draw_apart():
    drawn = {tuple(draw_negatives(1000, 20, *numbers)[0]) for numbers in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))}
    assert len(drawn) == 4


@pytest.mark.parametrize("vocabulary", [1, 2, 500])
def test_the_whole_vocabulary_can_be_drawn(vocabulary):
    ids, tries = draw_negatives(vocabulary, vocabulary, 1, 0, 0)
    assert sorted(ids.tolist()) == list(range(vocabulary))
    assert tries >= vocabulary


def test_more_than_the_vocabulary_is_refused():
    with pytest.raises(InputError, match="11 distinct words cannot be drawn from a vocabulary of 10"):
        draw_negatives(10, 11, 1, 0, 0)
