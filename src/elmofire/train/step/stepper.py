"""One update after the other: gradients of its parts, then new parameters. On a GPU each shape of batch becomes a CUDA graph."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elmofire.kernels import LstmState
from elmofire.train.step.forward import BatchLoss, Tensors
from elmofire.train.step.optimizers import Optimizer
from elmofire.train.step.parameters import FlatParameters
from elmofire.train.step.staging import Shape, Staging
from elmofire.train.stream.batch import Batch, Update

_WORDS_ROUNDED = 256  # room for distinct words is a multiple of this on a GPU


class Stepper:
    """Runs updates; what they add up to waits on the device until it is asked for.

    `state_rows` are those of the parts whose state may be carried on. `most_words` says how many distinct words batches of (steps, rows)
    have at most, as far as is known: with more, a batch runs without a graph.
    """

    def __init__(
        self,
        loss: BatchLoss,
        parameters: FlatParameters,
        optimizer: Optimizer,
        *,
        seed: int,
        rank: int = 0,
        world: int = 1,
        state_rows: int,
        most_words: Mapping[tuple[int, int], int],
        graphs: bool,
    ) -> None:
        self.loss, self.parameters, self.optimizer = loss, parameters, optimizer
        device = parameters.weights.device
        self._seed, self._rank, self._world = seed, rank, world
        self._module: nn.Module = DistributedDataParallel(loss) if world > 1 else loss
        self.state = loss.bilm.zero_state(state_rows)
        self._most_words = most_words
        self._rate = torch.zeros((), device=device)
        directions = len(loss.bilm.config.directions)
        self.losses = torch.zeros(directions, dtype=torch.float64, device=device)  # sums since they were last read
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)  # updates whose gradients were not finite
        self.norm = torch.zeros((), device=device)
        self._gpu = _OnGpu(device, graphs=graphs) if device.type == "cuda" else None

    def __call__(self, update: Update, rate: float) -> None:
        """Change the parameters once."""
        with self._gpu.stream() if self._gpu else nullcontext():
            self._rate.fill_(rate)
            self.parameters.zero_gradients()
            for number, batch in enumerate(update.parts):
                seed = int(np.random.SeedSequence([self._seed, update.number, number, self._rank]).generate_state(1)[0])
                last = number == len(update.parts) - 1
                self._add_gradients(batch, update, number, seed, last=last)
            self._change_parameters()

    def _add_gradients(self, batch: Batch, update: Update, number: int, seed: int, *, last: bool) -> None:
        rows = batch.inputs.shape[2]
        first = number * rows
        kept = first + rows <= self.state.hidden.shape[2]
        here = slice(first, first + rows) if kept else None

        def gradients(tensors: Tensors, per_token: Tensor | float) -> None:
            state = self._state(here) if batch.carried else self.loss.bilm.zero_state(rows)
            ready = nullcontext() if last or self._world == 1 else self._module.no_sync()  # pyright: ignore[reportCallIssue]
            with ready:
                objective, losses, after = self._module(tensors, state, per_token)
                # The gradients of all ranks are averaged, where their sum is wanted.
                (objective * self._world).backward()
            self.losses += losses
            if here is not None:
                self.state.hidden[:, :, here].copy_(after.hidden)
                self.state.memory[:, :, here].copy_(after.memory)

        if self._gpu is None:
            torch.manual_seed(seed)
            gradients(_on_cpu(batch, update), 1 / update.tokens)
            return
        words = max(self._most_words.get(batch.inputs.shape[1:], 0), 1)
        fixed = len(batch.words) <= words
        words = -(-max(words, len(batch.words)) // _WORDS_ROUNDED) * _WORDS_ROUNDED
        shape = Shape.of(batch, update, words)
        self._gpu.run(batch, update, shape, (batch.carried, here and here.start), gradients, seed, captured=fixed)

    def _change_parameters(self) -> None:
        def change() -> None:
            self.norm.copy_(self.optimizer.step(self._rate))
            self.skipped += ~self.norm.isfinite()

        if self._gpu is None:
            change()
        else:
            self._gpu.once_ready("optimizer", change)

    def _state(self, rows: slice | None) -> LstmState:
        assert rows is not None, "a carried state needs rows that are kept"
        return LstmState(self.state.hidden[:, :, rows], self.state.memory[:, :, rows])


class _OnGpu:
    """A stream, the way to the device, and the graphs: what runs a second time is captured, and replayed from then on."""

    def __init__(self, device: torch.device, *, graphs: bool) -> None:
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._staging = Staging(device)
        self._graphs: dict[object, torch.cuda.CUDAGraph | None] = {}
        self._pool = torch.cuda.graph_pool_handle() if graphs else None

    def stream(self) -> torch.cuda.StreamContext:
        return torch.cuda.stream(self._stream)

    def run(
        self,
        batch: Batch,
        update: Update,
        shape: Shape,
        way: object,
        gradients: Callable[[Tensors, Tensor], None],
        seed: int,
        *,
        captured: bool,
    ) -> None:
        if not self._staging.fits(shape):
            self._graphs.clear()  # they read the place that is left now
            self._staging.reserve(2 * shape.numbers)
        self._staging.send(batch, update, shape)
        tensors, per_token = self._staging.tensors(shape)
        torch.cuda.manual_seed(seed)
        if captured:
            self.once_ready((shape, way), lambda: gradients(tensors, per_token), seed)
        else:
            gradients(tensors, per_token)

    def once_ready(self, key: object, work: Callable[[], None], seed: int | None = None) -> None:
        """Do it; as a graph from the second time on."""
        if self._pool is None or key not in self._graphs:
            work()
            self._graphs[key] = None
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = torch.cuda.CUDAGraph()
            torch.cuda.empty_cache()  # what ran without a graph keeps no memory beside it
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
            if seed is not None:
                torch.cuda.manual_seed(seed)
        graph.replay()


def _on_cpu(batch: Batch, update: Update) -> Tensors:
    negatives = torch.from_numpy(np.stack([ids for ids, _ in update.negatives])) if update.negatives else None
    tries = torch.tensor([tries for _, tries in update.negatives]) if update.negatives else None
    resets = None if batch.resets is None else torch.from_numpy(batch.resets)
    return Tensors(
        torch.from_numpy(batch.words),
        torch.from_numpy(batch.inputs),
        torch.from_numpy(batch.targets),
        negatives,
        tries,
        resets,
    )
