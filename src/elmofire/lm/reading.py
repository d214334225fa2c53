"""The top layer of each direction, where the predictions are made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from elmofire.embed.embedder import Embedder
from elmofire.engine import Engine
from elmofire.engine.batches import make_pool
from elmofire.engine.state import State
from elmofire.formats.config import FORWARD
from elmofire.formats.weights import Array
from elmofire.lm.softmax import Softmax

if TYPE_CHECKING:
    from elmofire.lm.torch_softmax import TorchSoftmax


class Reader(Embedder):
    """An Embedder that also reads tokens as they come, without boundaries of its own, going on from a carried state."""

    def make_softmax(self, weight: Array, bias: Array) -> "Softmax | TorchSoftmax":
        """The head, where this model runs."""
        if isinstance(self._engine, Engine):
            return Softmax(weight, bias)
        from elmofire.lm.torch_softmax import TorchSoftmax

        return TorchSoftmax(weight, bias, self._engine.device)

    def half(self, vectors: Array, direction: str) -> Array:
        """One direction's part (.., P) of the top layer's vectors."""
        first = self.config.directions.index(direction) * self.config.projection
        return vectors[..., first : first + self.config.projection]

    def read_on(self, rows: Sequence[Sequence[str]], direction: str, state: State) -> list[Array]:
        """Top vectors (tokens, P) of each row's tokens, given in the direction's reading order; the state is moved on in place.

        The other direction's part of the state has no meaning afterwards.
        """
        # The engine turns round what the backward direction reads; turned round before, it is read as given.
        order = 1 if direction == FORWARD else -1
        words: dict[str, int] = {}
        sequences = [
            np.array([words.setdefault(token, len(words)) for token in row], dtype=np.int64)[::order] for row in rows
        ]
        pool = make_pool(sequences, np.arange(len(rows)))
        first = direction == self.config.directions[0]  # the other reads the same tokens: long ones count once
        vectors = self._encode(list(words), sequences if first else ())
        top = self.half(next(iter(self._engine.run(vectors, [pool], state=state)))[-1], direction)
        results = [top[:0]] * len(rows)
        for b, number in enumerate(pool.sentences):
            results[number] = top[pool.rows_of(b)[::order]]
        return results
