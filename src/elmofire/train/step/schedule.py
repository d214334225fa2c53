"""The learning rate of every update."""

import math
from typing import Any

from elmofire.errors import RecipeError
from elmofire.train.settings import OptimizerSettings


class Schedule:
    """Warm-up from zero, then what the settings say, over the run's updates; without these, over its minutes.

    >>> schedule = Schedule(OptimizerSettings(rate=1.0, warmup=2, schedule="linear"), updates=6)
    >>> [schedule.rate(number) for number in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    def __init__(
        self, settings: OptimizerSettings, *, updates: int | None = None, minutes: float | None = None
    ) -> None:
        if settings.schedule in ("linear", "cosine") and updates is None and minutes is None:
            raise RecipeError(
                f"schedule is {settings.schedule!r}, but neither updates nor minutes say when the run ends"
            )
        self.settings, self.updates, self.minutes = settings, updates, minutes
        self._halvings = 0  # plateau
        self._last: float | None = None  # plateau: perplexity of the last evaluation

    def rate(self, number: int, minutes: float = 0.0) -> float:
        """Of update `number`, from 0, when so many minutes of the run have passed (which count where updates are not given)."""
        warmup = self.settings.warmup
        if number < warmup:
            return self.settings.rate * (number + 1) / warmup
        match self.settings.schedule:
            case "linear":
                share = 1 - self._progress(number, minutes)
            case "cosine":
                share = (1 + math.cos(math.pi * self._progress(number, minutes))) / 2
            case "plateau":
                share = 0.5**self._halvings
            case _:
                share = 1.0
        return self.settings.rate * share

    def _progress(self, number: int, minutes: float) -> float:
        """How much of what follows the warm-up has passed.

        Minutes say how many updates the run would have if it went on as it did: number * minutes of the run / minutes passed.
        """
        warmup = self.settings.warmup
        total = float("inf") if self.updates is None else self.updates
        if self.updates is None and minutes > 0:
            assert self.minutes is not None
            total = number * self.minutes / minutes
        return (number - warmup) / (total - warmup) if number < total else float(number > warmup)

    def evaluated(self, perplexity: float) -> None:
        """An evaluation's mean perplexity: on a plateau, the rate is half of what it was from the next update on."""
        # Not the other way round: NaN is no gain.
        if self._last is not None and not self._last - perplexity > self.settings.plateau_gain:
            self._halvings += 1
        self._last = perplexity

    def state(self) -> dict[str, Any]:
        """What evaluations left, for a checkpoint; can be JSON."""
        return {"halvings": self._halvings, "last": self._last}

    def load(self, state: dict[str, Any]) -> None:
        self._halvings, self._last = state["halvings"], state["last"]
