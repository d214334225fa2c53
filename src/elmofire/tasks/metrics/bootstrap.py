"""Is one system better than another? The paired bootstrap over test sentences (Efron and Tibshirani 1993; Koehn 2004).

Both systems are scored on the same sentences, drawn again and again with replacement. A system that was trained with several seeds
counts by the mean of their scores, and a draw is the same for all seeds of both: what the interval measures is the choice of
sentences, within these seeds.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elmofire.errors import InputError

Counts = npt.NDArray[np.integer]
Scores = npt.NDArray[np.float64]
Metric = Callable[[Scores], Scores]

RESAMPLES = 10_000
_DRAWN = 2**22  # sentences at a time: three or four arrays of 32 MB


class Interval(NamedTuple):
    """A difference and where 95% of the resampled ones lie."""

    difference: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def accuracy(counts: Scores) -> Scores:
    """Right of all: the last axis of the counts is (right, all)."""
    right, total = np.moveaxis(counts, -1, 0)
    return _ratio(right, total)


def span_f1(counts: Scores) -> Scores:
    """F1 over spans: the last axis of the counts is (right, predicted, gold). Where there are none at all it is 0.

    >>> span_f1(np.array([[8.0, 10.0, 10.0], [0.0, 0.0, 0.0]]))
    array([0.8, 0. ])
    """
    right, predicted, gold = np.moveaxis(counts, -1, 0)
    return _ratio(2 * right, predicted + gold)


def paired_bootstrap(
    first: Counts, second: Counts, metric: Metric, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """How much better `first` is than `second`: the difference of their metrics and its 95% percentile interval.

    Counts are (seeds, sentences, kinds of counts), of the same sentences in the same order; the systems may have different numbers of
    seeds. `metric` makes scores (...) out of counts (..., kinds) that are summed over sentences.

    >>> second = np.array([[[1, 2], [3, 4], [0, 1]]])  # one seed, three sentences: (right, all)
    >>> paired_bootstrap(second + [1, 0], second, accuracy, resamples=100).difference  # 7 of 7 against 4
    0.4285714285714286
    """
    first, second = np.asarray(first), np.asarray(second)
    if first.ndim != 3 or second.ndim != 3 or first.shape[1:] != second.shape[1:] or 0 in first.shape + second.shape:
        raise InputError(
            f"the counts have the shapes {first.shape} and {second.shape}, but should be (seeds, sentences, kinds)",
            hint="both systems are scored on the same sentences, each once",
        )
    sentences = first.shape[1]
    systems = [counts.transpose(1, 0, 2).astype(np.float64) for counts in (first, second)]

    def differences(times: Scores) -> Scores:
        """Of resamples that hold each sentence so many times: (resamples, sentences) -> (resamples,)"""
        # Sums of whole numbers are exact, so that neither blocks nor threads change a result.
        means = [metric(np.tensordot(times, counts, axes=1)).mean(axis=1) for counts in systems]
        return means[0] - means[1]

    rng = np.random.default_rng(seed)
    rows = max(1, _DRAWN // sentences)
    resampled = [
        differences(_times_drawn(rng, min(rows, resamples - done), sentences)) for done in range(0, resamples, rows)
    ]
    low, high = np.quantile(np.concatenate(resampled), [0.025, 0.975])
    return Interval(float(differences(np.ones((1, sentences)))[0]), float(low), float(high))


def _times_drawn(rng: np.random.Generator, resamples: int, sentences: int) -> Scores:
    """How often each sentence is drawn in each resample: (resamples, sentences)"""
    drawn = rng.integers(sentences, size=(resamples, sentences)) + sentences * np.arange(resamples)[:, None]
    times = np.bincount(drawn.ravel(), minlength=resamples * sentences)
    return times.reshape(resamples, sentences).astype(np.float64)


def _ratio(part: Scores, whole: Scores) -> Scores:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
