"""Words that could stand in a word's place, by what each direction expects there and by both together.

Neither direction sees the word itself: the forward model has read up to it, the backward model down to it. Both count how frequent a word
is at all, so the product of the two counts it twice. Dividing by the word's share in the language once gives what Bayes' rule gives when
left and right are independent given the word: log p(w | left) + log p(w | right) - log p(w).
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import InputError
from elmofire.text.tokenizers import Token
from elmofire.text.vocabulary import UNKNOWN, Vocabulary

BOTH = "both"

Logs = NDArray[np.float64]  # log-probabilities (V,)


class Substitute(NamedTuple):
    """A word and the natural logarithm of its probability."""

    word: str
    log_probability: float


class Fillers:
    """The words of a vocabulary that can fill a place: not its markers, and a repeated word once."""

    def __init__(self, vocabulary: Vocabulary, *, start: str, end: str) -> None:
        self._words = vocabulary.words
        markers = {start, end, *UNKNOWN, ""}
        self.allowed = np.array(
            [word not in markers and vocabulary.id(word) == number for number, word in enumerate(self._words)]
        )
        self._unigram = log_uniform(len(vocabulary))

    def combined(self, forward: Logs, backward: Logs) -> Logs:
        """What both directions say together, as log-probabilities over the fillers."""
        scores = np.where(self.allowed, forward + backward - self._unigram, -np.inf)
        highest = scores.max()
        return scores - highest - np.log(np.exp(scores - highest).sum()) if np.isfinite(highest) else scores

    def best(self, scores: Logs, top: int) -> list[Substitute]:
        """The likeliest fillers first; those that are equally likely in the vocabulary's order."""
        places = np.flatnonzero(self.allowed)
        if top < len(places):
            border = np.partition(scores[places], len(places) - top)[len(places) - top]
            places = places[scores[places] >= border]
        order = places[np.argsort(-scores[places], kind="stable")][:top]
        return [Substitute(self._words[place], float(scores[place])) for place in order]


def log_uniform(words: int) -> Logs:
    """Log-probabilities of a Zipf-like distribution over ranks, the one that 2018's training drew its samples from.

    Vocabularies list words by falling frequency and tell nothing else about it.

    >>> float(np.exp(log_uniform(1000)).sum().round(6))
    1.0
    """
    ranks = np.arange(words, dtype=np.float64)
    return np.log(np.log1p(1 / (ranks + 1)) / np.log(words + 1))


_MARKED = re.compile(r"\*([^*\s]+)\*")


def find_marked(text: str, tokenize: Callable[[str], list[Token]]) -> tuple[list[str], int]:
    """The tokens of a text in which one is marked as `*word*`, and the marked one's place among them.

    >>> from elmofire.text.tokenizers import tokenizer_for
    >>> find_marked("The *cat*, it seems, sat.", tokenizer_for("en"))
    (['The', 'cat', ',', 'it', 'seems', ',', 'sat', '.'], 1)
    """
    marks = list(_MARKED.finditer(text))
    if len(marks) != 1:
        found = "no single word is" if not marks else f"{len(marks)} words are"
        raise InputError(
            f"{found} marked in {text!r:.100}", hint='mark one word with stars: "The *cat* sat on the mat"'
        )
    start, end, word = marks[0].start(), marks[0].start() + len(marks[0][1]), marks[0][1]
    tokens = tokenize(text[:start] + word + text[marks[0].end() :])
    for position, token in enumerate(tokens):
        if (token.start, token.end) == (start, end):
            return [token.text for token in tokens], position
    near = [token.text for token in tokens if token.start < end and token.end > start]
    raise InputError(
        f"the marked {word!r} is not one token here: there stands {' '.join(near)}",
        hint="mark one of these tokens; or give a list of tokens and position= (--pretokenized: split at spaces only)",
    )
