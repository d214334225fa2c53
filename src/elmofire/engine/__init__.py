"""The model on a CPU, without torch. `Engine` encodes distinct tokens, and runs pools of sentences over them."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Ints, Pool
from elmofire.engine.compiled import kernels_for, packed_files, packing
from elmofire.engine.compiled.calls import floats
from elmofire.engine.compiled.companion import Companion
from elmofire.engine.encoder import Encoder, NumpyEncoder
from elmofire.engine.mixing import Layers, Mix
from elmofire.engine.recurrence import Carried, Direction, Layer, NumpyLayer, run_stacks
from elmofire.engine.spill import allocate
from elmofire.engine.state import State
from elmofire.engine.workers import AtOnce, Workers, one_by_one, usable_cores
from elmofire.errors import InputError
from elmofire.formats.config import FORWARD
from elmofire.formats.weights import Array, Weights

_Place = tuple[int, Ints, slice]  # in a state's arrays

_WORDS_WORTH_A_THREAD = 16  # for fewer, the weights are read anew for too little
_FEW_WORDS = 512  # for which two threads share the filters and the matrices rather than the words
_FEW_TOKENS = 1024  # of a pool alone, whose directions keep step: for more, Python's share is worth a thread for each


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
        self._companion = Companion(kernels) if kernels is not None and self.threads > 1 else None

    def encode(self, ids: NDArray) -> Array:
        """Token ids (n, columns) -> vectors without context (n, E)."""
        parts = min(self.threads, len(ids) // _WORDS_WORTH_A_THREAD)
        if parts > 2 or (parts > 1 and len(ids) > _FEW_WORDS):
            return np.concatenate(self._workers.map(self._encoder, np.array_split(ids, parts)))
        return self._encoder(ids, self._companion or one_by_one)

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
                layers = [allocate((len(pool.tokens), width)) for width in self.config.layer_widths[: depth + 1]]
                ways = self.config.directions
                if alone and self._companion and len(pool.tokens) <= _FEW_TOKENS:
                    self._run_directions(ways, vectors, pool, layers, state, self._companion)
                    yield layers
                elif self.threads == 1:
                    for way in ways:
                        self._run_directions([way], vectors, pool, layers, state)
                    yield layers
                else:
                    tasks = [([way], vectors, pool, layers, state) for way in ways]
                    running.append((layers, [self._workers.start(self._run_directions, *task) for task in tasks]))
                    if len(running) * len(tasks) > self.threads:
                        yield _finished(*running.popleft())
            while running:
                yield _finished(*running.popleft())
        finally:
            for _, futures in running:  # whoever reads no further leaves them behind
                for future in futures:
                    future.cancel()

    def _run_directions(
        self,
        ways: Sequence[str],
        vectors: Array,
        pool: Pool,
        layers: Layers,
        state: State | None,
        at_once: AtOnce = one_by_one,
    ) -> None:
        """Write these directions' halves of all layers."""
        stacks = [self._stacks[way][: len(layers) - 1] for way in ways]
        halves = [self.config.directions.index(way) for way in ways]
        directions = [
            Direction(stack, way != FORWARD, self._carried(stack, pool, half, state))
            for way, stack, half in zip(ways, stacks, halves, strict=True)
        ]
        for found in run_stacks(directions, pool, vectors, at_once):
            for half, (rows, half_layers) in zip(halves, found, strict=True):
                for layer, half_layer in zip(layers, half_layers, strict=True):
                    width = half_layer.shape[1]
                    layer[rows, half * width : (half + 1) * width] = half_layer
        if state is not None:
            for half, direction in zip(halves, directions, strict=True):
                for k, (h, c) in enumerate(direction.carried):
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

    def _places(self, k: int, pool: Pool, half: int) -> tuple[_Place, _Place]:
        """Where a layer's h and c of one direction are in a state."""
        width, cells = self.config.projection, self.config.cells
        return (
            np.s_[k, pool.sentences, half * width : (half + 1) * width],
            np.s_[k, pool.sentences, half * cells : (half + 1) * cells],
        )


def _finished(layers: Layers, futures: list[Future[None]]) -> Layers:
    for future in futures:
        future.result()
    return layers
