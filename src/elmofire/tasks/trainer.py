"""Training of task models: Adam over batches of similar length, until the development score has stopped rising."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import elmofire.model  # noqa: F401  says which extra is missing, before torch does

# isort: split
import numpy as np
import torch
from torch import Tensor, nn

from elmofire.engine.batches import Ints
from elmofire.errors import RecipeError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """How a task model is trained."""

    epochs: int = 75  # at most
    patience: int = 10  # epochs without a new best before training ends
    batch: int = 64  # sentences
    learning_rate: float = 1e-3
    clip: float = 5.0  # of the gradient's norm

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch"):
            if getattr(self, name) < 1:
                raise RecipeError(f"{name} is {getattr(self, name)}, but should be at least 1")


class Epoch(NamedTuple):
    """One pass over the training sentences."""

    loss: float  # mean over batches
    score: float  # on the development sentences
    seconds: float


def fit(
    model: nn.Module,
    lengths: Ints,
    loss: Callable[[Ints], Tensor],
    score: Callable[[], float],
    settings: TrainerSettings,
    *,
    seed: int,
    report: Callable[[Epoch], None] | None = None,
) -> list[Epoch]:
    """Train, and leave the model with the weights of its best epoch, ready to predict.

    `lengths` are the training sentences', `loss` is of a batch of their numbers, and `score` is what should become high. The seed is
    that of the order; dropout follows torch's own.
    """
    rng = np.random.default_rng(seed)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate, fused=True)
    epochs: list[Epoch] = []
    best, weights = -1, {}
    while len(epochs) < settings.epochs and len(epochs) - 1 - best < settings.patience:
        began = time.perf_counter()
        model.train()
        losses = []
        for numbers in batches_by_length(lengths, settings.batch, rng):
            optimizer.zero_grad()
            batch_loss = loss(numbers)
            batch_loss.backward()
            nn.utils.clip_grad_norm_(parameters, settings.clip)
            optimizer.step()
            losses.append(batch_loss.detach())  # looked at when the epoch is over: the device need not wait
        model.eval()
        epochs.append(Epoch(torch.stack(losses).mean().item(), score(), time.perf_counter() - began))
        if best < 0 or epochs[-1].score > epochs[best].score:
            best = len(epochs) - 1
            weights = {name: values.clone() for name, values in model.state_dict().items()}
        if report:
            report(epochs[-1])
    model.load_state_dict(weights)
    return epochs


def batches_by_length(lengths: Ints, size: int, rng: np.random.Generator) -> Iterator[Ints]:
    """Numbers of sentences, each once, in batches of nearly equal lengths and in random order.

    >>> rng = np.random.default_rng(1)
    >>> [batch.tolist() for batch in batches_by_length(np.array([9, 1, 8, 2]), 2, rng)]
    [[1, 3], [2, 0]]
    """
    near = lengths * rng.uniform(0.9, 1.1, len(lengths))  # not the same company every epoch
    order = np.argsort(near)
    batches = [order[first : first + size] for first in range(0, len(order), size)]
    for batch in rng.permutation(len(batches)):
        yield batches[batch]
