"""The model on a CPU, without torch. `Engine` encodes distinct tokens, and runs pools of sentences over them."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Pool
from elmofire.engine.compiled import floats, kernels_for, packed_files, packing
from elmofire.engine.encoder import Encoder, NumpyEncoder
from elmofire.engine.mixing import Layers, Mix
from elmofire.engine.recurrence import Carried, Layer, NumpyLayer, run_stack
from elmofire.engine.spill import room
from elmofire.engine.state import State
from elmofire.engine.workers import Workers, one_by_one, usable_cores
from elmofire.errors import InputError
from elmofire.formats.config import FORWARD, BilmConfig, tensor_shapes
from elmofire.formats.weights import Array, Weights

_WORDS_WORTH_A_THREAD = 16  # for fewer, the weights are read anew for too little
# Of the weights that its rows meet, one by one: for less, waking a thread takes longer than it saves.
_BYTES_WORTH_A_THREAD = 32 << 20


class Engine:
    """A biLM built from `Weights`. It holds no state and may be used from several threads.

    `threads` are all cores that the process may use, or one in numpy, whose products take the cores they want by themselves.
    `precision` is float32, int16 or int8; `instruction_set` one of `library.available()`, or `numpy`.

    >>> from elmofire import load_weights
    >>> from elmofire.engine.batches import make_pools
    >>> engine = Engine(load_weights("random-small"), threads=1)
    >>> vectors = engine.encode(np.full((3, 50), 261, dtype=np.int32))
    >>> [pool] = make_pools([np.array([0, 2, 1])], 100)
    >>> [layer.shape for layer in next(engine.run(vectors, [pool]))]
    [(3, 256), (3, 256), (3, 256)]
    """

    def __init__(
        self,
        weights: Weights,
        *,
        threads: int | None = None,
        precision: str = "float32",
        instruction_set: str | None = None,
    ) -> None:
        config = self.config = weights.config
        # Tokens that run together. In the original size 2,048 are 9% slower, 8,192 no faster; in the small one it hardly matters (Zen 4).
        # Memory goes with it: some 16 KB a token in the original size while it runs, whatever the input.
        self.batch_tokens = 4096
        kernels = kernels_for(instruction_set)
        stacks = [(direction, range(config.layers)) for direction in config.directions]
        if precision not in packing.PRECISIONS:
            raise InputError(f"precision is {precision!r}, but should be one of {', '.join(packing.PRECISIONS)}")
        if kernels is None:
            if precision != "float32":
                raise InputError(
                    f"precision is {precision}, but numpy has float32 only",
                    hint="integers need the compiled kernels: a wheel that has them, or a C compiler where there is none",
                )
            self.name = "numpy"
            self._encoder = Encoder(config.encoder, NumpyEncoder(weights))
            self._stacks: dict[str, Sequence[Layer]] = {
                way: [NumpyLayer.of(weights, way, k) for k in layers] for way, layers in stacks
            }
        else:
            self.name = f"c ({kernels.name})"
            how = (config, kernels, precision, packed_files.packed_arrays(weights, kernels, precision))
            self._encoder = Encoder(config.encoder, packing.CompiledEncoder(*how))
            self._stacks = {way: [packing.CompiledLayer(*how, way, k) for k in layers] for way, layers in stacks}
        self.threads = threads or (1 if kernels is None else usable_cores())
        self._workers = Workers(self.threads)
        self._bytes_a_word = config.encoder.filter_count**2 * packing.PRECISIONS[packing.encoder_kind(precision)]
        self._bytes_a_row = _weights_of_a_direction(config) * packing.PRECISIONS[precision]
        self._head = (weights.arrays["head.weight"], weights.arrays["head.bias"]) if config.head else None

    def encode(self, ids: NDArray) -> Array:
        """Token ids (n, columns) -> vectors without context (n, E)."""
        parts = min(self.threads, len(ids) // _WORDS_WORTH_A_THREAD)
        if parts > 1:
            return np.concatenate(self._workers.map(self._encoder, np.array_split(ids, parts)))
        matrices_apart = self.threads > 1 and len(ids) * self._bytes_a_word >= _BYTES_WORTH_A_THREAD
        return self._encoder(ids, self._workers.map if matrices_apart else one_by_one)

    def by_sentence(
        self, vectors: Array, pools: Sequence[Pool], mix: Mix, *, state: State | None = None
    ) -> Iterator[list[Array]]:
        """What a caller gets of each pool's sentences, in the pool's order; `vectors` and `state` are as for `run`."""
        # A state moves on in the layers above what is asked for too.
        found = iter(self.run(vectors, pools, depth=mix.depth if state is None else None, state=state))
        for pool in pools:
            yield mix.by_sentence(pool, next(found)[: mix.depth + 1])

    def run(
        self, vectors: Array, pools: Iterable[Pool], *, depth: int | None = None, state: State | None = None
    ) -> Iterator[Layers]:
        """Layers 0..depth of each pool, in order. `vectors` are the distinct tokens' that the pools point to.

        A state (with a row for every sentence) is moved on in place, if the depth is the whole model's.
        """
        depth = self.config.layers if depth is None else depth
        running: deque[tuple[Layers, list[Future[None]]]] = deque()
        alone = isinstance(pools, Sequence) and len(pools) == 1
        try:
            for pool in pools:
                layers = [room((len(pool.tokens), width)) for width in self.config.layer_widths[: depth + 1]]
                tasks = [(direction, vectors, pool, layers, state) for direction in self.config.directions]
                if self.threads == 1 or (alone and len(pool.tokens) * self._bytes_a_row < _BYTES_WORTH_A_THREAD):
                    for task in tasks:
                        self._run_direction(*task)
                    yield layers
                elif alone:
                    self._workers.map(lambda task: self._run_direction(*task), tasks)
                    yield layers
                else:
                    running.append((layers, [self._workers.start(self._run_direction, *task) for task in tasks]))
                    if len(running) * len(tasks) > self.threads:
                        yield _finished(*running.popleft())
            while running:
                yield _finished(*running.popleft())
        finally:
            for _, futures in running:  # whoever reads no further leaves them behind
                for future in futures:
                    future.cancel()

    def _run_direction(self, direction: str, vectors: Array, pool: Pool, layers: Layers, state: State | None) -> None:
        """Write this direction's half of all layers."""
        stack = self._stacks[direction][: len(layers) - 1]
        half = self.config.directions.index(direction)
        carried = self._carried(stack, pool, half, state)
        for rows, found in run_stack(stack, pool, vectors, backward=direction != FORWARD, carried=carried):
            for layer, half_layer in zip(layers, found, strict=True):
                width = half_layer.shape[1]
                layer[rows, half * width : (half + 1) * width] = half_layer
        if state is not None:
            for k, (h, c) in enumerate(carried):
                hidden, memory = self._places(k, pool, half)
                state.hidden[hidden], state.memory[memory] = h, c[:, : self.config.cells]

    def _carried(self, stack: Sequence[Layer], pool: Pool, half: int, state: State | None) -> Carried:
        carried: Carried = []
        for k, layer in enumerate(stack):
            h, c = floats(len(pool.lengths), self.config.projection), floats(len(pool.lengths), layer.memory_room)
            h[:] = c[:] = 0
            if state is not None:
                hidden, memory = self._places(k, pool, half)
                h[:], c[:, : self.config.cells] = state.hidden[hidden], state.memory[memory]
            carried.append((h, c))
        return carried

    def _places(self, k: int, pool: Pool, half: int):
        """Where a layer's h and c of one direction are in a state."""
        width, cells = self.config.projection, self.config.cells
        return (
            np.s_[k, pool.sentences, half * width : (half + 1) * width],
            np.s_[k, pool.sentences, half * cells : (half + 1) * cells],
        )

    def log_probabilities(self, vectors: Array) -> Array:
        """The head: top vectors of one direction (n, P) -> log-probabilities of every word (n, V)."""
        if self._head is None:
            raise ValueError("this model has no head")
        logits = vectors @ self._head[0].T
        logits += self._head[1]
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logits


def _weights_of_a_direction(config: BilmConfig) -> int:
    """How many numbers a row meets on its way through one direction."""
    stack = f"{config.directions[0]}."
    return sum(math.prod(shape) for name, shape in tensor_shapes(config).items() if name.startswith(stack))


def _finished(layers: Layers, futures: list[Future[None]]) -> Layers:
    for future in futures:
        future.result()
    return layers
