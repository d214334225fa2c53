"""The torch model behind the interface of the CPU engine, for embedding on a GPU: the same arrays in, the same arrays out."""

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from elmofire.engine import Layers
from elmofire.engine.batches import Pool
from elmofire.engine.state import State
from elmofire.formats.config import FORWARD
from elmofire.formats.weights import Array, Weights
from elmofire.kernels import LstmState, lstmp, pack_weights
from elmofire.kernels.paths import PRECISIONS, choose_path
from elmofire.model.bilm import BiLM
from elmofire.model.replay import Replay

_ENCODED_WORDS = 2048  # at a time
_FEW_WORDS = 32  # and fewer are filled up to so many
_SHORT_SENTENCE = 64  # tokens, boundaries counted
_WINDOW_ROWS = 32768  # LSTM rows at a time, padding counted; a longer pool goes on with the carried state


class TorchEngine:
    """A biLM on a torch device. It holds no state; calls from several threads are safe."""

    def __init__(self, weights: Weights, device: str, *, precision: str = "float32") -> None:
        self.config = weights.config
        self.device = torch.device(device)
        self.precision = precision
        path = choose_path("auto", self.device, PRECISIONS[precision], rows=_WINDOW_ROWS)
        self.name = "torch" if path == "torch" else f"torch ({path})"
        self.bilm = BiLM.from_weights(weights).to(self.device).eval().requires_grad_(False)
        with torch.inference_mode():
            self._weights = pack_weights(self.bilm.stack_weights(), precision)
        if precision == "bfloat16":
            self.bilm.encoder.to(torch.bfloat16)
        on_gpu = self.device.type == "cuda"
        self._encode_few = Replay(self._encoded, self.device) if on_gpu else None
        self._read_short = Replay(self._read, self.device) if on_gpu else None

    @torch.inference_mode()
    def encode(self, ids: NDArray) -> Array:
        """Token ids (n, columns) -> vectors without context (n, E)."""
        ids = ids.astype(np.int64)
        if self._encode_few is not None and 0 < len(ids) <= _FEW_WORDS:
            filled = np.zeros((_FEW_WORDS, ids.shape[1]), dtype=np.int64)
            filled[: len(ids)] = ids
            return self._encode_few(filled)[: len(ids)]
        parts = np.split(ids, range(_ENCODED_WORDS, len(ids), _ENCODED_WORDS))
        return torch.cat([self._encoded(self._to_device(part)) for part in parts]).cpu().numpy()

    @torch.inference_mode()
    def _encoded(self, ids: torch.Tensor) -> torch.Tensor:
        with exact_float32():
            return self.bilm.encoder(ids).float()

    @torch.inference_mode()
    def _read(self, vectors: torch.Tensor) -> torch.Tensor:
        """All layers but the first of one sentence (T, E) -> (L, T, D * P)."""
        inputs = torch.stack([vectors if d == FORWARD else vectors.flip(0) for d in self.config.directions])
        outputs, _ = self._stacks(inputs[:, :, None], None, self.bilm.zero_state(1))
        halves = [
            outputs[d, :, :, 0] if direction == FORWARD else outputs[d, :, :, 0].flip(1)
            for d, direction in enumerate(self.config.directions)
        ]
        return torch.cat(halves, dim=2)

    def run(
        self, vectors: Array, pools: Iterable[Pool], *, depth: int | None = None, state: State | None = None
    ) -> Iterator[Layers]:
        """Layers 0..depth of each pool, in order; a state is moved on in place. See `Engine.run`.

        While a pool's layers travel and are used, the device already works on the next.
        """
        depth = self.config.layers if depth is None else depth
        table: torch.Tensor | None = None
        behind: _Travelling | None = None
        for pool in pools:
            try:
                if self._read_short is not None and _is_short(pool, depth, state):
                    words = vectors[pool.tokens]
                    layers = [torch.from_numpy(layer) for layer in self._read_short(words)[:depth]]
                    travelling = _Travelling(self._doubled(words), layers)
                elif depth == 0:
                    travelling = _Travelling(self._doubled(vectors[pool.tokens]), [])
                else:
                    table = self._to_device(vectors) if table is None else table
                    travelling = self._start(vectors, table, pool, depth, state)
            except torch.OutOfMemoryError as error:
                if behind is not None:
                    yield behind.arrived()
                torch.cuda.empty_cache()
                raise MemoryError(f"a pool of {len(pool.tokens)} tokens does not fit the device") from error
            if behind is not None:
                yield behind.arrived()
            behind = travelling
        if behind is not None:
            yield behind.arrived()

    @torch.inference_mode()
    def _start(self, vectors: Array, table: torch.Tensor, pool: Pool, depth: int, state: State | None) -> "_Travelling":
        carried = self.bilm.zero_state(len(pool.lengths)) if state is None else self._state_in(state, pool)
        steps = max(1, _WINDOW_ROWS // len(pool.lengths))
        active = np.diff(pool.starts)
        halves: list[list[torch.Tensor]] = [[] for _ in self.config.directions]
        with exact_float32():
            for first in range(0, pool.steps, steps):
                last = min(first + steps, pool.steps)
                running = np.arange(active[first]) < active[first:last, None]
                rows = np.zeros((len(halves), *running.shape), dtype=np.int64)
                for d, direction in enumerate(self.config.directions):
                    order = pool.tokens if direction == FORWARD else pool.tokens[pool.mirror]
                    rows[d, running] = order[pool.starts[first] : pool.starts[last]]
                lengths = np.clip(pool.lengths[: active[first]] - first, 0, last - first)
                # Rows of one length need no masks.
                ragged = None if lengths[-1] == last - first else self._to_device(lengths)
                going_on = LstmState(*[part[:, :, : len(lengths)] for part in carried])
                outputs, after = self._stacks(table[self._to_device(rows)], ragged, going_on)
                carried = _rows_replaced(carried, after)
                # Step by step and row by row, without the padding: the pool's own order.
                places = self._to_device(np.flatnonzero(running))
                for d, half in enumerate(halves):
                    half.append(outputs[d, :depth].flatten(1, 2)[:, places])
        layers = [
            torch.cat(parts, dim=1)
            if direction == FORWARD
            else torch.cat(parts, dim=1)[:, self._to_device(pool.mirror)]
            for parts, direction in zip(halves, self.config.directions, strict=True)
        ]
        if state is not None:
            self._state_out(state, carried, pool)
        return _Travelling(self._doubled(vectors[pool.tokens]), list(torch.cat(layers, dim=2)))

    def _doubled(self, words: Array) -> Array:
        """Layer 0: the same for both directions."""
        return np.concatenate([words] * len(self.config.directions), axis=1)

    def _stacks(
        self, inputs: torch.Tensor, lengths: torch.Tensor | None, carried: LstmState
    ) -> tuple[torch.Tensor, LstmState]:
        return lstmp(
            inputs,
            self._weights,
            carried,
            lengths,
            cell_clip=self.config.cell_clip,
            projection_clip=self.config.projection_clip,
            skip_connections=self.config.skip_connections,
            precision=self.precision,
        )

    def _to_device(self, array: NDArray) -> torch.Tensor:
        """By way of pinned memory, so that nothing waits for the copy."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type != "cuda":
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _state_in(self, state: State, pool: Pool) -> LstmState:
        def split(array: Array) -> torch.Tensor:
            halves = np.split(array[:, pool.sentences], len(self.config.directions), axis=2)
            return torch.from_numpy(np.stack(halves)).to(self.device)

        return LstmState(split(state.hidden), split(state.memory))

    def _state_out(self, state: State, carried: LstmState, pool: Pool) -> None:
        state.hidden[:, pool.sentences] = np.concatenate(list(carried.hidden.cpu().numpy()), axis=2)
        state.memory[:, pool.sentences] = np.concatenate(list(carried.memory.cpu().numpy()), axis=2)


class _Travelling:
    """A pool's layers on their way from the device."""

    def __init__(self, layer0: Array, layers: list[torch.Tensor]) -> None:
        self._layer0 = layer0
        self._layers = layers
        self._event = None
        if layers and layers[0].is_cuda:
            self._layers = [
                torch.empty(layer.shape, dtype=layer.dtype, pin_memory=True).copy_(layer, non_blocking=True)
                for layer in layers
            ]
            self._event = torch.cuda.Event()
            self._event.record()

    def arrived(self) -> Layers:
        if self._event is not None:
            self._event.synchronize()
        return [self._layer0, *[layer.numpy() for layer in self._layers]]


def _is_short(pool: Pool, depth: int, state: State | None) -> bool:
    return depth > 0 and state is None and len(pool.lengths) == 1 and pool.steps <= _SHORT_SENTENCE


def _rows_replaced(state: LstmState, after: LstmState) -> LstmState:
    """The state with its first rows moved on: sentences that have ended keep theirs."""
    rows = after.hidden.shape[2]
    if rows == state.hidden.shape[2]:
        return after
    hidden, memory = state.hidden.clone(), state.memory.clone()
    hidden[:, :, :rows], memory[:, :, :rows] = after.hidden, after.memory
    return LstmState(hidden, memory)


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
