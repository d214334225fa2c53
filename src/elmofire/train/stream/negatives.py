"""Words drawn against which a sampled softmax compares the right one: as 2018's trainer drew them."""

import math
import threading
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import InputError
from elmofire.train.stream.randomness import Purpose, generator

_scratch = threading.local()


def draw_negatives(
    vocabulary: int, samples: int, seed: int, update: int, direction: int
) -> tuple[NDArray[np.int32], int]:
    """Distinct ids in the order in which they were first drawn, and how many draws it took.

    Drawn with replacement, id c with probability ln((c + 2) / (c + 1)) / ln(vocabulary + 1), until enough distinct ones were seen.

    >>> ids, tries = draw_negatives(vocabulary=1000, samples=5, seed=1, update=0, direction=0)
    >>> len(set(ids.tolist())), tries >= 5
    (5, True)
    """
    if not 1 <= samples <= vocabulary:
        raise InputError(f"{samples:,} distinct words cannot be drawn from a vocabulary of {vocabulary:,}")
    random = generator(seed, Purpose.NEGATIVES, update, direction)
    drawn = np.zeros(0, np.int32)
    more = _guess(vocabulary, samples)
    while True:
        # The draws do not depend on how many are made at a time.
        drawn = np.concatenate([drawn, _log_uniform(random.random(more), vocabulary)])
        new = _first_occurrences(drawn, vocabulary)
        if len(new) >= samples:
            return drawn[new[:samples]], int(new[samples - 1]) + 1
        more = len(drawn)


def _log_uniform(uniform: NDArray[np.float64], vocabulary: int) -> NDArray[np.int32]:
    uniform *= math.log(vocabulary + 1.0)
    ids = np.exp(uniform, out=uniform).astype(np.int32) - np.int32(1)
    return np.minimum(ids, vocabulary - 1, out=ids)  # exp may round up to vocabulary + 1


def _first_occurrences(drawn: NDArray[np.int32], vocabulary: int) -> NDArray[np.int64]:
    """The places in `drawn` of ids that were not drawn before, rising."""
    first = getattr(_scratch, "first", None)
    if first is None or len(first) < vocabulary:
        first = _scratch.first = np.zeros(vocabulary, np.int32)
    places = np.arange(len(drawn), dtype=np.int32)
    first[drawn[::-1]] = places[::-1]  # of several values for one place the last is kept
    return np.flatnonzero(first.take(drawn) == places)


@lru_cache
def _guess(vocabulary: int, samples: int) -> int:
    """So many draws that they nearly always suffice: more are made where they do not."""
    edges = np.unique(np.geomspace(1, vocabulary + 1, 64).astype(np.int64))
    chances = np.diff(np.log(edges)) / math.log(vocabulary + 1.0) / np.diff(edges)  # of an id, nearly
    draws = samples
    while draws < 64 * samples and np.diff(edges) @ -np.expm1(-draws * chances) < samples * 1.02:
        draws += draws // 8 + 1
    return draws
