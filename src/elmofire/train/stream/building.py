"""A plan says which steps of which sentences stand in which cells; here it becomes batches of words."""

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmofire.train.corpus.reader import Corpus
from elmofire.train.stream.batch import Batch
from elmofire.train.stream.text import START_ID, Text


class Segments(NamedTuple):
    """Steps of sentences side by side in the rows of an update, sorted by rows; one direction, all ranks and parts."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]  # the first cell's
    sentences: NDArray[np.int64]
    offsets: NDArray[np.int64]  # the first step's in the sentence, in the order in which the direction reads
    counts: NDArray[np.int64]  # of steps, which is of cells


class Plan(NamedTuple):
    """What an update will hold, before its words are looked up."""

    number: int
    steps: int
    rows: int  # of all ranks and parts
    segments: list[Segments]  # by direction
    carried: bool
    kept: bool
    epoch: float
    position: dict[str, Any]


def rows_of(tokens: int, steps: int, multiple: int, least: int) -> int:
    """So many rows of so many steps that they have about the tokens wanted: a multiple, halved down to `least` where that is too many.

    >>> rows_of(10240, 20, 128, 16), rows_of(2560, 80, 128, 16), rows_of(100, 80, 128, 16)
    (512, 32, 16)
    """
    while multiple % 2 == 0 and multiple // 2 >= least and tokens / steps < multiple:
        multiple //= 2
    return multiple * max(1, int(tokens / steps / multiple + 0.5))


class Builder:
    """Makes the batches of plans; may be used by several threads at once."""

    def __init__(self, corpus: Corpus, text: Text, *, resets: bool) -> None:
        self._corpus = corpus
        self._text = text
        self._resets = resets
        self._scratch = threading.local()

    def batch(self, plan: Plan, first: int, last: int, width: int) -> Batch:
        """The rows of a plan from `first` to before `last`, filled up to `width`.

        Cells that no segment covers read `<S>` and predict nothing.
        """
        shape = (len(plan.segments), plan.steps, width)
        inputs = np.full(shape, START_ID, np.int64)
        targets = np.full(shape, -1, np.int32)
        resets = np.zeros(shape, np.bool_) if self._resets else None
        for direction, segments in enumerate(plan.segments):
            mine = slice(*np.searchsorted(segments.rows, [first, last]))
            rows, columns, sentences, offsets, counts = (array[mine] for array in segments)
            if not len(rows):
                continue
            elements = self._text.elements(sentences, offsets, counts + 1, backward=direction == 1)
            number = np.arange(int(counts.sum()))  # of a cell; a segment's have an element more than cells
            before = np.cumsum(counts) - counts
            cell = columns * width + rows - first
            cells = np.repeat(cell - before * width, counts) + number * width
            here = np.repeat(np.arange(len(rows)), counts) + number
            inputs[direction].reshape(-1)[cells] = elements.take(here)
            targets[direction].reshape(-1)[cells] = self._corpus.targets(elements.take(here + 1))
            if resets is not None:
                resets[direction].reshape(-1)[cell[offsets == 0]] = True
        words, places = self._distinct(inputs)
        return Batch(words, places, targets, resets, plan.carried, plan.kept)

    def _distinct(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The distinct ids, rising, and where each is among them."""
        places = getattr(self._scratch, "places", None)
        if places is None:
            places = self._scratch.places = np.zeros(self._corpus.words, np.int32)
        # Of several places written to one word the last stays: only the distinct ones are sorted, and nothing needs to be cleared.
        flat = ids.reshape(-1)
        numbers = np.arange(len(flat), dtype=np.int32)
        places[flat] = numbers
        distinct = np.sort(flat[places.take(flat) == numbers])
        places[distinct] = numbers[: len(distinct)]
        return distinct, places.take(ids)
