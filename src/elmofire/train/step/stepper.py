"""One update after the other: gradients of its parts, then new parameters. On a GPU each kind of batch becomes a CUDA graph."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elmofire.kernels import LstmState
from elmofire.train.step.forward import BatchLoss, Tensors
from elmofire.train.step.graphs import OnGpu
from elmofire.train.step.optimizers import Optimizer
from elmofire.train.step.parameters import FlatParameters
from elmofire.train.step.staging import Shape
from elmofire.train.stream.batch import Batch, Kind, Update

_MARGIN = 1.06  # of the room for distinct words, over the most that were seen in a sample


class Stepper:
    """Runs updates; what they add up to waits on the device until it is asked for.

    `state_rows` are those of an update whose state may be carried on. `most_words` says how many distinct words batches of a kind have
    at most, as far as is known: one with more does not fit the graph of its kind, and runs through it twice, half of it each time.
    Between updates all gradients are zero. After an exception in an update a stepper is of no more use.
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
        most_words: Mapping[Kind, int],
        graphs: bool,
    ) -> None:
        self.loss, self.parameters, self.optimizer = loss, parameters, optimizer
        device = parameters.weights.device
        self._seed, self._rank, self._world = seed, rank, world
        self._module: nn.Module = _shared_by_ranks(loss) if world > 1 else loss
        self.state = loss.bilm.zero_state(state_rows)
        self._most_words = most_words
        self._rate = 0.0  # of the update that is being made
        directions = len(loss.bilm.config.directions)
        self.losses = torch.zeros(directions, dtype=torch.float64, device=device)  # sums since they were last read
        self.tokens = torch.zeros(directions, dtype=torch.int64, device=device)  # of which they are the sums
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)  # updates whose gradients were not finite
        self.norm = torch.zeros((), device=device)
        self._gpu = OnGpu(device, graphs=graphs) if device.type == "cuda" else None

    def make_ready(self, updates: Iterable[Update]) -> None:
        """Capture graphs for batches like these, one of each kind and the largest first, so that the others fit into its memory."""
        if self._gpu is None:
            return
        of_kind = {part.kind: update for update in updates for part in update.parts}
        largest = sorted(of_kind.items(), key=lambda item: -item[0].steps * item[0].rows)
        for _ in range(
            2 if self._gpu.captures else 1
        ):  # the first time kernels are compiled, the second they are captured
            for _, update in largest:
                self._gradients(update)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        for _ in range(2):
            self.parameters.gradients.fill_(math.nan)  # a step that is skipped, and changes nothing
            self._change_parameters()
        self.optimizer.skipped.zero_()
        for tensor in (self.losses, self.tokens, self.skipped, *self.state):
            tensor.zero_()

    def __call__(self, update: Update, rate: float) -> None:
        """Change the parameters once."""
        self._rate = rate
        self._gradients(update)
        self._change_parameters()

    def close(self) -> None:
        """Let go of what joins the ranks, before torch ends the process group.

        If it went last, the group would end with it and with Python's lock held, for which the group's own threads may wait: for ever.
        """
        self._module = self.loss

    def _gradients(self, update: Update) -> None:
        for number, batch in enumerate(update.parts):
            seed = int(np.random.SeedSequence([self._seed, update.number, number, self._rank]).generate_state(1)[0])
            self._add_gradients(batch, update, number, seed, last=number == len(update.parts) - 1)

    def _add_gradients(
        self, batch: Batch, update: Update, number: int, seed: int, *, last: bool, halved: bool = False
    ) -> None:
        rows = batch.inputs.shape[2]
        here = slice(number * rows, (number + 1) * rows)

        def gradients(tensors: Tensors, per_token: Tensor) -> None:
            state = self._state(here) if batch.carried else self.loss.bilm.zero_state(rows)
            ready = nullcontext() if last or self._world == 1 else self._module.no_sync()  # pyright: ignore[reportCallIssue]
            with ready:
                objective, losses, after = self._module(tensors, state, per_token)
                # The gradients of all ranks are averaged, where their sum is wanted.
                (objective * self._world).backward()
            # An update that is not finite is skipped: it leaves nothing behind here either, neither a loss nor the tokens it is of.
            there, finite = tensors.targets >= 0, losses.isfinite()
            self.losses += torch.where(finite, losses, 0.0)
            self.tokens += torch.where(finite, there.sum(dim=(1, 2)), 0)
            if batch.kept:
                # Rows that predict nothing have ended, or are the other half's, which keeps their state itself.
                rows_there = there.any(dim=1)[:, None, :, None]
                for own, new in zip(self._state(here), after, strict=True):
                    own.copy_(torch.where(rows_there, new.nan_to_num(0.0, 0.0, 0.0), own))

        if self._gpu is None:
            seed_dropout(self.state.hidden.device, seed)
            gradients(_on_cpu(batch, update), 1 / torch.tensor(update.tokens, dtype=torch.float64))
            return
        room = _rounded(_MARGIN * self._most_words.get(batch.kind, 0))
        carries = batch.carried or batch.kept
        # Eagerly it would take as much memory again as all graphs together.
        if self._gpu.captures and len(batch.words) > room > 0 and not halved:
            for half, part in enumerate(halves(batch)):
                self._add_gradients(part, update, number, seed + half + 1, last=last, halved=True)
            return
        fits = len(batch.words) <= room
        shape = Shape.of(batch, update, room if fits else _rounded(len(batch.words)))
        way = (batch.carried, batch.kept, number if carries else 0)
        self._gpu.run(batch, update, shape, way, gradients, seed, rate=self._rate, captured=fits)

    def _change_parameters(self) -> None:
        def change() -> None:
            rate = torch.tensor(self._rate, device=self.norm.device) if self._gpu is None else self._gpu.rate
            self.norm.copy_(self.optimizer.step(rate))
            self.skipped += ~self.norm.isfinite()
            self.parameters.zero_gradients()  # for the next update: here it is a part of the graph

        if self._gpu is None:
            change()
        else:
            self._gpu.do("optimizer", change)

    def _state(self, rows: slice) -> LstmState:
        return LstmState(self.state.hidden[:, :, rows], self.state.memory[:, :, rows])


def halves(batch: Batch) -> Iterator[Batch]:
    """A batch in two of the same shape, each with half of the rows and the other half empty: their gradients add up to the whole's."""
    rows = batch.inputs.shape[2]
    for mine in (slice(0, rows // 2), slice(rows // 2, rows)):
        used, places = np.unique(batch.inputs[:, :, mine], return_inverse=True)
        inputs, targets = np.zeros_like(batch.inputs), np.full_like(batch.targets, -1)
        inputs[:, :, mine] = places.reshape(inputs[:, :, mine].shape)
        targets[:, :, mine] = batch.targets[:, :, mine]
        yield batch._replace(words=batch.words[used], inputs=inputs, targets=targets)


def seed_dropout(device: torch.device, seed: int) -> None:
    """On this device alone: torch.manual_seed would seed every other that its caller may use."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _rounded(words: float) -> int:
    return 256 * math.ceil(words / 256)


def _shared_by_ranks(loss: BatchLoss) -> DistributedDataParallel:
    """Gradients are averaged. Buffers come from the corpus and are the same everywhere: large, and of a type that cannot be sent."""
    buffers = [name for name, _ in loss.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(loss, buffers)
    return DistributedDataParallel(loss)


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
