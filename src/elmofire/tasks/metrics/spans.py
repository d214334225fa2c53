"""Exact span F1, as `conlleval` counts: a span is right when its kind, its first and its last token are."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from elmofire.engine.batches import Ints
from elmofire.errors import InputError

# Ours, and BIOUL's two letters for the same.
_PREFIXES = {"B": "B", "I": "I", "E": "E", "L": "E", "S": "S", "U": "S"}


class Spans(NamedTuple):
    """Spans of flat text, in order."""

    first: Ints  # token
    last: Ints  # token
    kind: Ints


def span_counts(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Ints:
    """A row per sentence: spans found rightly, spans predicted, spans in gold; `span_f1` makes scores of their sums.

    Tags are `O` or PREFIX-KIND in any of IOB1, IOB2, IOBES and BIOUL. A sequence that its scheme forbids still has spans, as in
    `conlleval`: a span goes on while the kind stays the same, neither B nor S begins it anew and neither E nor S has ended it.

    >>> span_counts([["I-PER", "I-PER", "O", "I-LOC"]], [["B-PER", "E-PER", "O", "S-ORG"]]).tolist()
    [[1, 2, 2]]
    """
    lengths = np.fromiter(map(len, gold), dtype=np.int64, count=len(gold))
    given = np.fromiter(map(len, predicted), dtype=np.int64, count=len(predicted))
    if len(lengths) != len(given):
        raise InputError(f"tags of {len(given)} sentences for {len(lengths)} sentences")
    if len(wrong := np.flatnonzero(lengths != given)):
        sentence = int(wrong[0])
        raise InputError(f"sentence {sentence + 1}: {given[sentence]} tags for {lengths[sentence]} tokens")
    kinds: dict[str, int] = {}
    right = find_spans(chain.from_iterable(gold), lengths, kinds)
    guessed = find_spans(chain.from_iterable(predicted), lengths, kinds)
    ends, kind = np.full((2, int(lengths.sum())), -1)
    ends[right.first], kind[right.first] = right.last, right.kind
    hit = (ends[guessed.first] == guessed.last) & (kind[guessed.first] == guessed.kind)
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    firsts = guessed.first[hit], guessed.first, right.first
    return np.stack([np.bincount(sentence[first], minlength=len(lengths)) for first in firsts], axis=1)


def find_spans(tags: Iterable[str], lengths: Ints, kinds: dict[str, int]) -> Spans:
    """The spans of sentences of these lengths, whose tags follow one another; kinds that are new get the next number."""
    known: dict[str, int] = {}
    flat = np.fromiter((known.setdefault(tag, len(known)) for tag in tags), dtype=np.int64)
    parts = [_parted(tag) for tag in known]
    numbers = [-1 if kind is None else kinds.setdefault(kind, len(kinds)) for _, kind in parts]
    kind = np.array(numbers, dtype=np.int64)[flat]
    begins = np.array([prefix in "BS" for prefix, _ in parts], dtype=bool)[flat]
    ends = np.array([prefix in "ES" for prefix, _ in parts], dtype=bool)[flat]

    first_of_sentence = np.zeros(len(flat) + 1, dtype=bool)
    first_of_sentence[np.cumsum(lengths)] = True
    first_of_sentence[0] = True
    # What stands before the first token does not matter: it begins a sentence.
    parted = first_of_sentence[:-1] | begins | (kind != np.roll(kind, 1)) | np.roll(ends, 1)
    inside = kind >= 0
    first = np.flatnonzero(inside & parted)
    last = np.flatnonzero(inside & np.append(parted[1:], True))
    return Spans(first, last, kind[first])


def _parted(tag: str) -> tuple[str, str | None]:
    """`B-PER` -> B, PER"""
    if tag == "O":
        return "O", None
    prefix, dash, kind = tag.partition("-")
    if prefix not in _PREFIXES or not dash or not kind:
        raise InputError(f"the tag {tag!r} is neither O nor a prefix of {', '.join(_PREFIXES)}, a dash and a kind")
    return _PREFIXES[prefix], kind
