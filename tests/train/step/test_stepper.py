"""What the stepper does with batches that do not fit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elmofire.train.step.stepper import halves
from elmofire.train.stream.batch import Batch


@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 2**31))
def test_halves_hold_every_row_once_and_their_own_words_alone(rows, steps, seed):
    rng = np.random.default_rng(seed)
    words = np.unique(rng.integers(0, 1000, size=30))
    inputs = rng.integers(0, len(words), size=(2, steps, rows)).astype(np.int32)
    targets = rng.integers(-1, 50, size=(2, steps, rows)).astype(np.int32)
    parts = list(halves(Batch(words, inputs, targets, None, carried=False, kept=False)))
    there = np.zeros(rows, dtype=int)
    for part in parts:
        mine = [row for row in range(rows) if row < rows // 2] if part is parts[0] else list(range(rows // 2, rows))
        there[mine] += 1
        np.testing.assert_array_equal(part.words[part.inputs[:, :, mine]], words[inputs[:, :, mine]])
        np.testing.assert_array_equal(part.targets[:, :, mine], targets[:, :, mine])
        others = [row for row in range(rows) if row not in mine]
        assert (part.targets[:, :, others] == -1).all()
        assert set(part.words.tolist()) == set(words[inputs[:, :, mine]].ravel().tolist())
    assert (there == 1).all()
