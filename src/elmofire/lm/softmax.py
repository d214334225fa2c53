"""The full softmax over the vocabulary, a block of words for a block of rows at a time, so that memory does not grow with either.

Every row keeps the largest logit so far and the sum of the exponentials below it; a block that holds a larger one rescales the sum.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Ints
from elmofire.formats.weights import Array

WORDS_AT_A_TIME = 8192
LOGITS_AT_A_TIME = 1 << 22  # of the block that is in memory: 16 MB


class Softmax:
    """A head (V, P), (V,) on the CPU; `torch_softmax.TorchSoftmax` is the same on a torch device."""

    def __init__(self, weight: Array, bias: Array) -> None:
        self.weight = weight
        self.bias = bias

    def log_probabilities_of(self, vectors: Array, targets: Ints) -> NDArray[np.float64]:
        """Top vectors of one direction (n, P) and the word that followed each (n,) -> its log-probabilities (n,) in float64."""
        highest = np.full(len(vectors), -np.inf)
        total = np.zeros(len(vectors))
        chosen = np.zeros(len(vectors))
        for words in blocks(len(self.bias), WORDS_AT_A_TIME):
            for rows in blocks(len(vectors), LOGITS_AT_A_TIME // WORDS_AT_A_TIME):
                logits = vectors[rows] @ self.weight[words].T
                logits += self.bias[words]
                inside = np.flatnonzero((targets[rows] >= words.start) & (targets[rows] < words.stop))
                chosen[rows][inside] = logits[inside, targets[rows][inside] - words.start]
                before = highest[rows].copy()
                np.maximum(before, logits.max(axis=1), out=highest[rows])
                logits -= highest[rows, None].astype(np.float32)
                np.exp(logits, out=logits)
                total[rows] *= np.exp(before - highest[rows])
                total[rows] += logits.sum(axis=1, dtype=np.float64)
        return chosen - highest - np.log(total)

    def log_probabilities(self, vector: Array) -> NDArray[np.float64]:
        """One top vector (P,) -> the log-probability of every word (V,) in float64."""
        logits = (self.weight @ vector + self.bias).astype(np.float64)
        logits -= logits.max()
        return logits - np.log(np.exp(logits).sum())


def blocks(length: int, size: int) -> Iterator[slice]:
    """0..length cut into slices of at most `size`."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))
