"""The ways through a text by their definitions: Python lists, one cell after the other."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from elmofire.train.settings import DataSettings, LossSettings, Recipe, TrainSettings
from elmofire.train.stream.batch import Batch, Update

Cell = tuple[int, int]  # the word that is read and the one that is predicted

texts = st.lists(
    st.tuples(
        st.lists(st.integers(3, 39), min_size=1, max_size=3),
        st.lists(st.lists(st.integers(3, 39), max_size=12), max_size=9),
    ),
    min_size=1,
    max_size=3,
).map(lambda shards: [[first, *others] for first, others in shards])


def recipe(*, tokens: int = 24, seed: int = 1, softmax: str = "full", samples: int = 5, **data) -> Recipe:
    return Recipe(
        data=DataSettings(**{"lengths": (2, 4, 6), **data}),
        loss=LossSettings(softmax=softmax, samples=samples),
        train=TrainSettings(updates=1, batch_tokens=tokens, seed=seed),
    )


def pairs(sentence: list[int], *, backward: bool) -> list[Cell]:
    elements = [1, *reversed(sentence), 0] if backward else [0, *sentence, 1]
    return list(pairwise(elements))


def shown(pairs: list[Cell], vocabulary: int = 30) -> list[Cell]:
    """With what the head predicts: 2 for words it does not know."""
    return [(word, target if target < vocabulary else 2) for word, target in pairs]


def cells(batch: Batch, direction: int) -> list[list[Cell | None]]:
    """What each row reads and predicts; None where nothing is predicted."""
    words = batch.words[batch.inputs[direction]].T.tolist()
    targets = batch.targets[direction].T.tolist()
    return [
        [None if target == -1 else (word, target) for word, target in zip(*row, strict=True)]
        for row in zip(words, targets, strict=True)
    ]


def slow_lanes(sentences: Iterator[list[int]], lanes: int, steps: int, *, backward: bool) -> Iterator[list[list[Cell]]]:
    """Updates, which are lanes, which are cells."""
    left: list[list[Cell]] = [[] for _ in range(lanes)]
    while True:
        update: list[list[Cell]] = []
        for lane in range(lanes):
            row: list[Cell] = []
            while len(row) < steps:
                if not left[lane]:
                    left[lane] = pairs(next(sentences), backward=backward)
                row.append(left[lane].pop(0))
            update.append(row)
        yield update


def slow_sentences(
    text: list[list[int]], grid: tuple[int, ...], tokens: int, multiple: int
) -> list[tuple[int, int, int, list[int]]]:
    """An epoch in the text's order: (steps, rows, window, sentences) of each update."""
    buckets: dict[tuple[int, int], list[int]] = {}
    for number, sentence in enumerate(text):
        steps = len(sentence) + 1
        windows = math.ceil(steps / grid[-1])
        fitting = [length for length in grid if length * windows >= steps]
        key = (fitting[0], windows) if windows <= 2 else (grid[-1], 3)
        buckets.setdefault(key, []).append(number)
    groups = []
    for (steps, windows), members in buckets.items():
        if windows == 3:
            members.sort(key=lambda number: len(text[number]))
        rows = max(multiple, math.floor(tokens / steps / multiple + 0.5) * multiple)
        for first in range(0, len(members), rows):
            group = members[first : first + rows]
            needed = math.ceil((len(text[group[-1]]) + 1) / steps) if windows == 3 else windows
            groups.append((members[first], steps, rows, needed, group))
    return [
        (steps, rows, window, members)
        for _, steps, rows, windows, members in sorted(groups)
        for window in range(windows)
    ]


def same(one: Update, other: Update) -> bool:
    """Whether two updates are equal, down to the types of their arrays."""
    return _plain(one) == _plain(other)


def _plain(value):
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
