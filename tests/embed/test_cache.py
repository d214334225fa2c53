"""The cache of word vectors against a plain list that is kept in order of use."""

import os
import signal
import sqlite3
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmofire.embed.cache import VectorCache

WIDTH = 3
TOKENS = st.text("ab", max_size=3)


def vector(token):
    return np.array([len(token), token.count("a"), hash(token) % 1000], dtype=np.float32)


def one_entry():
    cache = VectorCache(10_000)
    cache.add([""], np.zeros((1, WIDTH), dtype=np.float32))
    return cache.used


@given(
    calls=st.lists(st.lists(TOKENS, min_size=1, max_size=8, unique=True), max_size=20),
    room=st.sampled_from([0, 1, 2, 3, 5, 100]),
)
def test_it_holds_what_was_used_last(calls, room):
    entry = one_entry()
    cache = VectorCache(room * (entry + 3))
    size = {token: entry + len(token) for call in calls for token in call}
    used = []  # the longest unused first
    for tokens in calls:
        vectors = np.full((len(tokens), WIDTH), np.nan, dtype=np.float32)
        missing = cache.find(tokens, vectors)
        assert [tokens[place] for place in missing] == [token for token in tokens if token not in used]
        for place, token in enumerate(tokens):
            if place not in missing:
                np.testing.assert_array_equal(vectors[place], vector(token))
                used.remove(token)
                used.append(token)
        spelled = [tokens[place] for place in missing]
        if not spelled:
            continue
        cache.add(spelled, np.stack([vector(token) for token in spelled]))
        for token in spelled:
            while used and sum(size[other] for other in used) + size[token] > cache.limit:
                used.pop(0)
            if size[token] <= cache.limit:
                used.append(token)
        assert len(cache) == len(used)
        assert cache.used == sum(size[token] for token in used) <= cache.limit


def test_tokens_that_grow_after_they_came_do_not_break_the_count():
    database = sqlite3.connect(":memory:")
    database.execute("create table words (word text)")
    cache = VectorCache(50_000)
    for number in range(300):
        tokens = [f"слово {number} {n}" for n in range(20)]
        cache.add(tokens, np.full((20, 100), number, dtype=np.float32))
        database.executemany("insert into words values (?)", [(token,) for token in tokens])  # which keeps their utf-8
    assert 0.9 * cache.limit < cache.used <= cache.limit
    vectors = np.empty((20, 100), dtype=np.float32)
    assert cache.find(tokens, vectors) == []
    assert (vectors == number).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_a_process_forked_while_a_thread_adds_starts_with_an_empty_cache_and_others_with_a_full_one(busy):
    cache = VectorCache(10_000)
    cache.add(["a"], np.ones((1, WIDTH), dtype=np.float32))
    with cache._lock if busy else nullcontext():
        if (child := os.fork()) == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # instead of waiting for ever
            missing = cache.find(["a"], np.empty((1, WIDTH), dtype=np.float32))
            os._exit(len(missing))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == int(busy)
    assert len(cache) == 1


@pytest.mark.parametrize("tokens", [1, 50])
def test_what_is_counted_is_about_what_it_takes(tokens):
    import tracemalloc

    words = [f"word number {n}" for n in range(20_000)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    cache = VectorCache(8 << 20)
    for first in range(0, len(words), tokens):
        part = [word + "!" for word in words[first : first + tokens]]
        cache.add(part, np.zeros((len(part), 100), dtype=np.float32))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.9 * cache.limit < cache.used <= cache.limit
    assert 0.7 * cache.limit < taken < 1.2 * cache.limit
