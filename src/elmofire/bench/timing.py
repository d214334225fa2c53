"""Clocks and what is said of their readings."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict


class Spread(TypedDict):
    """The middle and the ends of some measurements."""

    median: float
    least: float
    most: float
    repeats: int


def spread(values: Sequence[float]) -> Spread:
    """What a record keeps of repeated measurements.

    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'least': 1.0, 'most': 3.0, 'repeats': 3}
    """
    ordered = sorted(values)
    return {"median": ordered[len(ordered) // 2], "least": ordered[0], "most": ordered[-1], "repeats": len(ordered)}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed: always one that was measured.

    >>> percentile([5.0, 1.0, 3.0, 2.0], 0.5), percentile([5.0, 1.0, 3.0, 2.0], 0.99)
    (2.0, 5.0)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def alternated(
    calls: Mapping[str, Callable[[], object]], repeats: int, *, pause: float = 0.0, wait: Callable[[], object] = int
) -> dict[str, list[float]]:
    """Seconds of each call, `repeats` times: one call after the other, then all again, so that a busy minute hurts them alike.

    `wait` ends what a call has only begun (a GPU's queue); `pause` lets the machine rest before each.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            time.sleep(pause)
            wait()
            start = time.perf_counter()
            call()
            wait()
            seconds[name].append(time.perf_counter() - start)
    return seconds
