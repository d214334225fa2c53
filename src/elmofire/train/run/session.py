"""Everything that one training run is made of, built from a recipe and a corpus; its checkpoints hold all that changes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmofire.errors import DataError, RecipeError
from elmofire.formats.config import FORWARD
from elmofire.formats.initial import initial_weights
from elmofire.formats.weights import Weights
from elmofire.model.bilm import BiLM
from elmofire.recipe import text_of
from elmofire.text.characters import ByteAlphabet
from elmofire.train.corpus.reader import CORPUS_FILE, Corpus, Split, digest
from elmofire.train.corpus.report import is_by_frequency
from elmofire.train.files.checkpoints import Checkpoint, Checkpoints
from elmofire.train.run.memory import Moment, fit_in_memory
from elmofire.train.run.ranks import Ranks
from elmofire.train.run.switches import repeat_exactly
from elmofire.train.settings import Recipe
from elmofire.train.step.forward import BatchLoss
from elmofire.train.step.optimizers import Optimizer
from elmofire.train.step.parameters import FlatParameters
from elmofire.train.step.schedule import Schedule
from elmofire.train.step.stepper import Stepper
from elmofire.train.stream.batch import Update
from elmofire.train.stream.stream import Stream, open_stream

GPU_ROWS = 128  # of a tile of the fastest kernels: updates have a multiple of it, and parts of them a share


@dataclass
class Progress:
    """How far a run is; what is summed since the last line of the log lies on the device, in the stepper."""

    update: int = 0  # made so far
    tokens: int = 0  # predicted so far, in one direction
    seconds: float = 0.0  # of all sittings
    evaluations: int = 0
    best: float | None = None  # mean perplexity of the best evaluation
    position: dict[str, Any] | None = None  # of the stream


class Session:
    """The parts of a run."""

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus,
        ranks: Ranks,
        *,
        start: Weights | None = None,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        """`before` are the facts of the checkpoint from which a run goes on: its updates are split as they were."""
        self.recipe, self.corpus, self.ranks = recipe, corpus, ranks
        before_all = Moment(ranks.device)
        self.held_out = held_out(recipe, corpus)
        self._corpus_digest = digest(corpus.folder / CORPUS_FILE)
        if recipe.train.deterministic and ranks.device.type == "cuda":
            repeat_exactly()
        self.precision = precision_on(ranks.device, recipe.train.precision)
        weights = start or initial_weights(
            replace(recipe.model, head=len(corpus.vocabulary)), seed=recipe.train.seed, vocabulary=corpus.vocabulary
        )
        _check_start(weights, corpus)
        self.bilm = BiLM.from_weights(weights).to(ranks.device)
        self.bilm.tokenizer = start.tokenizer if start else corpus.tokenizer
        self.loss = BatchLoss(
            self.bilm, spellings_of(corpus, weights), recipe.loss, recipe.dropout, precision=self.precision
        ).to(ranks.device)
        self.loss.direct = ranks.world == 1
        self.parameters = FlatParameters(self.bilm, self.bilm.arrays())
        self.optimizer = Optimizer(recipe.optimizer, self.parameters)
        self.fit = fit_in_memory(self.loss, self.parameters, recipe, ranks, self._open, before)
        self.stream = self._open(self.fit.parts)
        self.updates = updates_of(recipe, self.stream)
        self.schedule = Schedule(recipe.optimizer, updates=self.updates, minutes=recipe.train.minutes)
        self.stepper = Stepper(
            self.loss,
            self.parameters,
            self.optimizer,
            seed=recipe.train.seed,
            rank=ranks.rank,
            world=ranks.world,
            state_rows=self.fit.parts * self.stream.carried_rows,
            most_words=self.stream.most_words() if ranks.device.type == "cuda" else {},
            graphs=self.fit.graphs,
        )
        self.stepper.make_ready(self.stream.kinds())
        self.fit = before_all.measured(self.fit)
        self.progress = Progress()

    def _open(self, parts: int) -> Stream:
        return open_stream(
            self.corpus,
            self.recipe,
            directions=len(self.bilm.config.directions),
            rank=self.ranks.rank,
            world=self.ranks.world,
            parts=parts,
            row_multiple=GPU_ROWS if self.ranks.device.type == "cuda" else 1,
        )

    def made(self, update: Update) -> None:
        """An update is done."""
        self.progress.update = update.number + 1
        self.progress.tokens += update.tokens[0]
        self.progress.position = update.position

    def save(self, checkpoints: Checkpoints) -> None:
        """All that is needed to go on exactly."""
        plain, arrays = {}, {}
        for name, value in (self.progress.position or {}).items():
            (arrays if isinstance(value, np.ndarray) else plain)[name] = value
        tensors: dict[str, Tensor | np.ndarray] = {
            f"weights/{name}": tensor for name, tensor in self.parameters.named(self.parameters.weights).items()
        }
        for name, tensor in self.optimizer.state().items():
            if tensor.shape == self.parameters.weights.shape:
                tensors |= {f"{name}/{part}": view for part, view in self.parameters.named(tensor).items()}
            else:
                tensors[f"optimizer/{name}"] = tensor
        tensors |= {f"position/{name}": array for name, array in arrays.items()}
        tensors |= {
            "state/hidden": self.ranks.all_rows(self.stepper.state.hidden, dim=2),
            "state/memory": self.ranks.all_rows(self.stepper.state.memory, dim=2),
            "sums/losses": self.ranks.all_rows(self.stepper.losses[None], dim=0),
            "sums/tokens": self.ranks.all_rows(self.stepper.tokens[None], dim=0),
            "sums/skipped": self.stepper.skipped,
        }
        facts = {
            "progress": {**vars(self.progress), "position": plain},
            "schedule": self.schedule.state(),
            "corpus": self._corpus_digest,
            "parts": self.fit.parts,
            "graphs": self.fit.graphs,
            "ranks": self.ranks.world,
            "device": self.ranks.device.type,
        }
        if self.ranks.first:
            checkpoints.save(self.progress.update, tensors, facts)
        self.ranks.wait()

    def load(self, checkpoint: Checkpoint, folder: Path) -> None:
        """Go on from there; `folder` is that of the run."""
        facts, tensors = checkpoint.facts, checkpoint.tensors
        if facts["corpus"] != self._corpus_digest:
            raise DataError(
                f"{folder}: the run was made on another corpus than {self.corpus.folder}",
                hint="give the corpus it was started with, or choose another name for the run",
            )
        if facts["ranks"] != self.ranks.world:
            raise DataError(
                f"{folder}: the run was made by {facts['ranks']} processes, but {self.ranks.world} want to go on with it",
                hint="start as many as before: what each reads depends on it",
            )
        if facts["device"] != self.ranks.device.type:
            raise DataError(
                f"{folder}: the run was made on the device {facts['device']}, but is to go on on {self.ranks.device.type}",
                hint="go on where it was started: batches and precision depend on it",
            )
        _fill(self.parameters.named(self.parameters.weights), tensors, "weights/")
        state: dict[str, Tensor] = {}
        for name, tensor in self.optimizer.state().items():
            if tensor.shape == self.parameters.weights.shape:
                state[name] = tensor.clone()  # what lies between the parameters is as at the start
                _fill(self.parameters.named(state[name]), tensors, f"{name}/")
            else:
                state[name] = tensors[f"optimizer/{name}"].to(tensor.device)
        self.optimizer.load(state)
        self.stepper.state.hidden.copy_(self.ranks.own_rows(tensors["state/hidden"], dim=2))
        self.stepper.state.memory.copy_(self.ranks.own_rows(tensors["state/memory"], dim=2))
        self.stepper.losses.copy_(self.ranks.own_rows(tensors["sums/losses"], dim=0)[0])
        self.stepper.tokens.copy_(self.ranks.own_rows(tensors["sums/tokens"], dim=0)[0])
        self.stepper.skipped.copy_(tensors["sums/skipped"])
        position = {
            **facts["progress"].pop("position"),
            **{
                name.removeprefix("position/"): t.numpy().copy()
                for name, t in tensors.items()
                if name.startswith("position/")
            },
        }
        self.progress = Progress(**facts["progress"], position=position or None)
        self.schedule.load(facts["schedule"])

    def facts(self) -> dict[str, Any]:
        """What made the model, for its config."""
        report = _without_folders(self.corpus.table.get("report", {}))
        return {
            "recipe": text_of(self.recipe),
            "corpus": {
                "digest": self._corpus_digest,
                "tokens": self.corpus.train.tokens,
                **({"report": report} if report else {}),
            },
            "update": self.progress.update,
            "tokens_read": self.progress.tokens,
        }

    def weights(self, training: Mapping[str, Any]) -> Weights:
        """The model as it is now, for a format to write."""
        return replace(self.bilm.weights(), training=training)


def _check_start(weights: Weights, corpus: Corpus) -> None:
    words = weights.vocabulary
    if not weights.config.head or words is None or words.words != corpus.vocabulary.words:
        raise DataError(
            f"the model's head does not predict the words of {corpus.folder}",
            hint=f"prepare the text with the model's own vocabulary; `finetune` does so anew when {corpus.folder} is removed",
        )
    if FORWARD not in weights.config.directions:
        raise DataError("the model reads backward alone; both directions are trained, or the forward one")


def suited(recipe: Recipe, corpus: Corpus, *, fine_tuned: bool = False) -> tuple[Recipe, list[str]]:
    """The recipe for this corpus, and what had to be changed.

    A model that is fine-tuned brings its vocabulary along, whose order is that of other text.
    """
    words = len(corpus.vocabulary)
    if recipe.loss.softmax == "sampled" and 2 * recipe.loss.samples >= words:
        note = f"full softmax: the vocabulary has {words:,} words, fewer than twice the {recipe.loss.samples:,} to draw"
        return replace(recipe, loss=replace(recipe.loss, softmax="full")), [note]
    by_frequency = fine_tuned or is_by_frequency(corpus.table["report"]["words"])
    if recipe.loss.softmax == "sampled" and not by_frequency:
        raise RecipeError(
            f"`loss.softmax` is 'sampled', which draws frequent words more often by their place in the vocabulary, but that of "
            f"{corpus.folder} is not sorted by the words' frequency in its text",
            hint="loss.softmax=full, or a corpus whose vocabulary was made from its text",
        )
    return recipe, []


def held_out(recipe: Recipe, corpus: Corpus) -> Split | None:
    """The text that tells which model is best."""
    name, splits = recipe.train.evaluate_on, {name: split for name, split in corpus.heldout.items() if split.tokens}
    if name is not None and name not in splits:
        raise RecipeError(
            f"`train.evaluate_on` is {name!r}, but the corpus has {', '.join(splits) or 'no held-out text'}",
            hint="train.evaluate_on=none takes what there is",
        )
    if not splits and recipe.optimizer.schedule == "plateau":
        raise RecipeError(
            "`optimizer.schedule` is 'plateau', which evaluations decide, but the corpus has no held-out text",
            hint="another schedule, or a corpus that was prepared with held-out text",
        )
    if name is None:  # what was cut from the training text comes first: text given apart is often for a last look
        cut = corpus.table.get("options", {}).get("held_out_name", "")
        name = cut if cut in splits else next(iter(splits), None)
    return None if name is None else splits[name]


def precision_on(device: torch.device, wanted: str) -> str:
    """bfloat16 is what GPUs are fast in."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if device.type == "cuda" else "float32"


def updates_of(recipe: Recipe, stream: Stream) -> int | None:
    """How many updates end the run; None: minutes do."""
    if recipe.train.epochs is not None:
        return max(1, round(recipe.train.epochs * stream.updates_per_epoch))
    return recipe.train.updates


def spellings_of(corpus: Corpus, weights: Weights) -> Tensor:
    """Character ids of every word of the corpus (types, W), as small as they fit."""
    if not isinstance(weights.alphabet, ByteAlphabet):
        raise DataError("only models that read bytes are trained; this one has an alphabet of its own")
    wide = weights.config.encoder.max_characters
    table = np.empty((corpus.words, wide), dtype=np.int16)
    for start in range(0, corpus.words, 1 << 16):
        numbers = np.arange(start, min(start + (1 << 16), corpus.words))
        table[numbers] = corpus.character_ids(numbers, wide)
    return torch.from_numpy(table)


def _without_folders(report: Mapping[str, Any]) -> dict[str, Any]:
    """A model goes to others, whom the folders of this machine do not concern: of files their names alone."""
    told = dict(report)
    if told.get("overlaps"):
        told["overlaps"] = [{**check, "file": _name(check["file"])} for check in told["overlaps"]]
    if told.get("long_sentences"):
        told["long_sentences"] = {**told["long_sentences"], "first": _name(told["long_sentences"]["first"])}
    return told


def _name(file: str) -> str:
    return file if file.startswith("hf:") else Path(file).name  # data sets of the hub have no folder


def _fill(named: Mapping[str, Tensor], tensors: Mapping[str, Tensor], prefix: str) -> None:
    for name, own in named.items():
        own.copy_(tensors[f"{prefix}{name}"])
