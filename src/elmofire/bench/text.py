"""Sentences to measure on where no text is given: made-up words, with the lengths and the repetitions of ordinary English.

The speed of an encoder that works once per distinct word depends on how often words come back, and that of a recurrence on how
lengths vary, so both are about those of web text: 15 tokens a sentence, the median 13, one in a hundred above 50; words of 4 letters,
and in 320 sentences 33 distinct ones per 100 tokens.
"""

import bisect
import itertools
import math
import random

_ONSETS = ("b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "w", "st", "th", "", "", "", "")
_NUCLEI = ("a", "e", "i", "o", "u", "ea")
_CODAS = ("", "", "", "", "n", "r", "s", "t", "l", "d")
_MARKS = (",", "'s", '"', "-")
_FORMS = 40_000  # word forms that may occur
_FLATTENING = 4.0  # Zipf-Mandelbrot: the most frequent words differ less than 1/rank says


def sample_sentences(count: int, *, seed: int = 0) -> list[list[str]]:
    """So many token lists, the same ones for the same seed.

    >>> sentences = sample_sentences(100)
    >>> len(sentences), sentences == sample_sentences(100)
    (100, True)
    """
    rng = random.Random(seed)
    words = _word_forms(rng)
    weights = list(itertools.accumulate((rank + _FLATTENING) ** -1.2 for rank in range(len(words))))
    sentences = []
    for _ in range(count):
        length = min(max(round(rng.lognormvariate(2.54, 0.62)), 2), 80)
        tokens = [words[bisect.bisect(weights, rng.random() * weights[-1])] for _ in range(length - 1)]
        sentences.append([tokens[0].capitalize(), *tokens[1:], "."])
    return sentences


def _word_forms(rng: random.Random) -> list[str]:
    """Distinct words by rank; the frequent ones are short."""
    forms: dict[str, None] = dict.fromkeys(_MARKS)
    while len(forms) < _FORMS:
        syllables = 1 + min(int(rng.expovariate(1.0) * 0.7 + math.log1p(len(forms) / 60) / 4), 4)
        forms["".join(rng.choice(part) for _ in range(syllables) for part in (_ONSETS, _NUCLEI, _CODAS))] = None
    return list(forms)
