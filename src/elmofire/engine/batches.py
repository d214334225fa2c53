"""Sentences become pools: rows laid out step by step, longest sentence first, so that no padding is ever computed.

Row `starts[t] + b` is step t of the pool's sentence b, which runs while `t < lengths[b]`. The backward direction reads the same rows
through `mirror`: a sentence's row t swapped with its row length - 1 - t, which undoes itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.spill import long_arange
from elmofire.errors import ModelError
from elmofire.formats.config import BilmConfig
from elmofire.text.characters import Alphabet
from elmofire.text.vocabulary import Vocabulary

Ints = NDArray[np.int64]
Places = NDArray[np.int64 | np.int32]  # in a table of distinct tokens; the narrow ones are long sentences'


@dataclass(frozen=True)
class Pool:
    """Sentences that run together."""

    sentences: Ints  # (B,) which of the caller's sentences each row b is
    lengths: Ints  # (B,) falling
    starts: Ints  # (T + 1,) first row of each step
    tokens: Places  # (rows,) what stands there: an index into a table of distinct tokens
    mirror: Ints  # (rows,)

    @property
    def steps(self) -> int:
        return len(self.starts) - 1

    def active(self, step: int) -> int:
        """How many sentences still run at this step."""
        return int(self.starts[step + 1] - self.starts[step])

    def rows_of(self, b: int) -> Ints:
        """The rows of one sentence, in order."""
        return self.starts[: self.lengths[b]] + b

    def windows(self, most_rows: int) -> Iterator[tuple[int, int]]:
        """The steps cut into runs [first, last) of at most so many rows, though never less than one step."""
        first = 0
        while first < self.steps:
            last = int(np.searchsorted(self.starts, self.starts[first] + most_rows, side="right")) - 1
            last = min(max(last, first + 1), self.steps)
            yield first, last
            first = last


def make_pool(sentences: Sequence[Places], numbers: Ints) -> Pool:
    """Lay out the sentences `numbers` of `sentences` (each a non-empty array of token indexes)."""
    if len(numbers) == 1:  # a short one should not wait for it, and a long one needs no more memory than it must
        tokens = sentences[int(numbers[0])]
        tokens = tokens if tokens.strides == (tokens.itemsize,) else tokens.copy()
        starts = long_arange(0, len(tokens) + 1, 1)
        return Pool(numbers, starts[-1:], starts, tokens, long_arange(len(tokens) - 1, -1, -1))
    lengths = np.array([len(sentences[number]) for number in numbers], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    numbers, lengths = numbers[order], lengths[order]
    active = np.searchsorted(-lengths, -np.arange(1, lengths[0] + 1), side="right")
    starts = np.concatenate([[0], np.cumsum(active)])
    # Sentence-major first, where both layouts are easy to write down; then scattered to the rows.
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    step = np.arange(len(sentence)) - (np.cumsum(lengths) - lengths)[sentence]
    rows = starts[step] + sentence
    tokens, mirror = np.empty_like(rows), np.empty_like(rows)
    tokens[rows] = np.concatenate([sentences[number] for number in numbers])
    mirror[rows] = starts[lengths[sentence] - 1 - step] + sentence
    return Pool(numbers, lengths, starts, tokens, mirror)


def make_pools(sentences: Sequence[Places], batch_tokens: int, numbers: Ints | None = None) -> list[Pool]:
    """Sentences (all, or those `numbers`), sorted by length and cut into pools of at most `batch_tokens` tokens.

    A longer sentence is a pool of its own.
    """
    chosen = np.arange(len(sentences)) if numbers is None else numbers
    if len(chosen) == 1:
        return [make_pool(sentences, chosen)]
    lengths = np.array([len(sentences[int(number)]) for number in chosen], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    chosen, ends = chosen[order], np.cumsum(lengths[order])
    pools: list[Pool] = []
    first = 0
    while first < len(chosen):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + batch_tokens, side="right")), first + 1)
        pools.append(make_pool(sentences, chosen[first:last]))
        first = last
    return pools


def token_ids(
    tokens: Sequence[str], config: BilmConfig, vocabulary: Vocabulary | None, alphabet: Alphabet
) -> NDArray[np.int32]:
    """What the encoder reads of each token (n, columns): its row in the word table, counted from 1, and its characters.

    A model without a word table, or without characters, has no such columns. 0 everywhere means that there is no token.
    """
    columns: list[NDArray[np.int32]] = []
    room = config.encoder.max_characters
    if config.encoder.words:
        if vocabulary is None:
            raise ModelError("a model that takes whole words needs its vocabulary")
        lacking = [special for special in (alphabet.start, alphabet.end) if special not in vocabulary]
        if lacking:
            raise ModelError(f"the vocabulary has no {' and no '.join(lacking)}, which start and end every sentence")
        rows = vocabulary.ids([alphabet.read_part(token, room) for token in tokens])
        columns.append(np.array(rows, dtype=np.int32)[:, None] + 1)
    if config.encoder.filters:
        columns.append(alphabet.ids(tokens, room))
    return np.concatenate(columns, axis=1)
