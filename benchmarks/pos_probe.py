"""What a biLM's vectors know of parts of speech: a linear probe on each token's vector alone, beside GloVe and an untrained biLM.

Protocol. Everything in it was chosen on dev. Test figures of GloVe and of an untrained model had been seen before the grid was widened
twice (by the rate 0.03, then by 0.1 and from 10 epochs to 20), since dev still preferred its edge; those of a trained model never.
  data             UD English EWT, the Penn tags (XPOS), syntactic words; train, dev and test as published. Score: accuracy.
  probe            multinomial logistic regression on the vector of one token (elmofire.analysis.probe): Adam, 1,024 tokens an update,
                   20 epochs, rate falling to zero; a grid of eight (rate 0.003, 0.01, 0.03 or 0.1, L2 0 or 0.0001), the same for every
                   representation. Dev chooses the point of the grid and the epoch, for each seed; test is scored once, with these.
                   Records name the edges of the grid that the choice lies on.
  representations  model concatenated      all layers of the model side by side: this is "the model"
                   model average           their mean, no wider than one layer: so that width is not what makes the difference
                   model layer 0, 1, 2     each layer; layer 0 knows no context
                   untrained ...           of biLMs with the model's config and initial weights, one for each seed
                   glove                   GloVe 6B 100d of the word in lower case. Words without a vector are told apart with digits as
                                           0: each that occurs twice in training has a feature of its own (so the probe can learn any
                                           scores for it, as with a trained vector), all others share one, learned from those
                                           that occur once; of the length of a standardized vector
                   NAME concatenated       of further models (--also NAME=MODEL), for instance the same one stored as int8
                   Vectors in float32, zero state at each sentence, standardized by the mean and deviation of the training tokens.
  seeds            1 to 5: of the probe's first weights and order of tokens, and of the untrained biLM.
  comparison       the mean over seeds of test accuracy; paired bootstrap over test sentences within seeds, 10,000 resamples, 95% interval.

Run: python benchmarks/pos_probe.py MODEL UD_FOLDER GLOVE_NPZ [--device cuda] [--also NAME=MODEL] [--trial]
     (--trial: dev alone is scored and compared, the test file is not opened, and nothing is kept)
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from en_small.evaluate import identity
from numpy.typing import NDArray
from records import errors_in_one_line, keep

from elmofire.analysis.probe import Part, probe, standardized
from elmofire.analysis.treebank import numbered_tags, read_tagged, tag_numbers
from elmofire.embed.embedder import Embedder
from elmofire.errors import DataError
from elmofire.formats import load_weights
from elmofire.formats.initial import initial_weights
from elmofire.formats.native import storage_of
from elmofire.formats.weights import Weights
from elmofire.tasks.features import FlatText, glove_vectors
from elmofire.tasks.metrics.bootstrap import RESAMPLES, accuracy, paired_bootstrap

PARTS = ("train", "dev", "test")
SEEDS = (1, 2, 3, 4, 5)
VIEWS = ("concatenated", "average")  # of all layers
COMPARISONS = [
    *((f"model {view}", other) for view in VIEWS for other in ("glove", "model layer 0", f"untrained {view}")),
    *((f"model layer {layer}", other) for layer in (1, 2) for other in ("glove", "model layer 0")),
]

Vectors = NDArray[np.float32]
Counts = NDArray[np.int64]  # (sentences, 2)


class Probes:
    """The treebank, and what was read off each representation of it."""

    def __init__(self, folder: Path, about: dict[str, str], device: str, *, trial: bool = False) -> None:
        parts = [read_tagged(str(_file(folder, part))) for part in (PARTS[:2] if trial else PARTS)]
        numbers = tag_numbers(parts[0])
        self.text = FlatText([sentence.tokens for part in parts for sentence in part])
        self.scored: dict[str, dict[int, Counts]] = {}  # of each representation and seed: on test, in a trial on dev
        self._tags = [numbered_tags(part, numbers) for part in parts]
        self._lengths = [np.array([len(sentence.tokens) for sentence in part]) for part in parts]
        self._about = {**about, "device": device}
        self._device, self._trial = device, trial

    @property
    def training(self) -> int:
        """Tokens of the training part, which come first."""
        return len(self._tags[0])

    def add(self, name: str, vectors: Vectors, seed: int, **more: str) -> None:
        """Probe the standardized vectors of all tokens (tokens, width), and keep a record."""
        began = time.perf_counter()
        tokens = [len(tags) for tags in self._tags]
        split = np.split(vectors, np.cumsum(tokens)[:-1])
        train, dev, *test = map(Part, split, self._tags, self._lengths)
        done = probe(train, dev, test[0] if test else None, seed=seed, device=self._device)
        self.scored.setdefault(name, {})[seed] = done.dev if done.test is None else done.test
        self._keep(
            **more,
            representation=name,
            seed=seed,
            width=vectors.shape[1],
            tokens=tokens,
            dev=_percent(done.dev),
            **({} if done.test is None else {"test": _percent(done.test)}),
            **asdict(done.settings),
            epoch=done.epoch,
            edges=done.edges,
            seconds=round(time.perf_counter() - began, 1),
        )

    def compare(self, first: str, second: str, **more: str) -> None:
        """Keep how much better one representation is than another, in points."""
        own, others = (np.stack(list(self.scored[name].values())) for name in (first, second))
        found = paired_bootstrap(own, others, accuracy)
        self._keep(
            **more,
            first=first,
            second=second,
            means=[_percent(counts.sum(axis=0)) for counts in (own, others)],
            **{key: round(100 * value, 3) for key, value in found._asdict().items()},
            seeds=len(own),
            resamples=RESAMPLES,
        )

    def _keep(self, **figures: object) -> None:
        if self._trial:
            print(json.dumps({"scored": "dev", **self._about, **figures}), flush=True)
        else:
            keep("pos_probe", **self._about, **figures)


def glove(path: Path, probes: Probes) -> Vectors:
    """Standardized vectors, then a feature for each word that GloVe lacks: (tokens, width)"""
    rows, table, given = glove_vectors(path, probes.text, probes.training, seed=0)  # what is drawn is not used
    lacking, known = ~given, given[rows]
    width = table.shape[1]
    vectors = np.zeros((len(rows), width + int(lacking.sum())), dtype=np.float32)
    vectors[known, :width] = standardized(table[rows[known]], int(known[: probes.training].sum()))
    column = width - 1 + np.cumsum(lacking)  # of each row of the table that is lacking
    vectors[~known, column[rows[~known]]] = width**0.5
    return vectors


def layers(elmo: Embedder, text: FlatText) -> Vectors:
    """(tokens, layers, width)"""
    vectors = np.empty((len(text.tokens), elmo.config.layers + 1, elmo.config.width), dtype=np.float32)
    start = 0
    for tokens, found in elmo.stream(text.sentences(), layers="all"):
        vectors[start : start + len(tokens)] = found.swapaxes(0, 1)
        start += len(tokens)
    return vectors


def views(vectors: Vectors, *, single: bool) -> Iterator[tuple[str, Vectors]]:
    """What is probed of a model: its layers side by side, their mean, and if wanted each alone."""
    yield "concatenated", vectors.reshape(len(vectors), -1)
    yield "average", vectors.mean(axis=1)
    for layer in range(vectors.shape[1] if single else 0):
        yield f"layer {layer}", vectors[:, layer]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name or a folder")
    parser.add_argument("ud", type=Path, help="the folder of en_ewt-ud-{train,dev,test}.conllu, or .conllu.xz")
    parser.add_argument("glove", type=Path, help="an .npz file with `words` and `vectors`")
    parser.add_argument("--device", default="cpu", help="cpu or a torch device")
    parser.add_argument(
        "--also", action="append", default=[], metavar="NAME=MODEL", help="a further model (repeatable)"
    )
    parser.add_argument("--trial", action="store_true", help="score dev alone, keep nothing")
    given = parser.parse_args()
    with errors_in_one_line():
        probe_all(given)


def probe_all(given: argparse.Namespace) -> None:
    also = {name: load_weights(model) for name, model in (pair.split("=", 1) for pair in given.also)}
    weights = load_weights(given.model)
    probes = Probes(given.ud, {"model": given.model, **which(weights)}, given.device, trial=given.trial)

    def add(name: str, vectors: Vectors, *seeds: int, **more: str) -> None:
        scaled = standardized(vectors, probes.training)
        for seed in seeds:
            probes.add(name, scaled, seed, **more)

    of_glove = glove(given.glove, probes)
    for seed in SEEDS:
        probes.add("glove", of_glove, seed)
    del of_glove
    for view, vectors in views(layers(Embedder(weights, device=given.device), probes.text), single=True):
        add(f"model {view}", vectors, *SEEDS)
    for seed in SEEDS:
        initial = initial_weights(replace(weights.config, head=0), seed=seed, vocabulary=weights.vocabulary)
        for view, vectors in views(layers(Embedder(initial, device=given.device), probes.text), single=False):
            add(f"untrained {view}", vectors, seed)
    for name, further in also.items():
        _, concatenated = next(views(layers(Embedder(further, device=given.device), probes.text), single=False))
        add(f"{name} concatenated", concatenated, *SEEDS, **further_one(further))
    for first, second in COMPARISONS:
        probes.compare(first, second)
    for name, further in also.items():
        probes.compare(f"{name} concatenated", "model concatenated", **further_one(further))


def which(weights: Weights) -> dict[str, str]:
    """What tells a model from others."""
    return {"identity": identity(weights), "storage": storage_of(weights)}


def further_one(weights: Weights) -> dict[str, str]:
    return {f"also_{key}": told for key, told in which(weights).items()}


def _file(folder: Path, part: str) -> Path:
    for suffix in (".conllu", ".conllu.xz"):
        if (file := folder / f"en_ewt-ud-{part}{suffix}").exists():
            return file
    raise DataError(f"{folder}: has no en_ewt-ud-{part}.conllu or .conllu.xz")


def _percent(counts: Counts) -> float:
    right, tokens = counts.sum(axis=0)
    return round(100 * float(right / tokens), 3)


if __name__ == "__main__":
    main()
