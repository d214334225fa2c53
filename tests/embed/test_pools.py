"""Pools against their definition, written as slow loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elmofire.engine.batches import make_pool, make_pools

SENTENCES = st.lists(st.integers(1, 12), min_size=1, max_size=12)


def numbered(lengths):
    """Sentences whose tokens are all different."""
    ends = np.cumsum(lengths)
    return [np.arange(end - length, end) for length, end in zip(lengths, ends, strict=True)]


@given(lengths=SENTENCES)
def test_rows_are_laid_out_step_by_step_longest_sentence_first(lengths):
    sentences = numbered(lengths)
    pool = make_pool([sentence[::-1].copy()[::-1] for sentence in sentences], np.arange(len(lengths)))
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    assert pool.sentences.tolist() == order
    assert pool.lengths.tolist() == [lengths[number] for number in order]
    rows = [(t, b) for t in range(max(lengths)) for b, number in enumerate(order) if t < lengths[number]]
    assert pool.starts.tolist() == [sum(t < step for t, _ in rows) for step in range(max(lengths) + 1)]
    assert pool.tokens.tolist() == [int(sentences[order[b]][t]) for t, b in rows]
    # Also what was handed in the wrong way round lies in order: kernels and torch take no negative strides.
    assert pool.tokens.strides == pool.mirror.strides == pool.starts.strides == (8,)
    assert pool.mirror.tolist() == [rows.index((lengths[order[b]] - 1 - t, b)) for t, b in rows]


@given(lengths=SENTENCES, batch_tokens=st.integers(1, 30), data=st.data())
def test_every_sentence_is_in_one_pool_within_the_budget(lengths, batch_tokens, data):
    chosen = data.draw(st.lists(st.sampled_from(range(len(lengths))), min_size=1, unique=True))
    pools = make_pools(numbered(lengths), batch_tokens, np.array(chosen))
    assert sorted(n for pool in pools for n in pool.sentences.tolist()) == sorted(chosen)
    taken = [length for pool in pools for length in pool.lengths.tolist()]
    assert taken == sorted(taken, reverse=True)
    for pool, following in zip(pools, [*pools[1:], None], strict=True):
        assert len(pool.tokens) <= batch_tokens or len(pool.sentences) == 1
        if following is not None:  # as full as can be
            assert len(pool.tokens) + following.lengths[0] > batch_tokens
