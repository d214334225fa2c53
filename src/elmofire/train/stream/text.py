"""The text of a corpus as sentences with their boundaries, read in either direction."""

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import DataError
from elmofire.train.corpus.reader import Corpus, Split
from elmofire.train.corpus.shards import parts_of

START_ID, END_ID = 0, 1  # `<S>` and `</S>` in the corpus's table of words


class Text:
    """Sentences of n words; each is n + 1 steps in either direction: a word or boundary is read, the next one predicted."""

    def __init__(self, corpus: Corpus, split: Split) -> None:
        files = [parts_of(corpus.folder, name) for name in split.shards]
        ends = [np.load(file, allow_pickle=False).astype(np.int64) for _, file, _ in files]
        if not split.tokens:
            raise DataError(f"{corpus.folder}: has no {split.name} text", hint="prepare it again, with such text")
        # A view without numpy's memmap class, whose every result costs microseconds.
        self._ids = [np.load(file, mmap_mode="r", allow_pickle=False).view(np.ndarray) for file, _, _ in files]
        self._shards = np.cumsum([0, *(len(part) for part in ends)])  # the sentences with which they start
        lengths = [np.diff(part, prepend=0) for part in ends]
        self._starts = np.concatenate([part - size for part, size in zip(ends, lengths, strict=True)])  # in the shard
        self.steps: NDArray[np.int64] = np.concatenate(lengths) + 1

    def __len__(self) -> int:
        return len(self.steps)

    def elements(
        self, sentences: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64], *, backward: bool
    ) -> NDArray[np.int64]:
        """The words from `offset` on, `size` of each sentence with its boundaries, one sentence after the other.

        Backward, a sentence is `</S>`, its words from the last to the first, `<S>`; offsets count in that order.
        """
        steps = self.steps[sentences]
        # Sorted by shard, so that each shard is asked once, for what lies side by side.
        shards = (np.searchsorted(self._shards, sentences, side="right") - 1).astype(np.int16)
        by_shard = np.argsort(shards, kind="stable")
        begins, sorted_sizes = _begins(sizes), sizes[by_shard]
        sorted_begins = _begins(sorted_sizes)
        numbers = np.arange(sorted_begins[-1])
        first = self._starts[sentences] + (steps - 1 - offsets if backward else offsets - 1)
        if backward:
            places = np.repeat(first[by_shard] + sorted_begins[:-1], sorted_sizes) - numbers
        else:
            places = np.repeat(first[by_shard] - sorted_begins[:-1], sorted_sizes) + numbers
        found = np.zeros(len(numbers), np.uint32)
        edges = sorted_begins[np.searchsorted(shards[by_shard], np.arange(len(self._ids) + 1))]
        for ids, begin, end in zip(self._ids, edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if begin < end:  # clipped, since boundaries lie beside the sentence's words, even outside the shard
                ids.take(places[begin:end], mode="clip", out=found[begin:end])
        elements = np.zeros(len(numbers), np.int64)
        elements[np.repeat(begins[:-1][by_shard] - sorted_begins[:-1], sorted_sizes) + numbers] = found
        elements[begins[:-1][offsets == 0]] = END_ID if backward else START_ID
        elements[begins[1:][offsets + sizes == steps + 1] - 1] = START_ID if backward else END_ID
        return elements


def _begins(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of so many begins, and where the last ends."""
    begins = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=begins[1:])
    return begins
