"""Any Python string is a token, any call leaves the process as it was."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from models import ENGINES, embedder_on, lively, tiny

from elmofire.embed.cache import VectorCache
from elmofire.text.characters import ByteAlphabet, character_ids

WEIGHTS = lively(tiny(encoder_max_characters=50))
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)  # lone surrogates too


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=60, deadline=None)
@given(tokens=st.lists(ANY_TEXT, max_size=6))
@example(
    tokens=[
        "\ud800",
        "x\udfffy",
        "\x00",
        "a" * 10_000,
        "\u202e\u05e9\u05dc\u05d5\u05dd",
        "e\u0301" * 40,
        "👩‍👩‍👧‍👦",
        "",
        " ",
        "\n",
        "<S>",
        "</S>",
        "<UNK>",
    ]
)
def test_any_string_is_a_token(engine, tokens):
    (vectors,) = embedder_on(engine, WEIGHTS).embed([tokens], layers="all")
    assert vectors.shape == (3, len(tokens), 12)
    assert np.isfinite(vectors).all()


@settings(max_examples=60, deadline=None)
@given(text=ANY_TEXT)
def test_any_string_is_a_sentence(text):
    elmo = embedder_on("numpy", WEIGHTS)
    (vectors,) = elmo.embed([text])
    assert len(vectors) == len(elmo.tokenize(text))
    assert np.isfinite(vectors).all()


@settings(max_examples=200, deadline=None)
@given(token=ANY_TEXT, room=st.integers(3, 60))
def test_ids_spell_the_token_between_its_markers(token, room):
    (ids,) = character_ids([token], room).astype(int)
    data = token.encode("utf-8", "ignore")
    if token in ("<S>", "</S>"):
        data = None
    expected = [
        259,
        *([257 if token == "<S>" else 258] if data is None else [byte + 1 for byte in data[: room - 2]]),
        260,
    ]
    assert ids.tolist() == expected + [261] * (room - len(expected))
    if data is not None:
        assert ByteAlphabet().is_truncated(token, room) == (len(data) > room - 2)


def test_many_calls_with_new_words_do_not_grow_the_process():
    elmo = embedder_on("numpy", WEIGHTS)
    elmo._cache = VectorCache(2 << 20)
    number = 0
    while elmo._cache.used < 0.99 * elmo._cache.limit:
        elmo.embed([[f"fill{number}-{k}" for k in range(200)]])
        number += 1
    before = resident_bytes()
    for call in range(10_000):
        elmo.embed([[f"new{call}", f"word{call}"]])
    assert resident_bytes() - before < 20 << 20
    assert elmo._cache.used <= elmo._cache.limit


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
