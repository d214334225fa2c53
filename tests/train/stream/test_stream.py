"""A stream goes on exactly from each of its positions, and ranks and parts share out the same updates."""

import json
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train.stream.made_corpora import made_corpus
from train.stream.slow_reading import recipe, same, texts

from elmofire.errors import DataError, InputError
from elmofire.train.stream.stream import open_stream

WAYS = [
    {"text": text, **reading}
    for text in ("same", "different")
    for reading in (
        {"reading": "sentences"},
        {"reading": "lanes", "steps": 5, "reset": True},
        {"reading": "lanes", "steps": 3},
    )
]


def through_json(position):
    """As a checkpoint keeps it: plain values as JSON, arrays as arrays."""
    plain = {key: value for key, value in position.items() if not isinstance(value, np.ndarray)}
    arrays = {key: value.copy() for key, value in position.items() if isinstance(value, np.ndarray)}
    assert all(array.dtype == np.int64 for array in arrays.values())
    return {**json.loads(json.dumps(plain)), **arrays}


@settings(max_examples=25, deadline=None)
@given(texts, st.sampled_from(WAYS))
def test_from_every_position_the_stream_goes_on_as_it_did(tmp_path_factory, text, way):
    corpus = made_corpus(tmp_path_factory.mktemp("corpus"), text)
    chosen = recipe(softmax="sampled", **way)
    whole = list(islice(open_stream(corpus, chosen, directions=2).updates(), 9))
    positions = [through_json(update.position) for update in whole]
    again = open_stream(corpus, chosen, directions=2)
    for after, position in enumerate(positions):
        rest = whole[after + 1 :]
        assert all(map(same, islice(again.updates(position), len(rest)), rest))
    assert [update.number for update in whole] == list(range(9))
    assert all(one.epoch < other.epoch for one, other in pairwise(whole))


@settings(max_examples=25, deadline=None)
@given(
    texts, st.sampled_from(WAYS), st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.sampled_from([1, 6, 32])
)
def test_ranks_and_parts_share_the_same_updates_evenly(
    tmp_path_factory, text, way, world, parts, row_multiple, tokens_a_row
):
    """Whatever their numbers are: they need not divide an update's rows, and there may be more of them than rows."""
    corpus = made_corpus(tmp_path_factory.mktemp("corpus"), text)
    chosen = recipe(tokens=10 * tokens_a_row, softmax="sampled", **way)
    whole = open_stream(corpus, chosen, directions=2, row_multiple=row_multiple)
    options = {"world": world, "parts": parts, "row_multiple": row_multiple}
    ranks = [open_stream(corpus, chosen, directions=2, rank=rank, **options) for rank in range(world)]
    for update, *shares in islice(zip(whole.updates(), *(rank.updates() for rank in ranks), strict=True), 5):
        batches = [batch for share in shares for batch in share.parts]
        assert len(batches) == world * parts
        (together,) = update.parts
        # Of fewer rows than there are shares, the first rank has one: it writes the log.
        filled = [-(-number * together.targets.shape[2] // len(batches)) for number in range(len(batches) + 1)]
        assert filled[1] > 0
        shares_of = np.diff(filled).tolist()
        assert max(shares_of) - min(shares_of) <= 1
        for name in ("targets", "resets"):
            if getattr(together, name) is not None:
                own = [getattr(batch, name)[:, :, :n] for batch, n in zip(batches, shares_of, strict=True)]
                assert (np.concatenate(own, axis=2) == getattr(together, name)).all()
        own = [batch.words[batch.inputs[:, :, :n]] for batch, n in zip(batches, shares_of, strict=True)]
        assert (np.concatenate(own, axis=2) == together.words[together.inputs]).all()
        for batch, n in zip(batches, shares_of, strict=True):
            assert (batch.targets[:, :, n:] == -1).all(), "what fills a part up predicts nothing"
            assert batch.kind == batches[0].kind
            assert (batch.kind.steps, batch.kind.rows) in ranks[0].shapes()
        for share in shares:
            assert same(share._replace(parts=[]), update._replace(parts=[]))


def test_one_direction_reads_as_the_first_of_two(tmp_path):
    corpus = made_corpus(tmp_path, [[[3, 4, 5], [6], [7, 8]]])
    for way in WAYS:
        both, one = (open_stream(corpus, recipe(**way), directions=directions) for directions in (2, 1))
        for two, alone in islice(zip(both.updates(), one.updates(), strict=True), 6):
            assert alone.parts[0].targets.shape[0] == 1
            assert (alone.parts[0].targets[0] == two.parts[0].targets[0]).all()


def test_another_split_is_read_as_if_it_were_the_training_text(tmp_path):
    text, others = [[[3, 4, 5], [6], [7, 8]]], [[[9]], [[10, 11], [12]]]
    corpus = made_corpus(tmp_path / "both", text, heldout=others)
    alone = open_stream(made_corpus(tmp_path / "alone", others), recipe(), directions=2)
    found = open_stream(corpus, recipe(), directions=2, split=corpus.heldout["heldout"])
    assert (found.tokens_per_epoch, open_stream(corpus, recipe(), directions=2).tokens_per_epoch) == (7, 9)
    assert all(map(same, islice(found.updates(), 8), alone.updates()))


def test_negatives_are_drawn_for_each_direction_and_at_most_the_vocabulary(tmp_path):
    corpus = made_corpus(tmp_path, [[[3, 4]]])
    update = next(open_stream(corpus, recipe(softmax="sampled", samples=8192), directions=2).updates())
    assert [sorted(ids.tolist()) for ids, _ in update.negatives] == [list(range(30))] * 2
    assert next(open_stream(corpus, recipe(softmax="full"), directions=2).updates()).negatives == []


def test_what_cannot_be_is_refused(tmp_path):
    corpus = made_corpus(tmp_path / "some", [[[3, 4]]])
    with pytest.raises(InputError, match="no rank 2 among 2"):
        open_stream(corpus, recipe(), directions=2, rank=2, world=2)
    with pytest.raises(InputError, match="one direction or two, not 3"):
        open_stream(corpus, recipe(), directions=3)
    with pytest.raises(DataError, match="has no train text"):
        open_stream(made_corpus(tmp_path / "none", []), recipe(), directions=2)
