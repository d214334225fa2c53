"""Evaluation text inside the training text: runs of n words that both have.

Compared are words in lower case, without those that have no letter and no digit. Runs go over the ends of sentences within a line (or a
record), not over those of lines: a line of fewer than n words is never found. A run is known by 64 bits of hash: among 10^8 runs of a corpus and 10^6 of evaluation
files, the chance of one wrong hit is 5 in a million.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from elmofire.text.readers import read_sentences
from elmofire.text.tokenizers import Tokenizer
from elmofire.train.corpus.blocks import tokens_of

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of a word is lost


@dataclass(frozen=True)
class EvaluationText:
    """The n-grams of evaluation files: hashes in order, and where each stands first."""

    n: int
    hashes: NDArray[np.uint64]
    files: NDArray[np.uint32]
    sentences: NDArray[np.uint32]  # numbers from 1: lines of text, records, sentences of CoNLL-U
    lines: Sequence[int] = ()  # of each file, empty ones left out
    short: Sequence[int] = ()  # those of them that have no n-gram


def word_hashes(words: Iterable[str]) -> NDArray[np.uint64]:
    """64 bits for each word in lower case; 0 for one without letter and digit."""
    found = [
        int.from_bytes(blake2b(word.lower().encode("utf-8", "ignore"), digest_size=8).digest(), "big") or 1
        if any(map(str.isalnum, word))
        else 0
        for word in words
    ]
    return np.array(found, dtype=np.uint64)


def ngrams(
    hashes: NDArray[np.uint64], lengths: NDArray[np.integer], n: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """The hash of every run of n words, given the hashes of all tokens and how many each line has.

    Beside each run, the places of its first and its last token.
    """
    line = np.repeat(np.arange(len(lengths)), lengths)
    places = np.flatnonzero(hashes)
    words, line = hashes[places], line[places]
    if len(words) < n:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    runs = len(words) - n + 1
    starts = np.flatnonzero(line[:runs] == line[n - 1 :])
    total = np.zeros(runs, dtype=np.uint64)
    for k in range(n):  # wraps around, as it should
        total *= _FACTOR
        total += words[k : k + runs]
    return total[starts], places[starts], places[starts + n - 1]


def read_evaluation(files: Sequence[str], n: int, tokenizer: Tokenizer, *, split: bool) -> EvaluationText:
    """All n-grams of the files, read as `elmofire embed` reads them: text, CoNLL-U, JSON lines."""
    hashes: list[NDArray[np.uint64]] = []
    places: list[NDArray[np.int64]] = []
    known: dict[str, int] = {}
    lines, short = [0] * len(files), [0] * len(files)
    for number, file in enumerate(files):
        for line, sentence in enumerate(read_sentences(file), 1):
            tokens = list(chain.from_iterable(tokens_of(sentence, tokenizer, split=split)))
            if not tokens:
                continue
            lines[number] += 1
            new = [token for token in dict.fromkeys(tokens) if token not in known]
            known.update(zip(new, word_hashes(new).tolist(), strict=True))
            found, _, _ = ngrams(np.array([known[token] for token in tokens], np.uint64), np.array([len(tokens)]), n)
            short[number] += not len(found)
            hashes.append(found)
            places.append(np.full(len(found), number << 32 | line))
    all_hashes = np.concatenate([np.zeros(0, np.uint64), *hashes])
    unique, first = np.unique(all_hashes, return_index=True)
    where = np.concatenate([np.zeros(0, np.int64), *places])[first]
    return EvaluationText(
        n, unique, (where >> 32).astype(np.uint32), (where & 0xFFFFFFFF).astype(np.uint32), lines, short
    )


def find_overlaps(
    text: EvaluationText, ids: NDArray[np.integer], lengths: NDArray[np.integer], hashes: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Runs that the evaluation text has: the places of their first and last tokens, and which of its n-grams they are.

    `hashes` are those of the words that `ids` count, `lengths` those of the lines.
    """
    if not len(text.hashes):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    runs, first, last = ngrams(hashes[ids], lengths, text.n)
    nearest = np.minimum(np.searchsorted(text.hashes, runs), len(text.hashes) - 1)
    hit = text.hashes[nearest] == runs
    return first[hit], last[hit], nearest[hit]
