"""How much memory a run will need, and into how many parts its updates are split to fit.

What small batches take tells beforehand which way will fit. When everything has been made ready that way, what a GPU has given away by
then tells how much it is.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from elmofire.errors import RecipeError
from elmofire.train.run.ranks import Ranks
from elmofire.train.settings import Recipe
from elmofire.train.step.forward import BatchLoss, Tensors
from elmofire.train.step.parameters import FlatParameters
from elmofire.train.stream.stream import Stream

_SPARE = 0.95  # of what is free, since the allocator leaves gaps
CONTEXT = 700 << 20  # bytes of a CUDA context with its libraries and kernels, which the allocator does not see
_OUTSIDE = 4 << 30  # bytes that graphs and libraries take at most
_GRAPH = 40 << 20  # bytes of a captured graph of some hundred kernels, which it does not see either
_PARTS = (1, 2, 4, 8, 16, 32, 64)
_ROWS = 128  # of the small batches
EVALUATION_TOKENS = 8192  # that are read at once


@dataclass(frozen=True)
class Fit:
    """How updates are run, and the bytes that are expected for it; None where nobody asks, on a CPU."""

    parts: int
    graphs: bool
    needed: int | None = None
    limit: int | None = None
    evaluation: int = 0  # bytes of it that evaluations take beside the training's
    predicted: int | None = None  # by the small batches alone, before anything was made ready

    @property
    def fits(self) -> bool:
        return self.needed is None or self.limit is None or self.needed <= self.limit

    @property
    def record(self) -> dict[str, Any]:
        """For the log."""
        if self.needed is None:
            return {}
        return {
            "memory_estimate": self.needed,
            "memory_limit": self.limit,
            "memory_predicted": self.predicted or self.needed,
        }


class Moment:
    """What the device had to give when this was made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self._free, _ = torch.cuda.mem_get_info(device)
            self._reserved = torch.cuda.memory_reserved(device)

    def measured(self, fit: Fit) -> Fit:
        """The same way with the bytes that it has turned out to take since; all that will be run has been run once."""
        if fit.needed is None:
            return fit
        free, _ = torch.cuda.mem_get_info(self._device)
        own = CONTEXT + torch.cuda.memory_reserved(self._device)
        kept = CONTEXT + self._reserved + self._free - free
        if not own <= kept <= own + _OUTSIDE:  # other processes take and give as well
            return fit
        # Graphs keep their memory; without them training takes again what was given back.
        training = kept if fit.graphs else kept + _given_back(self._device)
        return replace(fit, needed=max(training, kept + fit.evaluation), predicted=fit.needed)


def _given_back(device: torch.device) -> int:
    return torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)


def fit_in_memory(
    loss: BatchLoss,
    parameters: FlatParameters,
    recipe: Recipe,
    ranks: Ranks,
    open_parts: Callable[[int], Stream],
    before: Mapping[str, Any] | None,
) -> Fit:
    """As few parts as fit on every rank, or those that were given; and graphs, where there is room for them and no other rank.

    `before` are the facts of the checkpoint from which a run goes on: it goes on in the same way, or not at all.
    """
    given = before["parts"] if before else recipe.train.accumulate
    if given and not before:
        _refuse_empty_parts(open_parts(1), given, ranks.world)
    if ranks.device.type != "cuda":
        if recipe.train.memory_gb is not None:
            raise RecipeError(
                f"`train.memory_gb` is {recipe.train.memory_gb:g}, but only on a GPU is a run held to it",
                hint="train.memory_gb=none",
            )
        return Fit(given or 1, graphs=False)
    whole = open_parts(1)
    limit = _limit(recipe, ranks.device, spare=1.0 if before else _SPARE)
    needs = _Needs(loss, parameters, recipe, ranks, whole, limit)
    streams = iter([(given, open_parts(given))]) if given else _smaller_and_smaller(whole, open_parts)
    possible = (before["graphs"],) if before else (True, False)
    graphs = possible if ranks.world == 1 else (False,)
    ways = (needs.way(stream, parts, graphs=captured) for parts, stream, captured in _ways(streams, graphs))
    fit = next(ways)
    while not fit.fits and (other := next(ways, None)):
        fit = other
    told = ranks.gathered(fit)
    for rank, one in enumerate(told):
        if not one.fits:
            raise _too_small(one, rank if ranks.world > 1 else None, resumed=before is not None)
    if (most := max(one.parts for one in told)) > fit.parts:
        fit = needs.way(open_parts(most), most, graphs=False)
    if recipe.train.memory_gb is not None:
        total = torch.cuda.get_device_properties(ranks.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (limit - CONTEXT) / total), ranks.device)
    return fit


class _Needs:
    """The bytes that ways of running updates are expected to take.

    Those of a batch grow with its rows in a straight line: two small ones tell how.
    """

    def __init__(
        self, loss: BatchLoss, parameters: FlatParameters, recipe: Recipe, ranks: Ranks, whole: Stream, limit: int
    ) -> None:
        self._limit = limit
        steps, _ = max(whole.shapes(), key=math.prod)
        words = max(whole.most_words(50).values())
        # Evaluations lie beside the training's memory, and a mean of the weights takes their place while they run.
        self._evaluation = _bytes_of(loss, parameters, recipe, steps, EVALUATION_TOKENS // steps, words, training=False)
        self._evaluation += parameters.weights.nbytes if recipe.optimizer.average is not None else 0
        fixed = torch.cuda.memory_allocated(ranks.device) + CONTEXT + self._evaluation
        fixed += parameters.gradients.nbytes if ranks.world > 1 else 0  # on their way to the other ranks
        # Half of the steps: what is tried must itself stay far below the limit.
        few = -(-steps // 2)
        one, two = (_bytes_of(loss, parameters, recipe, few, rows, words) for rows in (_ROWS, 2 * _ROWS))
        self._fixed, self._each = fixed + 2 * one - two, (two - one) / (_ROWS * few)

    def way(self, stream: Stream, parts: int, *, graphs: bool) -> Fit:
        needed = self._fixed + self._each * _most_cells(stream) + graphs * _GRAPH * stream.number_of_ways
        return Fit(parts, graphs, int(needed), self._limit, self._evaluation)


@contextlib.contextmanager
def shortage_told(device: torch.device) -> Iterator[None]:
    """What a GPU cannot give: to a model that is too large for it from the start, or since other programs took what was free."""
    try:
        yield
    except torch.OutOfMemoryError:
        had = ""
        if device.type == "cuda":
            taken, total = torch.cuda.max_memory_reserved(device), torch.cuda.get_device_properties(device).total_memory
            had = f": this run had {taken / 1e9:.1f} of {total / 1e9:.1f} GB"
        raise RecipeError(
            f"the memory of {device} has run out{had}",
            hint="a smaller model or vocabulary, or less train.memory_gb than other programs leave; the same command resumes from "
            "the last checkpoint",
        ) from None


def _smaller_and_smaller(whole: Stream, open_parts: Callable[[int], Stream]) -> Iterator[tuple[int, Stream]]:
    """Numbers of parts, as long as more of them are smaller: parts of too few rows are filled up."""
    before = math.inf
    for parts in _PARTS:
        stream = whole if parts == 1 else open_parts(parts)
        if (cells := _most_cells(stream)) < before:
            yield parts, stream
            before = cells


def _ways(streams: Iterator[tuple[int, Stream]], graphs: Sequence[bool]) -> Iterator[tuple[int, Stream, bool]]:
    """What is tried, the fastest first: twice the parts cost less than launching each kernel from Python."""
    without: tuple[int, Stream, bool] | None = None
    for parts, stream in streams:
        if True in graphs:
            yield parts, stream, True
        if without:
            yield without
        without = (parts, stream, False) if False in graphs else None
    if without:
        yield without


def _most_cells(stream: Stream) -> int:
    """Of a batch of this rank."""
    return max(map(math.prod, stream.shapes()))


def _refuse_empty_parts(whole: Stream, parts: int, world: int) -> None:
    """More parts than there is ever a row for."""
    if parts * world > whole.most_rows:
        shared = f" on each of {world} processes" if world > 1 else ""
        raise RecipeError(
            f"`train.accumulate` is {parts}{shared}, but an update has {whole.most_rows:,} sentences or lanes at most",
            hint="fewer parts, or more train.batch_tokens",
        )


def _too_small(fit: Fit, rank: int | None, *, resumed: bool) -> RecipeError:
    needed, limit = (fit.needed or 0) / 1e9, (fit.limit or 0) / 1e9
    parts = "in one part" if fit.parts == 1 else f"in {fit.parts} parts"
    where = "" if rank is None else f" on rank {rank}"
    if resumed:
        return RecipeError(
            f"about {needed:.1f} GB are needed to go on with the run as it was started, with updates {parts}, but there are "
            f"{limit:.1f} GB{where}",
            hint="go on where as much memory is free as at its start, or start a new run",
        )
    return RecipeError(
        f"about {needed:.1f} GB are needed, with updates {parts}, but there are {limit:.1f} GB{where}",
        hint="a smaller model, a smaller vocabulary, or fewer loss.samples",
    )


def _limit(recipe: Recipe, device: torch.device, *, spare: float) -> int:
    if recipe.train.memory_gb is not None:
        return int(recipe.train.memory_gb * 1e9)
    free, _ = torch.cuda.mem_get_info(device)
    return int((free + torch.cuda.memory_reserved(device)) * spare)


def _bytes_of(
    loss: BatchLoss,
    parameters: FlatParameters,
    recipe: Recipe,
    steps: int,
    rows: int,
    words: int,
    *,
    training: bool = True,
) -> int:
    """What a batch takes at its worst moment, beyond what is there before and after it."""
    device = parameters.weights.device
    directions, vocabulary = len(loss.bilm.config.directions), loss.bilm.config.head
    inputs = torch.randint(words, (directions, steps, rows), dtype=torch.int32, device=device)
    targets = torch.randint(vocabulary, (directions, steps, rows), dtype=torch.int32, device=device)
    sampled = recipe.loss.softmax == "sampled" and training
    batch = Tensors(
        torch.arange(words, dtype=torch.int32, device=device),
        inputs,
        targets,
        torch.arange(recipe.loss.samples, dtype=torch.int32, device=device).expand(directions, -1) if sampled else None,
        torch.full((directions,), 2 * recipe.loss.samples, dtype=torch.int32, device=device) if sampled else None,
        torch.zeros_like(inputs, dtype=torch.bool) if recipe.data.reset else None,
    )
    peak = 0
    for _ in range(2):  # the first time kernels are compiled and libraries take their own memory
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        with torch.set_grad_enabled(training):
            objective, _, _ = loss(batch, loss.bilm.zero_state(rows), torch.ones(directions, device=device))
        if training:
            objective.backward()
        del objective
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
    parameters.zero_gradients()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)  # what was tried here is no part of what training then takes
    return peak
