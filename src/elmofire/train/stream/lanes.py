"""Lanes as in 2018: endless streams of sentences side by side, each update the next steps of all lanes, every cell filled."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import InputError
from elmofire.train.settings import DataSettings
from elmofire.train.stream.building import Plan, Segments, rows_of
from elmofire.train.stream.epochs import Epochs
from elmofire.train.stream.randomness import Purpose, generator
from elmofire.train.stream.reading import Reading
from elmofire.train.stream.text import Text


class Lanes(Reading):
    """Plans of updates of the same shape.

    A lane that has used up its sentence takes the next one from those that all lanes share; the lanes of an update are filled one
    after the other. Where both directions read the same text, they take the same sentences, since these have as many steps for both.
    Fewer lanes than `multiple` are as many as the tokens ask for: a multiple of `least` alone.
    """

    def __init__(
        self, text: Text, data: DataSettings, seed: int, directions: int, tokens: int, multiple: int, least: int
    ) -> None:
        super().__init__(text, data, seed, directions)
        self._steps = data.steps
        unit = multiple if tokens >= multiple * data.steps else least
        self.lanes = rows_of(tokens, data.steps, unit, unit)
        self._per_epoch = int(text.steps.sum())
        self.updates_per_epoch = max(1, self._per_epoch // (self.lanes * data.steps))
        self._epochs = [Epochs(partial(self._order, stream)) for stream in range(self._streams)]

    @property
    def carried_rows(self) -> int:
        """All lanes."""
        return self.lanes

    def shapes(self) -> list[tuple[int, int]]:
        """Steps and rows: the one shape."""
        return [(self._steps, self.lanes)]

    def plans(self, position: dict[str, Any] | None) -> Iterator[Plan]:
        """One plan after the other, without end; a position holds what each lane has read of its sentence."""
        number, taken, sentences, offsets = self._start() if position is None else self._read(position)
        while True:
            number += 1
            segments: list[Segments] = []
            for stream in range(self._streams):
                new = self._fill(stream, taken[stream], sentences[stream], offsets[stream])
                lasts = np.flatnonzero(np.diff(new.rows, append=self.lanes))
                taken[stream] += int((new.offsets == 0).sum())
                sentences[stream] = new.sentences[lasts]
                offsets[stream] = new.offsets[lasts] + new.counts[lasts]
                segments.append(new)
            position = {"update": number, "taken": [*taken], "sentences": sentences.copy(), "offsets": offsets.copy()}
            read = number * self.lanes * self._steps / self._per_epoch
            yield Plan(number - 1, self._steps, self.lanes, self._by_direction(segments), True, True, read, position)

    def sample(self, size: int) -> Iterator[Plan]:
        """The first plans, so many of them."""
        return islice(self.plans(None), size)

    def kinds(self) -> Iterator[Plan]:
        """The one kind there is."""
        return self.sample(1)

    def _start(self) -> tuple[int, list[int], NDArray[np.int64], NDArray[np.int64]]:
        sentences = np.zeros((self._streams, self.lanes), np.int64)
        return 0, [0] * self._streams, sentences, self._text.steps[sentences]  # of sentence 0 nothing is left

    def _read(self, position: dict[str, Any]) -> tuple[int, list[int], NDArray[np.int64], NDArray[np.int64]]:
        sentences, offsets = (np.array(position[name], np.int64) for name in ("sentences", "offsets"))
        if sentences.shape != (self._streams, self.lanes):
            raise InputError(
                f"the position is one of {' x '.join(map(str, sentences.shape))} lanes, not of {self._streams} x {self.lanes}",
                hint="go on with the settings of the run that wrote it",
            )
        return int(position["update"]), [int(number) for number in position["taken"]], sentences, offsets

    def _fill(self, stream: int, taken: int, sentences: NDArray[np.int64], offsets: NDArray[np.int64]) -> Segments:
        """The next steps of every lane: the rest of its sentence, then as many new ones as it needs."""
        left = self._text.steps[sentences] - offsets
        new, takes = self._take(stream, taken, (self._steps - left).tolist())
        rows = np.repeat(np.arange(self.lanes), takes + 1)
        firsts = np.cumsum(takes + 1) - (takes + 1)
        all_sentences, all_offsets = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        are_new = np.ones(len(rows), np.bool_)
        are_new[firsts] = False
        all_sentences[firsts], all_sentences[are_new] = sentences, new
        all_offsets[firsts] = offsets
        counts = self._text.steps[all_sentences] - all_offsets
        # What the last sentence of a lane has too much stays for the next update.
        counts[firsts + takes] -= np.add.reduceat(counts, firsts) - self._steps
        columns = np.cumsum(counts) - counts - rows * self._steps
        some = counts > 0
        return Segments(rows[some], columns[some], all_sentences[some], all_offsets[some], counts[some])

    def _take(self, stream: int, taken: int, needs: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sentences that the lanes take, one lane after the other, and how many each takes."""
        takes: list[int] = []
        chunks: list[NDArray[np.int64]] = []
        steps: list[int] = []
        used = 0
        for need in needs:
            before = used
            while need > 0:
                if used == len(steps):
                    chunks.append(self._next(stream, taken + used))
                    steps += self._text.steps[chunks[-1]].tolist()
                need -= steps[used]
                used += 1
            takes.append(used - before)
        new = np.concatenate([np.zeros(0, np.int64), *chunks])[:used]
        return new, np.array(takes, np.int64)

    def _next(self, stream: int, taken: int) -> NDArray[np.int64]:
        """Some of the sentences that come after so many, over the epochs."""
        epoch, place = divmod(taken, len(self._text))
        return self._epochs[stream].get(epoch)[place : place + self.lanes]

    def _order(self, stream: int, epoch: int) -> NDArray[np.int64]:
        if not self._shuffled:
            return np.arange(len(self._text))
        return generator(self._seed, Purpose.SENTENCES, epoch, stream).permutation(len(self._text))
