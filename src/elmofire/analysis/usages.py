"""Usages of one word: its vectors in several sentences at each layer, and which of them each layer holds for most alike."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmofire.embed.embedder import Embedder
from elmofire.errors import InputError
from elmofire.formats.weights import Array
from elmofire.lm.substitutes import find_marked
from elmofire.text.tokenizers import Token

_ROUNDING = 1e-6  # cosines that differ by less are equal


class Usage(NamedTuple):
    """A word in a sentence, and the sense that it has there."""

    tokens: tuple[str, ...]
    position: int
    sense: str
    left: str  # of the word: the sentence as it was written, words separated by spaces
    right: str

    @property
    def word(self) -> str:
        return self.tokens[self.position]

    @property
    def sentence(self) -> str:
        return f"{self.left}{self.word}{self.right}"

    def context(self, left: int, right: int) -> tuple[str, str]:
        """What stands before and after the word, whole words of it, in at most so many characters.

        >>> Usage(("We", "saw", "a", "play", "."), 3, "theater", "We saw a ", ".").context(6, 9)
        ('saw a ', '.')
        """
        before, after = self.left[max(len(self.left) - left, 0) :], self.right[:right]
        if before and len(before) < len(self.left) and not (self.left[-left - 1] + before[0]).count(" "):
            before = before[len(before.split(maxsplit=1)[0]) :]
        if after and len(after) < len(self.right) and not (after[-1] + self.right[right]).count(" "):
            after = after[: -len(after.rsplit(maxsplit=1)[-1])]
        return before.lstrip(), after.rstrip()


class Nearest(NamedTuple):
    """The other usages that are most like one: a single one, unless several are equally near, as all of a form are in layer 0."""

    cosine: float
    which: tuple[int, ...]


class Plane(NamedTuple):
    """Vectors seen in the two directions in which they differ most."""

    places: NDArray[np.float64]  # (usages, 2)
    share: float  # of the variance that can be seen there


def find_usage(marked: str, sense: str, tokenize: Callable[[str], list[Token]]) -> Usage:
    """A usage from a sentence in which the word is marked.

    >>> from elmofire.text.tokenizers import tokenizer_for
    >>> usage = find_usage("We saw a *play*.", "theater", tokenizer_for("en"))
    >>> usage.tokens, usage.position, usage.sentence
    (('We', 'saw', 'a', 'play', '.'), 3, 'We saw a play.')
    """
    tokens, position = find_marked(marked, tokenize)
    left, _, right = marked.partition(f"*{tokens[position]}*")
    return Usage(tuple(tokens), position, sense, left, right)


def usage_vectors(elmo: Embedder, usages: Sequence[Usage]) -> Array:
    """The marked words' vectors at every layer: (layers, usages, width)."""
    found = elmo.embed([list(usage.tokens) for usage in usages], layers="all")
    return np.stack([layers[:, usage.position] for usage, layers in zip(usages, found, strict=True)], axis=1)


def layer_name(layer: int) -> str:
    """A layer's name for display. Layer 0 is marked as context-free: all usages of one form are one vector there.

    >>> [layer_name(layer) for layer in (0, 1)]
    ['layer 0 (context-free)', 'layer 1']
    """
    return f"layer {layer}" if layer else "layer 0 (context-free)"


def nearest(vectors: Array) -> list[Nearest]:
    """For each vector (usages, width) the others with the highest cosine.

    >>> [found.which for found in nearest(np.array([[1, 0], [2, 0], [0, 1], [1, 3]]))]
    [(1,), (0,), (3,), (2,)]
    """
    if len(vectors) < 2:
        raise InputError(f"there are {len(vectors)} usages, but only one of several has a nearest other")
    unit = _of_length_one(vectors)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    highest = cosines.max(axis=1)
    return [
        Nearest(float(best), tuple(np.flatnonzero(row > best - _ROUNDING).tolist()))
        for row, best in zip(cosines, highest, strict=True)
    ]


def same_sense(found: Sequence[Nearest], senses: Sequence[str]) -> float:
    """How many usages have a nearest one of their own sense. Of several equally near ones each counts its part.

    So layer 0, where nothing tells the usages apart, gets what chance would.

    >>> same_sense([Nearest(1.0, (1, 2)), Nearest(1.0, (0, 2)), Nearest(1.0, (0, 1))], ["river", "river", "money"])
    1.0
    """
    return sum(
        sum(senses[other] == sense for other in nearest.which) / len(nearest.which)
        for nearest, sense in zip(found, senses, strict=True)
    )


def plane(vectors: Array) -> Plane:
    """The vectors' first two principal components, lengths aside, as they are for cosines. Equal vectors are at the same place."""
    unit = _of_length_one(vectors)
    centered = unit - unit.mean(axis=0)
    left, spread, _ = np.linalg.svd(centered, full_matrices=False)
    total = float((spread**2).sum())
    if total < _ROUNDING**2:
        return Plane(np.zeros((len(vectors), 2)), 1.0)
    places = np.zeros((len(vectors), 2))
    shown = (left * spread)[:, :2]
    # A component's sign is arbitrary; the usage that is farthest out has the positive one, on every machine.
    farthest = np.abs(shown.round(9)).argmax(axis=0)
    places[:, : shown.shape[1]] = shown * np.where(shown[farthest, range(shown.shape[1])] < 0, -1, 1)
    return Plane(places, float((spread[:2] ** 2).sum()) / total)


def _of_length_one(vectors: Array) -> NDArray[np.float64]:
    numbers = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
    return numbers / np.where(lengths > 0, lengths, 1)
