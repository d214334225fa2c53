"""Lanes as 2018's trainer filled them."""

from itertools import cycle, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import FIXTURES, needs_shared
from train.stream.made_corpora import made_corpus
from train.stream.slow_reading import cells, recipe, shown, slow_lanes, texts

from elmofire.errors import InputError
from elmofire.train.stream.stream import open_stream


def lanes_recipe(lanes, steps, **changes):
    return recipe(**{"reading": "lanes", "steps": steps, "tokens": lanes * steps, **changes})


def check(corpus, settings, text, lanes, steps, updates=8):
    stream = open_stream(corpus, settings, directions=2)
    expected = zip(*(slow_lanes(cycle(text), lanes, steps, backward=way) for way in (False, True)), strict=True)
    for update, directions in zip(islice(stream.updates(), updates), expected, strict=False):
        (batch,) = update.parts
        assert batch.carried
        assert update.tokens == (lanes * steps, lanes * steps)
        for direction, rows in enumerate(directions):
            assert cells(batch, direction) == [shown(row, len(corpus.vocabulary)) for row in rows]


@settings(max_examples=40, deadline=None)
@given(texts, st.integers(1, 5), st.integers(1, 7))
def test_in_the_text_s_order_every_cell_is_that_of_a_slow_loop(tmp_path_factory, text, lanes, steps):
    corpus = made_corpus(tmp_path_factory.mktemp("corpus"), text)
    flat = [sentence for shard in text for sentence in shard]
    check(corpus, lanes_recipe(lanes, steps, order="text"), flat, lanes, steps)


def test_the_worked_example(tmp_path):
    """One lane, four steps, the sentences "a b" and "c"."""
    corpus = made_corpus(tmp_path, [[[3, 4], [5]]])
    stream = open_stream(corpus, lanes_recipe(1, 4, order="text", reset=True), directions=2)
    first, second = (update.parts[0] for update in islice(stream.updates(), 2))
    assert cells(first, 0) == [[(0, 3), (3, 4), (4, 1), (0, 5)]]
    assert cells(first, 1) == [[(1, 4), (4, 3), (3, 0), (1, 5)]]
    assert cells(second, 0)[0][0] == (5, 1)
    assert cells(second, 1)[0][0] == (5, 0)
    assert first.resets is not None
    assert first.resets[:, :, 0].tolist() == [[True, False, False, True]] * 2


@needs_shared
def test_the_lanes_of_the_original_trainer_s_six_steps(tmp_path):
    lines = (FIXTURES / "bilm-tf" / "train" / "data.txt").read_text(encoding="utf-8").splitlines()
    ids: dict[str, int] = {}
    text = [[ids.setdefault(word, len(ids) + 3) for word in line.split()] for line in lines]
    corpus = made_corpus(tmp_path, [text], words=len(ids) + 3, vocabulary=len(ids) + 3)
    settings = lanes_recipe(2, 10, order="text")
    assert open_stream(corpus, settings, directions=2).shapes() == [(10, 2)]
    assert open_stream(corpus, settings, directions=2).tokens_per_epoch == 139
    check(corpus, settings, text, 2, 10, updates=14)


def sentences_taken(stream, text, direction, count):
    """Numbers of sentences, which are told by their first word read, in the order in which lanes took them."""
    taken = []
    for update in islice(stream.updates(), count):
        for row in cells(update.parts[0], direction):
            taken += [target for word, target in row if word == (direction and 1)]
    return [[sentence[-direction] for sentence in text].index(target) for target in taken]


@pytest.mark.parametrize("way", ["same", "different"])
def test_epoch_after_epoch_every_sentence_is_taken_once_in_a_new_order(tmp_path, way):
    random = np.random.default_rng(0)
    text = [[number, *random.integers(40, 45, number % 5), number] for number in range(3, 33)]
    corpus = made_corpus(tmp_path, [text[:11], text[11:]], words=45, vocabulary=45)
    stream = open_stream(corpus, lanes_recipe(4, 6, text=way), directions=2)
    orders = []
    for direction in (0, 1):
        taken = sentences_taken(stream, text, direction, 40)
        epochs = [taken[first : first + 30] for first in (0, 30, 60)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(30))] * 3
        assert len({tuple(epoch) for epoch in epochs}) == 3
        orders.append(epochs)
    assert (orders[0] == orders[1]) == (way == "same")


def test_state_is_reset_where_a_sentence_begins_and_nowhere_else(tmp_path):
    corpus = made_corpus(tmp_path, [[[5] * (number % 6) for number in range(1, 30)]])
    stream = open_stream(corpus, lanes_recipe(4, 5, reset=True, text="different"), directions=2)
    for update in islice(stream.updates(), 20):
        (batch,) = update.parts
        assert batch.resets is not None
        words = batch.words[batch.inputs]
        assert (batch.resets == (words < 2)).all(), "only boundaries are read first"


def test_lanes_are_rounded_to_the_multiple_unless_they_are_fewer(tmp_path):
    corpus = made_corpus(tmp_path, [[[3, 4]]])
    found = [
        open_stream(corpus, lanes_recipe(lanes, 5), directions=1, row_multiple=8).shapes()
        for lanes in (1, 4, 6, 8, 11, 12, 19, 20)
    ]
    assert [rows for ((_, rows),) in found] == [1, 4, 6, 8, 8, 16, 16, 24]


def test_a_position_of_other_lanes_is_refused(tmp_path):
    corpus = made_corpus(tmp_path, [[[3, 4]]])
    update = next(open_stream(corpus, lanes_recipe(2, 5), directions=2).updates())
    with pytest.raises(InputError, match="1 x 2 lanes, not of 1 x 3"):
        next(open_stream(corpus, lanes_recipe(3, 5), directions=2).updates(update.position))
