"""Span counts against cases by hand and a slow reading, one token at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmofire.errors import InputError
from elmofire.tasks.metrics.spans import span_counts
from elmofire.tasks.tagging import to_iobes

TAGS = st.sampled_from(["O", *(f"{prefix}-{kind}" for prefix in "BIESLU" for kind in ("PER", "LOC"))])


def slow_spans(tags: list[str]) -> set[tuple[int, int, str]]:
    """Reads from the left; an open span goes on only if nothing speaks against it."""
    spans, opened = set(), None
    for here, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        before = tags[here - 1][0] if here else "O"
        if opened is not None and (tag == "O" or kind != opened[1] or prefix in "BSU" or before in "ESLU"):
            spans.add((opened[0], here - 1, opened[1]))
            opened = None
        if opened is None and tag != "O":
            opened = here, kind
    return spans


@given(st.lists(st.lists(st.tuples(TAGS, TAGS), max_size=8), max_size=6))
def test_counts_are_those_of_a_slow_reading(sentences):
    gold = [[tag for tag, _ in sentence] for sentence in sentences]
    predicted = [[tag for _, tag in sentence] for sentence in sentences]
    counts = span_counts(gold, predicted)
    assert counts.shape == (len(sentences), 3)
    for row, right, guessed in zip(counts.tolist(), map(slow_spans, gold), map(slow_spans, predicted), strict=True):
        assert row == [len(right & guessed), len(guessed), len(right)]


@pytest.mark.parametrize(
    ("gold", "predicted", "counts"),
    [
        ("I-PER I-PER O", "I-PER O O", [0, 1, 1]),  # too short
        ("I-PER I-PER", "I-PER B-PER", [0, 2, 1]),  # parted
        ("I-PER I-PER", "I-PER I-LOC", [0, 2, 1]),  # another kind begins another span
        ("I-PER B-PER", "S-PER S-PER", [2, 2, 2]),  # the same spans in two schemes
        ("B-PER L-PER U-LOC", "B-PER E-PER S-LOC", [2, 2, 2]),
        ("I-LOC O", "E-LOC O", [1, 1, 1]),  # E alone is a span, as conlleval has it
        ("I-LOC I-LOC", "S-LOC I-LOC", [0, 2, 1]),  # S has ended its span
        ("O O", "O I-MISC", [0, 1, 0]),
        ("", "", [0, 0, 0]),
    ],
)
def test_cases_by_hand(gold, predicted, counts):
    assert span_counts([gold.split()], [predicted.split()]).tolist() == [counts]


def test_no_span_crosses_a_sentence():
    assert span_counts([["I-PER"], ["I-PER"]], [["I-PER"], ["I-PER"]]).tolist() == [[1, 1, 1], [1, 1, 1]]


@given(st.lists(st.sampled_from(["O", "I-PER", "B-PER", "I-LOC", "B-LOC"]), max_size=12))
def test_conversion_to_iobes_keeps_the_spans(tags):
    converted = to_iobes(tags)
    assert slow_spans(converted) == slow_spans(tags)
    for first, last, kind in slow_spans(tags):
        prefixes = "S" if first == last else "B" + "I" * (last - first - 1) + "E"
        assert converted[first : last + 1] == [f"{prefix}-{kind}" for prefix in prefixes]


def test_no_sentences_have_no_counts():
    assert span_counts([], []).shape == (0, 3)
    assert span_counts([], []).dtype == np.int64


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([["O"]], [["O"], ["O"]], "tags of 2 sentences for 1 sentences"),
        ([["O"], ["O"]], [["O"], []], "sentence 2: 0 tags for 1 tokens"),
        ([["PER"]], [["O"]], "'PER' is neither O"),
        ([["O"]], [["X-PER"]], "'X-PER' is neither O"),
    ],
)
def test_what_cannot_be_counted_is_said(gold, predicted, message):
    with pytest.raises(InputError, match=message):
        span_counts(gold, predicted)
