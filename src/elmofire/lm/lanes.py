"""Text as 2018's evaluation read it: in parallel lanes that carry the state on from sentence to sentence."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from elmofire.formats.config import FORWARD


class Place(NamedTuple):
    """Where a lane stands: a sentence between its boundaries, and how many of its predictions were made before."""

    bounded: Sequence[str]
    done: int

    def reads(self, direction: str) -> str:
        """The token that the direction's model is given here."""
        return self.bounded[self.done if direction == FORWARD else -1 - self.done]

    def predicts(self, direction: str) -> str:
        """The token that it has to predict from there."""
        return self.bounded[self.done + 1 if direction == FORWARD else -2 - self.done]


def lane_steps(sentences: Iterable[Sequence[str]], lanes: int) -> Iterator[list[Place]]:
    """One place per lane and step, for sentences given between their boundaries.

    Lanes are filled in turn: one whose sentence is used up takes the next. The first step that cannot be filled ends everything, and
    what the other lanes still held is dropped. A sentence is as long backward as it is forward, so both directions' lanes go together.

    >>> [place.predicts("forward") for place, in lane_steps([["<S>", "a", "b", "</S>"], ["<S>", "c", "</S>"]], 1)]
    ['a', 'b', '</S>', 'c', '</S>']
    """
    unread = iter(sentences)
    current = [Place(sentence, 0) for sentence in islice(unread, lanes)]
    if len(current) < lanes:
        return
    while True:
        yield list(current)
        for lane, place in enumerate(current):
            if place.done + 2 < len(place.bounded):
                current[lane] = Place(place.bounded, place.done + 1)
                continue
            sentence = next(unread, None)
            if sentence is None:
                return
            current[lane] = Place(sentence, 0)


def chunks(steps: Iterable[list[Place]], most_rows: int) -> Iterator[list[list[Place]]]:
    """Steps taken together, as many as have at most so many rows, though never less than one."""
    taken: list[list[Place]] = []
    for step in steps:
        if taken and (len(taken) + 1) * len(step) > most_rows:
            yield taken
            taken = []
        taken.append(step)
    if taken:
        yield taken
