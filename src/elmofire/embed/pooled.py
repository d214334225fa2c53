"""Sentences gathered into batches on their way to the engine, and their vectors on their way back, pool by pool."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from elmofire.embed.sentences import Tokens
from elmofire.formats.weights import Array


class PoolVectors(NamedTuple):
    """The vectors of a pool's sentences, in no particular order, and how many tokens they have, boundaries not counted."""

    numbers: list[int]
    vectors: list[Array]
    tokens: int

    def put(self, results: list[Array]) -> None:
        """Each to its place."""
        for number, vectors in zip(self.numbers, self.vectors, strict=True):
            results[number] = vectors


def gathered(
    sentences: Iterable[Tokens], size: Callable[[Tokens], int], enough: int
) -> Iterator[tuple[list[Tokens], bool]]:
    """Sentences until their sizes make up `enough`, and whether these are known to be the last.

    >>> list(gathered([["a"], ["b", "c"], ["d"]], len, 3))
    [([['a'], ['b', 'c']], False), ([['d']], True)]
    """
    batch: list[Tokens] = []
    total = 0
    for tokens in sentences:
        batch.append(tokens)
        total += size(tokens)
        if total >= enough:
            yield batch, False
            batch, total = [], 0
    if batch:
        yield batch, True
