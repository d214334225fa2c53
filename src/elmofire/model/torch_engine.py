"""The torch model behind the interface of the CPU engine, for embedding on a GPU: the same arrays in, the same arrays out."""

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from elmofire.engine import Layers
from elmofire.engine.batches import Ints, Pool
from elmofire.engine.state import State
from elmofire.formats.config import FORWARD
from elmofire.formats.weights import Array, Weights
from elmofire.kernels import LstmState
from elmofire.model.bilm import BiLM

_ENCODED_WORDS = 2048  # at a time: 1.7 MB of window responses each in the published sizes
_WINDOW_ROWS = 8192  # LSTM rows at a time, padding counted; a longer pool goes on with the carried state


class TorchEngine:
    """A biLM on a torch device. It holds no state; calls from several threads are safe."""

    name = "torch"

    def __init__(self, weights: Weights, device: str) -> None:
        self.config = weights.config
        self.device = torch.device(device)
        self.bilm = BiLM.from_weights(weights).to(self.device).eval().requires_grad_(False)

    @torch.inference_mode()
    def encode(self, ids: NDArray) -> Array:
        """Token ids (n, columns) -> vectors without context (n, E)."""
        with exact_float32():
            parts = [
                self.bilm.encoder(torch.from_numpy(part.astype(np.int64)).to(self.device)).cpu().numpy()
                for part in np.split(ids, range(_ENCODED_WORDS, len(ids), _ENCODED_WORDS))
            ]
        return np.concatenate(parts)

    def run(
        self, vectors: Array, pools: Iterable[Pool], *, depth: int | None = None, state: State | None = None
    ) -> Iterator[Layers]:
        """Layers 0..depth of each pool, in order; a state is moved on in place. See `Engine.run`."""
        depth = self.config.layers if depth is None else depth
        for pool in pools:
            try:
                layers = self._run(vectors, pool, depth, state)
            except torch.OutOfMemoryError as error:
                torch.cuda.empty_cache()
                raise MemoryError(f"a pool of {len(pool.tokens)} tokens does not fit the device") from error
            yield layers

    @torch.inference_mode()
    def _run(self, vectors: Array, pool: Pool, depth: int, state: State | None) -> Layers:
        words = vectors[pool.tokens]
        joined = [np.concatenate([words] * len(self.config.directions), axis=1)]
        if depth == 0:
            return joined
        distinct, tokens = np.unique(pool.tokens, return_inverse=True)
        table = torch.from_numpy(vectors[distinct]).to(self.device)
        carried = self.bilm.zero_state(len(pool.lengths)) if state is None else self._state_in(state, pool)
        outputs = []
        with exact_float32():
            for first, last in self._windows(pool):
                inputs = torch.stack(
                    [table[self._padded(pool, tokens, direction, first, last)] for direction in self.config.directions]
                )
                lengths = torch.from_numpy(np.clip(pool.lengths - first, 0, last - first)).to(self.device)
                window, carried = self.bilm.run_stacks(inputs, lengths, carried)
                # Step by step and row by row, without the padding: the pool's own order.
                running = torch.arange(last - first, device=self.device)[:, None] < lengths
                outputs.append(window[:, :, running].cpu().numpy())
        if state is not None:
            self._state_out(state, carried, pool)
        rows = np.concatenate(outputs, axis=2)  # (D, L, rows, P)
        halves = [
            half if direction == FORWARD else half[:, pool.mirror]
            for half, direction in zip(rows, self.config.directions, strict=True)
        ]
        return joined + [np.concatenate([half[k] for half in halves], axis=1) for k in range(depth)]

    @staticmethod
    def _windows(pool: Pool) -> Iterator[tuple[int, int]]:
        steps = max(1, _WINDOW_ROWS // len(pool.lengths))
        for first in range(0, pool.steps, steps):
            yield first, min(first + steps, pool.steps)

    def _padded(self, pool: Pool, tokens: Ints, direction: str, first: int, last: int) -> torch.Tensor:
        """Token places (T, B) of some steps in a direction's reading order."""
        order = tokens if direction == FORWARD else tokens[pool.mirror]
        padded = np.zeros((last - first, len(pool.lengths)), dtype=np.int64)
        for t in range(first, last):
            padded[t - first, : pool.active(t)] = order[pool.starts[t] : pool.starts[t + 1]]
        return torch.from_numpy(padded).to(self.device)

    def _state_in(self, state: State, pool: Pool) -> LstmState:
        def split(array: Array) -> torch.Tensor:
            halves = np.split(array[:, pool.sentences], len(self.config.directions), axis=2)
            return torch.from_numpy(np.stack(halves)).to(self.device)

        return LstmState(split(state.hidden), split(state.memory))

    def _state_out(self, state: State, carried: LstmState, pool: Pool) -> None:
        state.hidden[:, pool.sentences] = np.concatenate(list(carried.hidden.cpu().numpy()), axis=2)
        state.memory[:, pool.sentences] = np.concatenate(list(carried.memory.cpu().numpy()), axis=2)


def as_tensors(arrays: tuple[NDArray, NDArray], device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    array, mask = arrays
    return torch.from_numpy(array).to(device), torch.from_numpy(mask).to(device)


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Products in full float32, whatever the program around has allowed; TF32 has errors of a thousandth."""
    allowed = torch.get_float32_matmul_precision()
    if allowed == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)
