"""How fast text becomes vectors: one call for a corpus, and one call for each sentence, beside a peer where there is one."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmofire.bench.contenders import Contender, Process, Sentences
from elmofire.bench.parity import LayerError, layer_errors, refusal, true_layers
from elmofire.bench.timing import percentile, spread
from elmofire.bench.worker import PEER_BATCH
from elmofire.errors import InputError
from elmofire.formats import load_weights, save_weights
from elmofire.formats.weights import Array, Weights

Record = dict[str, Any]
Say = Callable[[str], None]
_CHECKED_TOKENS = 60  # by the definition, which takes a tenth of a second for a token of the original size
_WARM_UP = 3  # single sentences before those that count


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who embeds what, and how often. `sentences` are embedded in one call, `singles` in a call each; either may be empty.

    With `as_text` singles are handed over as strings: what the tokenizer takes counts too. A peer has none.
    """

    contenders: Sequence[Contender]
    sentences: Sentences = ()
    singles: Sentences = ()
    repeats: int = 5
    as_text: bool = False

    def __post_init__(self) -> None:
        if self.repeats < 5:
            raise InputError(f"{self.repeats} repeats are too few to see the spread", hint="at least 5")
        if not any(self.sentences) and not any(self.singles):
            raise InputError("there is no text to embed")

    @property
    def checked(self) -> list[Sequence[str]]:
        """The first sentences with tokens, until there are enough to look at."""
        found: list[Sequence[str]] = []
        for sentence in self.sentences or self.singles:
            if sum(map(len, found)) >= _CHECKED_TOKENS:
                break
            found += [sentence] if sentence else []
        return found


@contextlib.contextmanager
def model_files(weights: Weights, *, for_peer: bool) -> Iterator[Path]:
    """A folder that every contender can load: HDF5 where a peer reads it too, else the native format."""
    with tempfile.TemporaryDirectory() as folder:
        save_weights(weights, folder, to="hdf5" if for_peer else "native")
        yield Path(folder)


def bench_embed(weights: Weights, plan: Plan, say: Say = lambda line: None) -> list[Record]:
    """Check every contender, time those that pass, and return a record for each of them and each way of calling."""
    peers = any(contender.is_peer for contender in plan.contenders)
    with model_files(weights, for_peer=peers) as folder, contextlib.ExitStack() as running:
        # Packed weights are kept for the next time; those of a model that is gone in a minute should go with it.
        private = {"ELMOFIRE_HOME": str(folder / "home")}
        processes = [running.enter_context(Process(who, folder, private)) for who in plan.contenders]
        say("the definition in float64")
        checks = _Checks(plan, true_layers(load_weights(folder), plan.checked))
        size = {"parameters": weights.config.parameters, "cells": weights.config.cells, "layers": weights.config.layers}
        found: list[Record] = []
        fit: list[Process] = []
        for process in processes:
            say(f"parity of {process.contender}")
            errors = checks.errors(process)
            refused = refusal(errors, process.contender.precision)
            found.append({"case": "parity", **_who(process), **size, "errors": errors, "refused": refused})
            fit += [] if refused else [process]
        for case, measure, asked in (("corpus", _corpus, plan.sentences), ("single", _single, plan.singles)):
            shape = {**size, "sentences": len(asked), "tokens": _tokens(asked)}
            for process, figures in zip(fit, measure(fit, plan, say) if asked else (), strict=False):
                found.append({"case": case, **_who(process), **shape, **figures})
        return found


def _who(process: Process) -> Record:
    who = process.contender
    chosen = {"device": who.device, "precision": who.precision, "threads": who.threads}
    return {"library": who.library, "engine": process.engine, **chosen}


class _Checks:
    """Every way of calling that will be timed, against the definition, and every sentence beside the first contender."""

    def __init__(self, plan: Plan, true: list[NDArray[np.float64]]) -> None:
        self._plan = plan
        self._true = true
        self._means = [layers.mean(axis=0) for layers in true]
        self._first: tuple[Contender, list[Array]] | None = None

    def errors(self, process: Process) -> dict[str, LayerError]:
        plan, who = self._plan, process.contender
        layers = layer_errors(process.layers(plan.checked), self._true)
        errors = {f"layer {j}": error for j, error in enumerate(layers)}
        if plan.singles:
            alone = [process.vectors([tokens])[0] for tokens in plan.checked]
            errors["one sentence at a time"] = _one_layer(alone, self._means)
        if plan.sentences:
            asked = plan.sentences[:PEER_BATCH] if who.is_peer else plan.sentences
            found = process.vectors(asked)
            with_tokens = [vectors for tokens, vectors in zip(asked, found, strict=True) if tokens]
            errors["a corpus call"] = _one_layer(with_tokens[: len(self._means)], self._means)
            if self._first:
                first, theirs = self._first
                errors[f"a corpus call, beside {first}"] = _one_layer(found, theirs[: len(found)])
            elif not who.is_peer and who.precision == "float32":
                self._first = who, found
        return errors


def _one_layer(found: Sequence[Array], true: Sequence[NDArray]) -> LayerError:
    return layer_errors([array[None] for array in found], [array[None] for array in true])[0]


def _corpus(processes: Sequence[Process], plan: Plan, say: Say) -> list[Record]:
    """Tokens per second of one call for all sentences.

    A peer is much slower, and gets a part of the sentences in each repeat, whole batches of them, so that in all repeats it has
    embedded every sentence about once.
    """
    batches = -(-len(plan.sentences) // PEER_BATCH)
    share = max(1, batches // plan.repeats) * PEER_BATCH
    seconds: list[list[float]] = [[] for _ in processes]
    cpu: list[list[float]] = [[] for _ in processes]
    rates: list[list[float]] = [[] for _ in processes]
    for repeat in range(plan.repeats):
        say(f"a corpus call: repeat {repeat + 1} of {plan.repeats}")
        first = repeat * share % (batches * PEER_BATCH)
        for n, process in enumerate(processes):
            asked = plan.sentences[first : first + share] if process.contender.is_peer else plan.sentences
            taken = process.timed(asked)
            rates[n].append(_tokens(asked) / taken["seconds"])
            seconds[n].append(taken["seconds"])
            cpu[n].append(taken["cpu_seconds"])
    return [
        {
            "tokens_per_second": spread(rates[n]),
            "seconds": spread(seconds[n]),
            "cpu_seconds": spread(cpu[n]),
            **_ratios(n, processes, rates),
        }
        for n in range(len(processes))
    ]


def _single(processes: Sequence[Process], plan: Plan, say: Say) -> list[Record]:
    """Milliseconds of a call for one sentence; for each sentence all contenders take their turn."""
    asked = [" ".join(sentence) if plan.as_text else sentence for sentence in plan.singles]
    for process in processes:
        for sentence in asked[:_WARM_UP]:
            process.timed([sentence])
    say(f"one sentence at a time: {len(plan.singles)}")
    seconds = [[0.0] * len(plan.singles) for _ in processes]
    for number, sentence in enumerate(asked):
        for n, process in enumerate(processes):
            seconds[n][number] = process.timed([sentence])["seconds"]
    # Every so many-th sentence is a part of its own: the ratios of the parts tell how sure that of the whole is.
    parts = min(plan.repeats, len(plan.singles))
    rates = [[_tokens(plan.singles[k::parts]) / sum(taken[k::parts]) for k in range(parts)] for taken in seconds]
    return [
        {
            "milliseconds": {
                "p50": 1000 * percentile(taken, 0.5),
                "p99": 1000 * percentile(taken, 0.99),
                "least": 1000 * min(taken),
                "most": 1000 * max(taken),
                "repeats": len(taken),
            },
            "tokens_per_second": spread(rates[n]),
            **_ratios(n, processes, rates),
        }
        for n, taken in enumerate(seconds)
    ]


def _tokens(sentences: Sentences) -> int:
    return sum(map(len, sentences))


def _ratios(n: int, processes: Sequence[Process], rates: Sequence[Sequence[float]]) -> Record:
    """Times a peer's speed with as many threads, and times one thread's of the same contender, repeat by repeat."""
    who = processes[n].contender
    found: Record = {}
    for other, process in enumerate(processes):
        rival = process.contender
        quotients = [x / y for x, y in zip(rates[n], rates[other], strict=True)]
        if rival.is_peer and not who.is_peer and rival.threads == who.threads:
            found[f"over_{rival.library}"] = spread(quotients)
        alike = (rival.library, rival.device, rival.precision, rival.instruction_set)
        if alike == (who.library, who.device, who.precision, who.instruction_set) and rival.threads == 1 < who.threads:
            found["over_one_thread"] = spread(quotients)
    return found
