"""Held-out perplexity in the middle of a run: full softmax, every sentence from a zero state; and whether the layers are healthy."""

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmofire.formats.config import BACKWARD, FORWARD
from elmofire.text.characters import END, START
from elmofire.train.corpus.reader import Corpus, Split
from elmofire.train.run.memory import EVALUATION_TOKENS
from elmofire.train.run.ranks import Ranks
from elmofire.train.settings import DataSettings, Recipe
from elmofire.train.step.forward import BatchLoss, Tensors
from elmofire.train.step.full_softmax import full_softmax_loss
from elmofire.train.step.optimizers import Optimizer
from elmofire.train.step.parameters import FlatParameters
from elmofire.train.stream.batch import Batch, Update
from elmofire.train.stream.stream import open_stream

_AT_CLIP = 1 - 1e-6
_CPU_TOKENS = 1024  # read at once: their logits for a thousand words stay in the cache


@dataclass(frozen=True)
class Evaluation:
    """Perplexities of a split, and what was counted."""

    split: str
    perplexity: dict[str, float]  # by direction
    events: int  # in each direction
    unknown: float  # share of the words
    layers: list[
        dict[str, Any]
    ]  # of each layer of each direction: how wide its outputs are, and how often its cells clip

    @property
    def mean(self) -> float:
        """Geometric, over the directions."""
        return math.exp(sum(math.log(value) for value in self.perplexity.values()) / len(self.perplexity))

    @property
    def record(self) -> dict[str, Any]:
        """For the log."""
        return {
            "split": self.split,
            "forward": self.perplexity.get(FORWARD),
            "backward": self.perplexity.get(BACKWARD),
            "mean": self.mean,
            "events": self.events,
            "unknown": self.unknown,
            "layers": self.layers,
        }


@torch.no_grad()
def evaluate(loss: BatchLoss, corpus: Corpus, split: Split, recipe: Recipe, ranks: Ranks) -> Evaluation:
    """Read a held-out split once; every rank takes its rows."""
    directions = loss.bilm.config.directions
    device = loss.head.weight.device
    sums = torch.zeros(len(directions), dtype=torch.float64, device=device)
    counts = torch.zeros(2, dtype=torch.float64)  # unknown words, words
    events = 0
    layers: list[dict[str, Any]] = []
    unknown, boundaries = corpus.vocabulary.unknown, corpus.vocabulary.ids([START, END])
    state = shape = None
    with _reading(loss):
        for update in _updates(corpus, split, recipe, len(directions), ranks):
            batch = _filled(update.parts[0])
            if device.type == "cuda" and batch.inputs.shape != shape:
                torch.cuda.empty_cache()  # what batches of other shapes left fits this one badly
            shape = batch.inputs.shape
            tensors = _on(device, batch)
            before = state if batch.carried and state is not None else loss.bilm.zero_state(batch.inputs.shape[2])
            outputs, state = loss.read(tensors, before)
            sums += _losses(loss, outputs[:, -1], tensors.targets)
            events += update.tokens[0]  # in the text's order both directions read the same
            counts[0] += int((batch.targets[0] == unknown).sum())
            counts[1] += int(((batch.targets[0] >= 0) & ~np.isin(batch.targets[0], boundaries)).sum())
            if not layers:
                loss.train()
                dropped, _ = loss.read(tensors, before)
                loss.eval()
                layers = _health(loss, batch, outputs, dropped, state.memory)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # training has memory of its own
    sums, counts = ranks.sum(sums).cpu(), ranks.sum(counts.to(device)).cpu()
    perplexity = {
        direction: math.exp(min(total / max(events, 1), 700.0))
        for direction, total in zip(directions, sums.tolist(), strict=True)
    }
    return Evaluation(split.name, perplexity, events, float(counts[0] / counts[1].clamp_min(1)), layers)


def _filled(batch: Batch) -> Batch:
    """Without the empty rows at its end, where no state ties them to another batch."""
    if batch.carried or batch.kept:
        return batch
    rows = int(np.flatnonzero((batch.targets >= 0).any(axis=(0, 1))).max(initial=0)) + 1
    inputs, targets = (np.ascontiguousarray(cells[:, :, :rows]) for cells in (batch.inputs, batch.targets))
    return batch._replace(inputs=inputs, targets=targets)


def _losses(loss: BatchLoss, tops: Tensor, targets: Tensor) -> Tensor:
    """Sums by direction, of the places where there is something to predict."""
    head, there = loss.head, targets >= 0
    return torch.stack(
        [
            full_softmax_loss(
                tops[d][there[d]], head.weight, head.bias, targets[d][there[d]].long(), precision=loss.precision
            ).sum()
            for d in range(len(tops))
        ]
    )


def _updates(corpus: Corpus, split: Split, recipe: Recipe, directions: int, ranks: Ranks) -> Iterator[Update]:
    """Whole sentences, each once."""
    grid = recipe.data.lengths if recipe.data.reading == "sentences" else DataSettings().lengths
    once = replace(
        recipe,
        data=DataSettings(lengths=grid, order="text"),
        loss=replace(recipe.loss, softmax="full"),
        train=replace(recipe.train, batch_tokens=EVALUATION_TOKENS if ranks.device.type == "cuda" else _CPU_TOKENS),
    )
    stream = open_stream(corpus, once, directions=directions, rank=ranks.rank, world=ranks.world, split=split)
    return itertools.islice(stream.updates(), stream.updates_per_epoch)


@contextlib.contextmanager
def averaged(parameters: FlatParameters, optimizer: Optimizer) -> Iterator[None]:
    """The running mean in the place of the weights, where there is one."""
    if optimizer.averaged is None:
        yield
        return
    own = parameters.weights.clone()
    parameters.weights.copy_(optimizer.averaged)
    try:
        yield
    finally:
        parameters.weights.copy_(own)


@contextlib.contextmanager
def _reading(loss: BatchLoss) -> Iterator[None]:
    loss.eval()
    try:
        yield
    finally:
        loss.train()


def _on(device: torch.device, batch: Batch) -> Tensors:
    words, inputs, targets = (
        torch.from_numpy(array).to(device) for array in (batch.words, batch.inputs, batch.targets)
    )
    return Tensors(words, inputs, targets, None, None, None)


def _health(loss: BatchLoss, batch: Batch, outputs: Tensor, dropped: Tensor, memory: Tensor) -> list[dict[str, Any]]:
    """A training loss can be fine while the layers are not: widths that differ with and without dropout, cells at the clip."""
    there = torch.from_numpy(batch.targets >= 0).to(outputs.device)
    clip = loss.bilm.config.cell_clip
    found: list[dict[str, Any]] = []
    for d, direction in enumerate(loss.bilm.config.directions):
        for k in range(outputs.shape[1]):
            widths = [
                float(read[d, k][there[d]].float().std()) if there[d].any() else 0.0 for read in (outputs, dropped)
            ]
            clipped = None if clip is None else float((memory[d, k].abs() >= clip * _AT_CLIP).float().mean())
            found.append(
                {
                    "direction": direction,
                    "layer": k + 1,
                    "width": widths[0],
                    "width_training": widths[1],
                    "clipped": clipped,
                }
            )
    return found
