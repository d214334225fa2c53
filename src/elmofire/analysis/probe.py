"""A linear probe: how much of a token's tag can be read off its vector alone?

Multinomial logistic regression on frozen vectors, trained by Adam on shuffled minibatches with the rate falling to zero. All points of
one small grid are trained side by side on the same minibatches, the same grid for every representation. The dev part chooses the point
and the epoch; the test part, if it is given, is scored once, with what was chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import elmofire.model  # noqa: F401  says which extra is missing, before torch does

# isort: split
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from elmofire.engine.batches import Ints
from elmofire.errors import InputError
from elmofire.formats.weights import Array

Floats = NDArray[np.floating]

EPOCHS = 20
_BATCH = 1024  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a probe is trained."""

    rate: float  # Adam's, at the start
    decay: float  # the factor of half the squared weights in the loss (L2)


GRID = tuple(Settings(rate=rate, decay=decay) for rate, decay in product((3e-3, 1e-2, 3e-2, 1e-1), (0.0, 1e-4)))


class Part(NamedTuple):
    """The tokens of one part of the data, sentence after sentence."""

    vectors: Floats  # (tokens, width)
    tags: Ints  # (tokens,), numbered by the training part; -1 is none of them
    lengths: Ints  # (sentences,), in tokens


class Probed(NamedTuple):
    """What a probe reads off the vectors. Counts are (sentences, 2): tokens that are right, and all."""

    settings: Settings
    epoch: int  # the best one, from 1
    edges: tuple[str, ...]  # of the grid that they lie on: beyond them it might be better still
    dev: Ints
    test: Ints | None


def standardized(vectors: Floats, training: int) -> Array:
    """Vectors (tokens, width) less the mean of the first `training` ones, over their standard deviation, in float32.

    What does not change in training becomes zero.

    >>> standardized(np.float32([[1, 5], [3, 5], [4, 7]]), training=2)
    array([[-1.,  0.],
           [ 1.,  0.],
           [ 2.,  0.]], dtype=float32)
    """
    seen = vectors[:training]
    mean = seen.mean(axis=0, dtype=np.float64)
    deviation = seen.std(axis=0, dtype=np.float64)
    constant = deviation <= 1e-6 * np.abs(mean)
    scale = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, deviation))
    result = np.subtract(vectors, mean, dtype=np.float32)
    result *= scale.astype(np.float32)
    return result


def probe(
    train: Part,
    dev: Part,
    test: Part | None = None,
    *,
    seed: int,
    grid: Sequence[Settings] = GRID,
    epochs: int = EPOCHS,
    device: str = "cpu",
) -> Probed:
    """Train on one part, choose on another, score the third, if there is one.

    The seed draws the first weights and the order of the tokens. Vectors should be of one scale, as `standardized` makes them.

    >>> tags = np.arange(300) % 3
    >>> part = Part(np.eye(3, dtype=np.float32)[tags], tags, lengths=np.full(30, 10))
    >>> probe(part, part, part, seed=1, epochs=20).test.sum(axis=0)
    array([300, 300])
    """
    for name, part in (("train", train), ("dev", dev), ("test", test)):
        if part is not None:
            _check(name, part, width=train.vectors.shape[-1])
    if train.tags.min() < 0:
        raise InputError("train: has a tag without a number")
    (vectors, tags), (dev_vectors, dev_tags) = _on(device, train), _on(device, dev)
    draws = torch.Generator().manual_seed(seed)  # on the CPU: the same numbers whatever the device
    shape = (int(train.tags.max()) + 1, vectors.shape[1] + 1)
    start = 0.01 * torch.randn(shape, generator=draws)
    points = [start.to(device, copy=True).requires_grad_() for _ in grid]
    groups = [
        {"params": [point], "lr": settings.rate, "weight_decay": settings.decay}
        for point, settings in zip(points, grid, strict=True)
    ]
    optimizer = torch.optim.Adam(groups, fused=True)
    updates = epochs * -(-len(tags) // _BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=updates)
    most, best = -1, (grid[0], 0, points[0])
    for epoch in range(1, epochs + 1):
        for drawn in torch.randperm(len(tags), generator=draws).to(device).split(_BATCH):
            # One product for all points: they share the vectors, and narrow products are slow.
            scores = _scores(vectors[drawn], torch.cat(points)).view(-1, shape[0])
            loss = len(grid) * F.cross_entropy(scores, tags[drawn].repeat_interleave(len(grid)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        for point, settings in zip(points, grid, strict=True):
            right = int(_right(dev_vectors, dev_tags, point).sum())
            if right > most:
                most, best = right, (settings, epoch, point.detach().clone())
    settings, epoch, point = best
    dev_counts = _per_sentence(_right(dev_vectors, dev_tags, point), dev.lengths)
    test_counts = None if test is None else _per_sentence(_right(*_on(device, test), point), test.lengths)
    return Probed(settings, epoch, _edges(settings, epoch, grid, epochs), dev_counts, test_counts)


def _edges(settings: Settings, epoch: int, grid: Sequence[Settings], epochs: int) -> tuple[str, ...]:
    """Less decay than none there cannot be."""
    rates, decays = [point.rate for point in grid], [point.decay for point in grid]
    found = {
        "lowest rate": settings.rate == min(rates),
        "highest rate": settings.rate == max(rates),
        "lowest decay": settings.decay == min(decays) > 0,
        "highest decay": settings.decay == max(decays) > 0,
        "last epoch": epoch == epochs,
    }
    return tuple(edge for edge, reached in found.items() if reached)


def _check(name: str, part: Part, width: int) -> None:
    if part.vectors.ndim != 2 or part.vectors.shape[1] != width:
        raise InputError(f"{name}: vectors of the shape {part.vectors.shape}, but should be (tokens, {width})")
    if not len(part.vectors) == len(part.tags) == part.lengths.sum():
        raise InputError(
            f"{name}: {len(part.vectors)} vectors and {len(part.tags)} tags for sentences of {part.lengths.sum()} tokens",
            hint="give each token one vector and one tag",
        )
    if len(part.tags) == 0:
        raise InputError(f"{name}: has no tokens")


def _on(device: str, part: Part) -> tuple[Tensor, Tensor]:
    """A part's vectors and tags."""
    vectors, tags = part.vectors.astype(np.float32, copy=False), part.tags.astype(np.int64, copy=False)
    return torch.from_numpy(vectors).to(device), torch.from_numpy(tags).to(device)


def _scores(vectors: Tensor, point: Tensor) -> Tensor:
    """(tokens, width) -> (tokens, tags); the first column of a point is the bias."""
    return F.linear(vectors, point[:, 1:], point[:, 0])


@torch.no_grad()
def _right(vectors: Tensor, tags: Tensor, point: Tensor) -> Tensor:
    return _scores(vectors, point).argmax(dim=1) == tags


def _per_sentence(right: Tensor, lengths: Ints) -> Ints:
    """Tokens that are right in each sentence, and all: (sentences, 2)"""
    before = np.concatenate([[0], right.cpu().numpy().cumsum()])  # right ones before each token
    ends = lengths.cumsum()
    return np.stack([before[ends] - before[ends - lengths], lengths], axis=1)
