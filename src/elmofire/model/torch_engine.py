"""The torch model behind the interface of the CPU engine, for embedding on a GPU: the same arrays in, the same arrays out."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from elmofire.engine.batches import Ints, Pool
from elmofire.engine.mixing import Layers, Mix
from elmofire.engine.spill import LIMIT_ROWS, allocate
from elmofire.engine.state import State
from elmofire.formats.config import FORWARD
from elmofire.formats.weights import Array, Weights
from elmofire.kernels import LstmState, lstmp, pack_weights
from elmofire.kernels.paths import PRECISIONS, choose_path
from elmofire.model.bilm import BiLM
from elmofire.model.exact_float32 import exact_float32
from elmofire.model.replay import Replay

_ENCODED_WORDS = 2048  # at a time
_FEW_WORDS = 32  # fewer are filled up to so many, so that one CUDA graph serves them
_SHORT_SENTENCE = 64  # tokens, boundaries counted
_WINDOW_ROWS = 32768  # LSTM rows at a time, padding counted; a longer pool goes on with the carried state
_LEAST_ROWS = 64  # that a step counts as: kernels fill up a few, and what a step of them takes is far more than a row
# Of a sentence alone: one that is longer is no batch's size, and leaves the device window by window.
_LONG_STEPS = LIMIT_ROWS


_OnDevice = Callable[[], torch.Tensor]  # the distinct words' vectors, sent when they are first asked for


class TorchEngine:
    """A biLM on a torch device. It holds no state; calls from several threads are safe."""

    def __init__(self, weights: Weights, device: str, *, precision: str = "float32") -> None:
        self.config = weights.config
        self.device = torch.device(device)
        self.precision = precision
        self.batch_tokens = 8192  # that run together
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
        with exact_float32(self.device):
            return self.bilm.encoder(ids).float()

    @torch.inference_mode()
    def _read(self, vectors: torch.Tensor) -> torch.Tensor:
        """All layers but the first of one sentence (T, E) -> (L, T, D * P)."""
        inputs = torch.stack([vectors if d == FORWARD else vectors.flip(0) for d in self.config.directions])
        with exact_float32(self.device):
            outputs, _ = self._stacks(inputs[:, :, None], None, self.bilm.zero_state(1))
        halves = [
            outputs[d, :, :, 0] if direction == FORWARD else outputs[d, :, :, 0].flip(1)
            for d, direction in enumerate(self.config.directions)
        ]
        return torch.cat(halves, dim=2)

    def by_sentence(
        self, vectors: Array, pools: Sequence[Pool], mix: Mix, *, state: State | None = None
    ) -> Iterator[list[Array]]:
        """What a caller gets of each pool's sentences. See `Engine.by_sentence`.

        Layers are mixed, and rows brought into the order of the text, on the device: what has to travel is what was asked for.
        """
        depth = mix.depth if state is None else self.config.layers

        def start(pool: Pool, table: _OnDevice) -> Callable[[], list[Array]]:
            if _is_long(pool):
                return partial(mix.by_sentence, pool, self._long(vectors, pool, depth, state)[: mix.depth + 1])
            steps, rows = _in_sentences(pool, skipped=0 if mix.boundaries else 1)
            layers = self._layers(table(), pool, steps, rows, depth, state)[: mix.depth + 1]
            travelling = _Travelling(layers if mix.shares is None else [_mixed(layers, mix)])
            ends = np.cumsum(pool.lengths - (0 if mix.boundaries else 2)).tolist()
            cuts = [slice(first, last) for first, last in pairwise([0, *ends])]

            def sentences() -> list[Array]:
                arrays = travelling.arrived()
                # Copies: the arrays lie in pinned memory, of which there is little.
                return [
                    np.stack([a[cut] for a in arrays]) if mix.shares is None else arrays[0][cut].copy() for cut in cuts
                ]

            return sentences

        if self._read_short is not None and mix.depth and state is None and len(pools) == 1 and _is_short(pools[0]):
            words = vectors[pools[0].tokens]
            layer0 = np.concatenate([words] * len(self.config.directions), axis=1)
            yield mix.by_sentence(pools[0], [layer0, *self._read_short(words)[: mix.depth]])
            return
        yield from self._one_behind(vectors, pools, start)

    def run(self, vectors: Array, pools: Sequence[Pool], *, state: State | None = None) -> Iterator[Layers]:
        """All layers of each pool, its rows in its own order; a state is moved on in place. See `Engine.run`."""

        def start(pool: Pool, table: _OnDevice) -> Callable[[], Layers]:
            if _is_long(pool):
                layers = self._long(vectors, pool, self.config.layers, state)
                return lambda: layers
            return _Travelling(self._layers(table(), pool, *_in_steps(pool), self.config.layers, state)).arrived

        yield from self._one_behind(vectors, pools, start)

    def _one_behind(
        self, vectors: Array, pools: Sequence[Pool], start: "Callable[[Pool, _OnDevice], Callable[[], list[Array]]]"
    ) -> Iterator[list[Array]]:
        """What was started of each pool: while it travels and is used, the device already works on the next."""
        # Sent when it is first asked for: a long sentence sends its own words as it goes.
        table = cache(lambda: self._to_device(vectors))
        behind: Callable[[], list[Array]] | None = None
        for pool in pools:
            try:
                travelling = start(pool, table)
            except torch.OutOfMemoryError as error:
                if behind is not None:
                    yield behind()
                torch.cuda.empty_cache()
                raise MemoryError(f"a pool of {len(pool.tokens)} tokens does not fit the device") from error
            if behind is not None:
                yield behind()
            behind = travelling
        if behind is not None:
            yield behind()

    @torch.inference_mode()
    def _long(self, vectors: Array, pool: Pool, depth: int, state: State | None) -> Layers:
        """Layers 0..depth of one sentence of any length: what the device holds is one window's, and all of it lies in mapped files."""
        layers = [allocate((pool.steps, width)) for width in self.config.layer_widths[: depth + 1]]
        carried = self.bilm.zero_state(1) if state is None else self._state_in(state, pool)
        at_once = max(1, _WINDOW_ROWS // _LEAST_ROWS)
        for first in range(0, pool.steps, at_once):
            last = min(first + at_once, pool.steps)
            # Where each direction reads now, and how: the backward one begins at the end.
            places = {
                direction: (slice(first, last), slice(None))
                if direction == FORWARD
                else (slice(pool.steps - last, pool.steps - first), slice(None, None, -1))
                for direction in self.config.directions
            }
            words = [vectors[pool.tokens[rows]] for rows, _ in places.values()]
            inputs = np.stack([read[order] for read, (_, order) in zip(words, places.values(), strict=True)])
            found = None
            if depth:
                with exact_float32(self.device):
                    outputs, carried = self._stacks(self._to_device(inputs)[:, :, None], None, carried)
                found = outputs[:, :depth, :, 0].float().cpu().numpy()  # (D, depth, steps, P)
            for d, (rows, order) in enumerate(places.values()):
                for k, layer in enumerate(layers):
                    half = words[d] if found is None or k == 0 else found[d, k - 1][order]
                    layer[rows, d * half.shape[1] : (d + 1) * half.shape[1]] = half
        if state is not None:
            self._state_out(state, carried, pool)
        return layers

    @torch.inference_mode()
    def _layers(
        self, table: torch.Tensor, pool: Pool, steps: Ints, sentences: Ints, depth: int, state: State | None
    ) -> list[torch.Tensor]:
        """Layers 0..depth on the device, each (rows, D * width): row r is step `steps[r]` of the pool's sentence `sentences[r]`."""
        words = table[self._to_device(pool.tokens[pool.starts[steps] + sentences])]
        layer0 = words.repeat(1, len(self.config.directions))
        if depth == 0:
            return [layer0]
        carried = self.bilm.zero_state(len(pool.lengths)) if state is None else self._state_in(state, pool)
        at_once = max(1, _WINDOW_ROWS // max(len(pool.lengths), _LEAST_ROWS))
        active = np.diff(pool.starts)
        windows: list[torch.Tensor] = []  # (D, depth, their rows, P), padding and all
        starts = np.empty(pool.steps, dtype=np.int64)  # of the steps, where the windows follow on each other
        read = 0
        with exact_float32(self.device):
            for first in range(0, pool.steps, at_once):
                last = min(first + at_once, pool.steps)
                running = np.arange(active[first]) < active[first:last, None]
                tokens = np.zeros((len(self.config.directions), *running.shape), dtype=np.int64)
                for d, direction in enumerate(self.config.directions):
                    order = pool.tokens if direction == FORWARD else pool.tokens[pool.mirror]
                    tokens[d, running] = order[pool.starts[first] : pool.starts[last]]
                lengths = np.clip(pool.lengths[: active[first]] - first, 0, last - first)
                # Rows of one length need no masks.
                ragged = None if lengths[-1] == last - first else self._to_device(lengths)
                going_on = LstmState(*[part[:, :, : len(lengths)] for part in carried])
                outputs, after = self._stacks(table[self._to_device(tokens)], ragged, going_on)
                carried = _rows_replaced(carried, after)
                # A copy where there is one sentence, which is a view of many rows' room otherwise.
                windows.append(outputs[:, :depth].flatten(2, 3).contiguous())
                starts[first:last] = read + np.arange(last - first) * len(lengths)
                read += running.size
        if state is not None:
            self._state_out(state, carried, pool)
        outputs = torch.cat(windows, dim=2) if len(windows) > 1 else windows[0]
        mirrored = pool.lengths[sentences] - 1 - steps
        halves = [
            outputs[d][:, self._to_device(starts[steps if direction == FORWARD else mirrored] + sentences)]
            for d, direction in enumerate(self.config.directions)
        ]
        return [layer0, *torch.cat(halves, dim=2)]

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
    """Tensors on their way from the device."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._event = None
        if tensors[0].is_cuda:
            self._tensors = [
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
                for tensor in tensors
            ]
            self._event = torch.cuda.Event()
            self._event.record()

    def arrived(self) -> list[Array]:
        if self._event is not None:
            self._event.synchronize()
        return [tensor.numpy() for tensor in self._tensors]


def _in_steps(pool: Pool) -> tuple[Ints, Ints]:
    """The step and the sentence of every row, in the pool's own order."""
    steps = np.repeat(np.arange(pool.steps), np.diff(pool.starts))
    return steps, np.arange(len(steps)) - pool.starts[steps]


def _in_sentences(pool: Pool, skipped: int) -> tuple[Ints, Ints]:
    """The same, one sentence after the other, so many steps left out at both ends of each."""
    lengths = pool.lengths - 2 * skipped
    sentences = np.repeat(np.arange(len(lengths)), lengths)
    return np.arange(len(sentences)) - (np.cumsum(lengths) - lengths)[sentences] + skipped, sentences


@torch.inference_mode()
def _mixed(layers: list[torch.Tensor], mix: Mix) -> torch.Tensor:
    """As `Mix` does it, to the bit."""
    if mix.shares is None or mix.top_alone:
        return layers[-1]
    mixed = layers[0] * mix.shares[0]
    for share, layer in zip(mix.shares[1:], layers[1:], strict=True):
        mixed += share * layer
    return mixed


def _is_long(pool: Pool) -> bool:
    return len(pool.lengths) == 1 and pool.steps > _LONG_STEPS


def _is_short(pool: Pool) -> bool:
    return len(pool.lengths) == 1 and pool.steps <= _SHORT_SENTENCE


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
