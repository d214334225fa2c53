"""Batches on their way to a GPU: they are there before their turn comes, and steps put them in the one place that they read."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elmofire.train.step.forward import Tensors
from elmofire.train.stream.batch import Batch, Update

_ALIGNED = 64  # numbers between the starts of arrays: a multiple of what any kernel wants


class Shape(NamedTuple):
    """All that kernels must know of a batch before it comes."""

    directions: int
    steps: int
    rows: int
    words: int  # room for distinct words
    samples: int  # 0: full softmax
    resets: bool

    @classmethod
    def of(cls, batch: Batch, update: Update, words: int) -> "Shape":
        samples = len(update.negatives[0][0]) if update.negatives else 0
        directions, steps, rows = batch.inputs.shape
        return cls(directions, steps, rows, words, samples, batch.resets is not None)

    @property
    def arrays(self) -> dict[str, tuple[int, ...]]:
        """What is sent, in order."""
        cells = (self.directions, self.steps, self.rows)
        arrays = {"rate": (1,), "per_token": (self.directions,)}
        arrays |= {"words": (self.words,), "inputs": cells, "targets": cells}
        if self.samples:
            arrays |= {"tries": (self.directions,), "negatives": (self.directions, self.samples)}
        return arrays | ({"resets": cells} if self.resets else {})

    @property
    def numbers(self) -> int:
        return sum(_rounded(int(np.prod(shape))) for shape in self.arrays.values())


class Staging:
    """Buffers on both sides that are filled in turn, on a stream of their own, while the device works on the batches before.

    A copy from the host, between two steps and on their stream, would leave the device idle for as long as it takes to begin. Whose turn
    it is the device counts for itself, so that a captured step takes another buffer each time.
    """

    def __init__(self, device: torch.device, *, buffers: int = 3) -> None:
        self._device = device
        self._copied = [torch.cuda.Event() for _ in range(buffers)]
        self._taken = [torch.cuda.Event() for _ in range(buffers)]
        self._ahead = torch.cuda.Stream(device)
        self._make(0)

    def reserve(self, numbers: int) -> None:
        """Room for batches of this size; graphs that read the old place have to go first."""
        if numbers > len(self._place):
            torch.cuda.synchronize(self._device)  # what is on its way lies in the buffers that go
            self._make(numbers)
            torch.cuda.synchronize(self._device)  # the other stream may write now

    def _make(self, numbers: int) -> None:
        room = (len(self._copied), numbers)
        self._pinned = torch.zeros(room, dtype=torch.int32, pin_memory=numbers > 0)
        self._landed = torch.zeros(room, dtype=torch.int32, device=self._device)
        self._place = torch.zeros(numbers, dtype=torch.int32, device=self._device)
        self._sent = 0  # the turn of the buffer that is sent next
        self._next = torch.zeros(1, dtype=torch.int32, device=self._device)  # and of the one that is taken next

    def fits(self, shape: Shape) -> bool:
        return shape.numbers <= len(self._place)

    def send(self, batch: Batch, update: Update, shape: Shape, rate: float) -> None:
        """Fill a pinned buffer and start its copy, for which the current stream waits. `take` and `taken` have to follow."""
        turn, size = self._sent, shape.numbers
        self._copied[turn].synchronize()
        pinned = self._pinned[turn, :size]
        views = _views(pinned.numpy(), shape)
        views["rate"].view(np.float32)[:] = rate
        views["per_token"].view(np.float32)[:] = [1 / tokens for tokens in update.tokens]
        views["words"][: len(batch.words)] = batch.words
        views["words"][len(batch.words) :] = 0
        views["inputs"][...] = batch.inputs
        views["targets"][...] = batch.targets
        for d, (ids, tries) in enumerate(update.negatives):
            views["negatives"][d] = ids
            views["tries"][d] = tries
        if batch.resets is not None:
            views["resets"][...] = batch.resets
        with torch.cuda.stream(self._ahead):
            self._ahead.wait_event(self._taken[turn])
            self._landed[turn, :size].copy_(pinned, non_blocking=True)
            self._copied[turn].record()
        torch.cuda.current_stream().wait_event(self._copied[turn])

    def take(self, shape: Shape) -> tuple[Tensors, Tensor]:
        """The batch that was sent last, in its place, and one over its update's tokens in each direction."""
        size = shape.numbers
        torch.index_select(self._landed[:, :size], 0, self._next, out=self._place[None, :size])
        self._next.add_(1).remainder_(len(self._copied))
        views = _views(self._place, shape)
        arrays = views["words"], views["inputs"], views["targets"]
        batch = Tensors(*arrays, views.get("negatives"), views.get("tries"), views.get("resets"))
        return batch, views["per_token"].view(torch.float32)

    def taken(self) -> None:
        """The step that takes what was sent last is on the current stream."""
        self._taken[self._sent].record()
        self._sent = (self._sent + 1) % len(self._taken)

    @property
    def rate(self) -> Tensor:
        """() of the update whose batch was taken last, in the same place as long as nothing is reserved."""
        return self._place[:1].view(torch.float32)[0]


def _rounded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _views(flat, shape: Shape) -> dict:
    """Pieces of a flat array or tensor, by name."""
    views, start = {}, 0
    for name, sizes in shape.arrays.items():
        size = int(np.prod(sizes))
        views[name] = flat[start : start + size].reshape(sizes)
        start += _rounded(size)
    return views
