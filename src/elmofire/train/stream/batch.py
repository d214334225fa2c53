"""What training consumes: updates, made of batches."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Kind(NamedTuple):
    """What batches have in common that run alike."""

    steps: int
    rows: int
    carried: bool
    kept: bool


class Batch(NamedTuple):
    """The rows of one part of an update on one rank; D directions, T steps, B rows."""

    words: NDArray[np.int64]  # (W,) the distinct words: ids of the corpus's table, rising
    inputs: NDArray[np.int32]  # (D, T, B) each direction in its own reading order: places in `words`
    targets: NDArray[np.int32]  # (D, T, B) ids of the vocabulary to predict; -1: nothing
    resets: NDArray[np.bool_] | None  # (D, T, B) zero state before that step
    carried: bool  # rows go on from the state after the previous update
    kept: bool  # the next update goes on from the state after this one

    @property
    def kind(self) -> Kind:
        _, steps, rows = self.inputs.shape
        return Kind(steps, rows, self.carried, self.kept)


class Update(NamedTuple):
    """What changes the parameters once."""

    number: int  # from 0
    parts: list[Batch]  # one after the other, their gradients added up; this rank's rows only
    tokens: tuple[int, ...]  # to predict in the whole update, all ranks and parts, by direction
    negatives: list[tuple[NDArray[np.int32], int]]  # per direction: distinct ids, the draws they took; full softmax: []
    epoch: float  # how much of the text was read after it
    position: dict[str, Any]  # with which the stream goes on after it
