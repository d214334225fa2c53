"""Sentences gathered into batches on their way to the engine, and cut out of its pools on their way back."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from elmofire.embed.selection import Selection
from elmofire.engine import Layers
from elmofire.engine.batches import Pool
from elmofire.formats.weights import Array


class Numbered(dict[str, int]):
    """Distinct tokens in the order of their first look-up, each with its number.

    >>> words = Numbered.of("<S>", "</S>")
    >>> [words[token] for token in ["a", "b", "a", "</S>"]], list(words)
    ([2, 3, 2, 1], ['<S>', '</S>', 'a', 'b'])
    """

    @classmethod
    def of(cls, *tokens: str) -> "Numbered":
        return cls(zip(tokens, range(len(tokens)), strict=True))

    def __missing__(self, token: str) -> int:
        self[token] = number = len(self)
        return number


class PoolVectors(NamedTuple):
    """The vectors of a pool's sentences, in no particular order, and how many tokens they have, boundaries not counted."""

    numbers: list[int]
    vectors: list[Array]
    tokens: int

    @classmethod
    def cut(cls, pool: Pool, layers: Layers, selection: Selection, *, boundaries: bool) -> "PoolVectors":
        numbers, rows = pool.sentences.tolist(), len(pool.tokens)
        inside = 0 if boundaries else 1
        if len(numbers) == 1:
            vectors = [selection.combine(layers, inside, rows - inside)]
        else:
            vectors = selection.cut(
                layers, (pool.rows_of(b)[inside : n - inside] for b, n in enumerate(pool.lengths.tolist()))
            )
        return cls(numbers, vectors, rows - 2 * len(numbers))

    def put(self, results: list[Array]) -> None:
        """Each to its place."""
        for number, vectors in zip(self.numbers, self.vectors, strict=True):
            results[number] = vectors


def gathered(
    sentences: Iterable[list[str]], size: Callable[[list[str]], int], enough: int
) -> Iterator[tuple[list[list[str]], bool]]:
    """Sentences until their sizes make up `enough`, and whether these are known to be the last.

    >>> list(gathered([["a"], ["b", "c"], ["d"]], len, 3))
    [([['a'], ['b', 'c']], False), ([['d']], True)]
    """
    batch: list[list[str]] = []
    total = 0
    for tokens in sentences:
        batch.append(tokens)
        total += size(tokens)
        if total >= enough:
            yield batch, False
            batch, total = [], 0
    if batch:
        yield batch, True
