"""What the LSTMs carry from one batch to the next: an argument and a result, never hidden."""

from dataclasses import dataclass

import numpy as np

from elmofire.errors import InputError
from elmofire.formats.config import BilmConfig
from elmofire.formats.weights import Array


@dataclass(frozen=True)
class State:
    """Row r belongs to row r of every batch. Directions lie side by side, forward first."""

    hidden: Array  # (layers, rows, directions * projection)
    memory: Array  # (layers, rows, directions * cells)

    @classmethod
    def zero(cls, config: BilmConfig, rows: int = 0) -> "State":
        wide = len(config.directions)
        return cls(
            np.zeros((config.layers, rows, wide * config.projection), dtype=np.float32),
            np.zeros((config.layers, rows, wide * config.cells), dtype=np.float32),
        )

    @property
    def rows(self) -> int:
        return self.hidden.shape[1]

    def grown(self, rows: int) -> "State":
        """A copy with at least so many rows; new ones are zero."""
        more = ((0, 0), (0, max(rows - self.rows, 0)), (0, 0))
        return State(np.pad(self.hidden, more), np.pad(self.memory, more))

    def check(self, config: BilmConfig) -> None:
        """Does it belong to such a model?"""
        fresh = State.zero(config)
        for name in ("hidden", "memory"):
            found, wanted = getattr(self, name).shape, getattr(fresh, name).shape
            if len(found) != 3 or (found[0], found[2]) != (wanted[0], wanted[2]) or found[1] != self.rows:
                raise InputError(
                    f"the state's {name} has the shape {found}, but this model needs ({wanted[0]}, rows, {wanted[2]})",
                    hint="a state goes on only with the model that made it; zero_state() starts one",
                )
