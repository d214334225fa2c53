"""The model on a CPU: numpy alone, no torch. `Engine` encodes distinct tokens, and runs pools of sentences over them."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Pool
from elmofire.engine.encoder import Encoder
from elmofire.engine.recurrence import Layer, run_layer
from elmofire.engine.state import State
from elmofire.formats.config import FORWARD
from elmofire.formats.weights import Array, Weights

Layers = list[Array]  # layers 0..L of a pool, each (rows, directions * width)


class Engine:
    """A biLM built from `Weights`. It holds no state and may be used from several threads."""

    name = "numpy"

    def __init__(self, weights: Weights, *, threads: int | None = None) -> None:
        self.config = weights.config
        self.threads = (
            threads or 1
        )  # numpy's products use all cores by themselves, and workers of ours would fight over them
        self._encoder = Encoder(weights)
        self._stacks = {
            direction: [Layer.of(weights, direction, k) for k in range(self.config.layers)]
            for direction in self.config.directions
        }
        self._head = (weights.arrays["head.weight"], weights.arrays["head.bias"]) if self.config.head else None

    def encode(self, ids: NDArray) -> Array:
        """Token ids (n, columns) -> vectors without context (n, E)."""
        return self._encoder(ids)

    def run(
        self, vectors: Array, pools: Iterable[Pool], *, depth: int | None = None, state: State | None = None
    ) -> Iterator[Layers]:
        """Layers 0..depth of each pool, in order. `vectors` are the distinct tokens' that the pools point to.

        A state (with a row for every sentence) is moved on in place, if the depth is the whole model's.
        """
        depth = self.config.layers if depth is None else depth
        if self.threads == 1:
            for pool in pools:
                halves = [
                    self._run_direction(direction, vectors, pool, depth, state) for direction in self.config.directions
                ]
                yield self._joined(vectors, pool, halves)
            return
        with ThreadPoolExecutor(self.threads) as workers:
            running: deque = deque()
            for pool in pools:
                tasks = [
                    workers.submit(self._run_direction, direction, vectors, pool, depth, state)
                    for direction in self.config.directions
                ]
                running.append((pool, tasks))
                if len(running) * len(self.config.directions) > self.threads:
                    pool, tasks = running.popleft()
                    yield self._joined(vectors, pool, [task.result() for task in tasks])
            while running:
                pool, tasks = running.popleft()
                yield self._joined(vectors, pool, [task.result() for task in tasks])

    def _run_direction(
        self, direction: str, vectors: Array, pool: Pool, depth: int, state: State | None
    ) -> list[Array]:
        """Outputs of layers 1..depth in the rows' own order."""
        config = self.config
        half = config.directions.index(direction)
        backward = direction != FORWARD
        inputs, index = vectors, pool.tokens[pool.mirror] if backward else pool.tokens
        outputs: list[Array] = []
        for k, layer in enumerate(self._stacks[direction][:depth]):
            hidden = np.s_[k, pool.sentences, half * config.projection : (half + 1) * config.projection]
            memory = np.s_[k, pool.sentences, half * config.cells : (half + 1) * config.cells]
            if state is None:
                h = np.zeros((len(pool.lengths), config.projection), dtype=np.float32)
                c = np.zeros((len(pool.lengths), config.cells), dtype=np.float32)
            else:
                h, c = state.hidden[hidden].copy(), state.memory[memory].copy()
            inputs, index = run_layer(layer, pool, inputs, index, h, c), None
            outputs.append(inputs[pool.mirror] if backward else inputs)
            if state is not None:
                state.hidden[hidden], state.memory[memory] = h, c
        return outputs

    def _joined(self, vectors: Array, pool: Pool, halves: list[list[Array]]) -> Layers:
        words = vectors[pool.tokens]
        return [
            np.concatenate([words] * len(halves), axis=1),
            *[np.concatenate(layer, axis=1) for layer in zip(*halves, strict=True)],
        ]

    def log_probabilities(self, vectors: Array) -> Array:
        """The head: top vectors of one direction (n, P) -> log-probabilities of every word (n, V)."""
        if self._head is None:
            raise ValueError("this model has no head")
        logits = vectors @ self._head[0].T
        logits += self._head[1]
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logits
