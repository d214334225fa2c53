"""Random numbers that are a function of the seed and of what they are for, so that nothing needs to be remembered."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """Numbers drawn for one thing have nothing to do with those for another."""

    SENTENCES = 0
    GROUPS = 1
    NEGATIVES = 2


def generator(seed: int, purpose: Purpose, *numbers: int) -> np.random.Generator:
    """A generator of its own for each purpose, epoch or update, and direction."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose, *numbers])))
