"""A way through a text: what whole sentences and lanes have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from elmofire.train.settings import DataSettings
from elmofire.train.stream.building import Plan, Segments
from elmofire.train.stream.text import Text


class Reading(ABC):
    """Plans of updates. Where both directions read the same text, one stream of it serves both."""

    updates_per_epoch: int

    def __init__(self, text: Text, data: DataSettings, seed: int, directions: int) -> None:
        self._text = text
        self._seed = seed
        self._shuffled = data.order == "shuffled"
        self._directions = directions
        self._streams = directions if data.text == "different" else 1

    @abstractmethod
    def shapes(self) -> list[tuple[int, int]]:
        """Steps and rows of updates, the most frequent first."""

    @property
    @abstractmethod
    def carried_rows(self) -> int:
        """At most, of the updates whose state the next one needs."""

    @abstractmethod
    def plans(self, position: dict[str, Any] | None) -> Iterator[Plan]:
        """One plan after the other, without end."""

    @abstractmethod
    def sample(self, size: int) -> Iterator[Plan]:
        """Plans of the first epoch, about so many, of all kinds."""

    @abstractmethod
    def kinds(self) -> Iterator[Plan]:
        """One plan of every shape, for each use of the state."""

    def _by_direction(self, segments: list[Segments]) -> list[Segments]:
        """Of each direction, given those of each stream."""
        return segments if len(segments) == self._directions else segments * self._directions
