"""Whole sentences from a zero state, those of nearly equal length side by side, on a fixed grid of shapes."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmofire.train.settings import DataSettings
from elmofire.train.stream.building import Plan, Segments, rows_of
from elmofire.train.stream.epochs import Epochs
from elmofire.train.stream.randomness import Purpose, generator
from elmofire.train.stream.reading import Reading
from elmofire.train.stream.text import Text


class Order(NamedTuple):
    """An epoch: sentences by bucket for each direction, then the updates, each a window of a group of sentences."""

    sentences: list[NDArray[np.int64]]
    groups: NDArray[np.int64]
    windows: NDArray[np.int64]


class Sentences(Reading):
    """Plans of updates, each of the same number of steps in all rows; every epoch has the same number of them.

    A bucket holds the sentences whose steps fit a length of the grid. Those longer than the last are read in as few windows of one
    length as will do, which follow each other as updates whose state is carried. The few that need more than two windows make one
    bucket, in the order of their lengths in every epoch, so that a group has hardly more windows than its sentences need.
    """

    def __init__(
        self, text: Text, data: DataSettings, seed: int, directions: int, tokens: int, multiple: int, least: int
    ) -> None:
        super().__init__(text, data, seed, directions)
        grid = np.array(data.lengths)
        windows = -(-text.steps // grid[-1])
        bucket = (windows - 1) * len(grid) + np.searchsorted(grid, -(-text.steps // windows))
        bucket[windows > 2] = 3 * len(grid) - 1
        # Numbers of one or two bytes are sorted in linear time.
        bucket = bucket.astype(np.min_scalar_type(bucket.max()))
        self._by_bucket = np.argsort(bucket, kind="stable")
        sizes = np.bincount(bucket)
        self._sorted = (
            int(sizes[-1]) if len(sizes) == 3 * len(grid) else 0
        )  # sentences at the end that stay in their order
        last = self._by_bucket[len(bucket) - self._sorted :]
        last[:] = last[np.argsort(text.steps[last], kind="stable")]
        used = np.flatnonzero(sizes)
        sizes = sizes[used]
        self._buckets = np.cumsum([0, *sizes])  # where each begins among `_by_bucket`
        lengths = grid[used % len(grid)]
        rows = np.array([rows_of(tokens, length, multiple, least) for length in lengths.tolist()])
        groups = -(-sizes // rows)
        of_group = np.repeat(np.arange(len(used)), groups)
        in_bucket = np.arange(len(of_group)) - np.repeat(np.cumsum(groups) - groups, groups)
        self._firsts = self._buckets[of_group] + in_bucket * rows[of_group]  # of a group, among sentences by bucket
        self._counts = np.minimum(rows[of_group], self._buckets[of_group + 1] - self._firsts)
        self._shapes = np.stack([lengths, rows], axis=1)[of_group]
        longest = text.steps[self._by_bucket[self._firsts + self._counts - 1]]
        self._windows = np.minimum(used // len(grid) + 1, 2)[of_group]
        self._windows = np.where(used[of_group] < 2 * len(grid), self._windows, -(-longest // grid[-1]))
        self.updates_per_epoch = int(self._windows.sum())
        self._epochs = Epochs(self._order)

    def shapes(self) -> list[tuple[int, int]]:
        """Steps and rows, the most frequent first."""
        shapes, number = np.unique(np.repeat(self._shapes, self._windows, axis=0), axis=0, return_counts=True)
        return [(int(steps), int(rows)) for steps, rows in shapes[np.argsort(-number, kind="stable")]]

    @property
    def carried_rows(self) -> int:
        """At most, of the updates whose state the next one needs."""
        return int(self._shapes[self._windows > 1, 1].max(initial=0))

    def plans(self, position: dict[str, Any] | None) -> Iterator[Plan]:
        """One plan after the other, without end."""
        number = int(position["update"]) if position else 0
        while True:
            yield self.plan(number)
            number += 1

    def plan(self, number: int) -> Plan:
        epoch, update = divmod(number, self.updates_per_epoch)
        order = self._epochs.get(epoch)
        group, window = int(order.groups[update]), int(order.windows[update])
        steps, rows = self._shapes[group].tolist()
        first, count = int(self._firsts[group]), int(self._counts[group])
        segments: list[Segments] = []
        for sentences in order.sentences:
            chosen = sentences[first : first + count]
            offsets = np.full(count, window * steps)
            counts = np.minimum(self._text.steps[chosen] - offsets, steps)
            there = np.flatnonzero(counts > 0)
            segments.append(Segments(there, np.zeros_like(there), *(a[there] for a in (chosen, offsets, counts))))
        kept = window + 1 < self._windows[group]
        epochs, position = (number + 1) / self.updates_per_epoch, {"update": number + 1}
        return Plan(number, steps, rows, self._by_direction(segments), window > 0, bool(kept), epochs, position)

    def sample(self, size: int) -> Iterator[Plan]:
        """Plans of the first epoch, about so many, evenly from all kinds."""
        of_kinds = self._updates_by_kind()
        for updates in of_kinds:
            yield from map(self.plan, updates[:: max(1, len(updates) * len(of_kinds) // size)].tolist())

    def kinds(self) -> Iterator[Plan]:
        """One plan of every shape, for each use of the state."""
        return (self.plan(int(updates[0])) for updates in self._updates_by_kind())

    def _updates_by_kind(self) -> list[NDArray[np.int64]]:
        """Of the first epoch."""
        order = self._epochs.get(0)
        kept = order.windows + 1 < self._windows[order.groups]
        kinds = np.column_stack([self._shapes[order.groups], order.windows > 0, kept])
        _, kind, sizes = np.unique(kinds, axis=0, return_inverse=True, return_counts=True)
        return np.split(np.argsort(kind.ravel(), kind="stable"), np.cumsum(sizes)[:-1])

    def _order(self, epoch: int) -> Order:
        permutation = np.arange(len(self._counts))
        if self._shuffled:
            sentences = [self._shuffled_buckets(epoch, stream) for stream in range(self._streams)]
            permutation = generator(self._seed, Purpose.GROUPS, epoch).permutation(permutation)
        else:
            sentences = [self._by_bucket]
            permutation = np.argsort(self._by_bucket[self._firsts], kind="stable")
        windows = self._windows[permutation]
        within = np.arange(int(windows.sum())) - np.repeat(np.cumsum(windows) - windows, windows)
        return Order(sentences, np.repeat(permutation, windows), within)

    def _shuffled_buckets(self, epoch: int, stream: int) -> NDArray[np.int64]:
        random = generator(self._seed, Purpose.SENTENCES, epoch, stream)
        sentences = self._by_bucket.copy()
        for first, last in zip(self._buckets[:-1], self._buckets[1:], strict=True):
            if last <= len(sentences) - self._sorted:
                random.shuffle(sentences[first:last])
        return sentences
