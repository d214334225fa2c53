"""Whole sentences: each once in an epoch, whole, from a zero state, on the grid."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train.stream.made_corpora import made_corpus
from train.stream.slow_reading import cells, pairs, recipe, shown, slow_sentences, texts

from elmofire.train.stream.batch import Kind
from elmofire.train.stream.stream import open_stream

GRID = (2, 4, 6)


def epoch_of(corpus, settings, number=0, **options):
    stream = open_stream(corpus, settings, directions=2, **options)
    first = stream.updates_per_epoch * number
    return list(islice(stream.updates({"update": first}), stream.updates_per_epoch))


def sentences_read(updates, direction):
    """The cells of every sentence that was read, its windows joined."""
    read, rows = [], []
    for update in updates:
        (batch,) = update.parts
        here = cells(batch, direction)
        if not batch.carried:
            read += rows
            rows = [[] for _ in here]
        assert len(here) == len(rows), "windows follow each other in the same rows"
        for row, more in zip(rows, here, strict=True):
            assert None not in more[: sum(cell is not None for cell in more)], "padding comes last"
            row += [cell for cell in more if cell is not None]
    return [tuple(row) for row in read + rows if row]


@settings(max_examples=40, deadline=None)
@given(texts, st.sampled_from(["same", "different"]), st.integers(0, 2), st.integers(5, 40), st.integers(1, 3))
def test_every_sentence_is_read_whole_and_once_in_each_epoch_and_direction(
    tmp_path_factory, text, way, epoch, tokens, multiple
):
    corpus = made_corpus(tmp_path_factory.mktemp("corpus"), text)
    updates = epoch_of(corpus, recipe(tokens=tokens, text=way), epoch, row_multiple=multiple)
    for direction in (0, 1):
        expected = Counter(tuple(shown(pairs(one, backward=direction == 1))) for shard in text for one in shard)
        assert Counter(sentences_read(updates, direction)) == expected
    assert updates[-1].epoch == epoch + 1


@settings(max_examples=40, deadline=None)
@given(texts, st.integers(5, 40), st.integers(1, 3))
def test_in_the_text_s_order_updates_are_those_of_a_slow_loop(tmp_path_factory, text, tokens, multiple):
    corpus = made_corpus(tmp_path_factory.mktemp("corpus"), text)
    stream = open_stream(corpus, recipe(tokens=tokens, order="text"), directions=2, row_multiple=multiple)
    flat = [sentence for shard in text for sentence in shard]
    expected = slow_sentences(flat, GRID, tokens, multiple)
    assert stream.updates_per_epoch == len(expected)
    assert stream.tokens_per_epoch == sum(len(sentence) + 1 for sentence in flat)
    for update, (steps, rows, window, members) in zip(stream.updates(), expected * 2, strict=False):
        (batch,) = update.parts
        assert batch.inputs.shape == batch.targets.shape == (2, steps, rows)
        assert batch.carried == (window > 0)
        assert batch.resets is None
        for direction in (0, 1):
            wanted = [shown(pairs(flat[member], backward=direction == 1)) for member in members]
            wanted = [row[window * steps : (window + 1) * steps] for row in wanted] + [[]] * (rows - len(members))
            assert cells(batch, direction) == [row + [None] * (steps - len(row)) for row in wanted]
        assert update.tokens == tuple((batch.targets >= 0).sum(axis=(1, 2)))
        assert batch.words.tolist() == sorted(set(batch.words[batch.inputs].ravel().tolist()))
        assert (batch.words.dtype, batch.inputs.dtype, batch.targets.dtype) == (np.int64, np.int32, np.int32)


def varied_text(count, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(3, 40, random.integers(1, 16)).tolist() for _ in range(count)]


def test_epochs_and_seeds_have_orders_of_their_own(tmp_path):
    corpus = made_corpus(tmp_path, [varied_text(150), varied_text(150, 1)])
    orders = [
        tuple(sentences_read(epoch_of(corpus, recipe(seed=seed), epoch), 0)) for seed in (1, 2) for epoch in (0, 1)
    ]
    assert len(set(orders)) == 4
    assert orders[0] == tuple(sentences_read(epoch_of(corpus, recipe(seed=1)), 0))
    shapes = [update.parts[0].inputs.shape[1] for update in epoch_of(corpus, recipe())]
    assert shapes != sorted(shapes), "groups of all buckets are shuffled among each other"


@pytest.mark.parametrize(("way", "alike"), [("same", True), ("different", False)])
def test_both_directions_read_the_same_rows_or_different_ones_of_the_same_bucket(tmp_path, way, alike):
    corpus = made_corpus(tmp_path, [[[number % 27 + 3, number // 27 + 3, 3] for number in range(300)]])
    updates = epoch_of(corpus, recipe(tokens=40, text=way))
    forward, backward = (sentences_read(updates, direction) for direction in (0, 1))
    turned = [tuple((1 if a == 0 else a, 0 if b == 1 else b) for b, a in row[::-1]) for row in backward]
    equal = [
        [word for word, _ in one[1:]] == [word for word, _ in other[1:]]
        for one, other in zip(forward, turned, strict=True)
    ]
    assert all(equal) if alike else sum(equal) < 10


def test_directions_that_read_different_sentences_have_tokens_of_their_own(tmp_path):
    updates = epoch_of(made_corpus(tmp_path, [varied_text(200)]), recipe(tokens=40, text="different"))
    for update in updates:
        assert update.tokens == tuple((update.parts[0].targets >= 0).sum(axis=(1, 2)))
    assert any(forward != backward for forward, backward in (update.tokens for update in updates))
    assert len({sum(tokens) for tokens in zip(*(update.tokens for update in updates), strict=True)}) == 1


def test_shapes_are_those_that_come_with_the_most_frequent_first(tmp_path):
    corpus = made_corpus(tmp_path, [varied_text(400)])
    stream = open_stream(corpus, recipe(), directions=2, row_multiple=2, parts=2)
    came = Counter(
        batch.inputs.shape[1:]
        for update in islice(stream.updates(), stream.updates_per_epoch)
        for batch in update.parts
    )
    assert stream.shapes() == sorted(came, key=lambda shape: -came[shape])
    assert all(rows % 2 == 0 for _, rows in came), "filled up to the tile"


def test_the_most_words_of_a_sample_of_everything_are_those_of_the_epoch(tmp_path):
    corpus = made_corpus(tmp_path, [varied_text(100)])
    stream = open_stream(corpus, recipe(), directions=2)
    most: dict[Kind, int] = {}
    for update in islice(stream.updates(), stream.updates_per_epoch):
        kind = update.parts[0].kind
        most[kind] = max(most.get(kind, 0), len(update.parts[0].words))
    assert stream.most_words(sample=10**6) == most
    few = stream.most_words(sample=6)
    assert few.keys() == most.keys()  # none is left out, however rare
    assert all(0 < count <= most[kind] for kind, count in few.items())
