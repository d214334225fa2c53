"""Named entity recognition on CoNLL-2003: a biLSTM-CRF (Peters et al. 2018, A.7) whose inputs alone tell its variants apart."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import elmofire.model  # noqa: F401  says which extra is missing, before torch does

# isort: split
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from elmofire.engine.batches import Ints
from elmofire.errors import DataError, InputError
from elmofire.model.mix import ScalarMix
from elmofire.tasks.features import Batch, Features, FlatText, Read
from elmofire.tasks.layers import CharacterCnn, Crf
from elmofire.tasks.metrics.bootstrap import span_f1
from elmofire.tasks.metrics.spans import span_counts
from elmofire.tasks.tagging import TaggedSentence, TagSet, to_iobes
from elmofire.tasks.trainer import Epoch, TrainerSettings, fit
from elmofire.text.readers import read_lines

SPLITS = {"train": "eng.train.xz", "dev": "eng.testa.xz", "test": "eng.testb.xz"}
MIX_PENALTY = 0.1  # the paper's lambda for this task: layers keep nearly equal shares
_DECODED = 512  # sentences at a time


# ── data ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_conll2003(path: Path) -> list[TaggedSentence]:
    """The sentences of a CoNLL-2003 file: a token a line (word, part of speech, chunk, entity in IOB), blank lines between sentences.

    The lines that begin documents are left out, and tags are in IOBES.
    """
    sentences: list[TaggedSentence] = []
    tokens: list[str] = []
    tags: list[str] = []

    def finish() -> None:
        if tokens:
            sentences.append(TaggedSentence(tokens.copy(), to_iobes(tags)))
        tokens.clear()
        tags.clear()

    for number, line in enumerate(read_lines(str(path)), 1):
        fields = line.split()
        if not fields or fields[0] == "-DOCSTART-":
            finish()
            continue
        if len(fields) != 4:
            raise DataError(
                f"{path}:{number}: {len(fields)} fields, but a token has 4: word, part of speech, chunk, entity"
            )
        prefix, dash, kind = fields[3].partition("-")
        if fields[3] != "O" and not (prefix in ("I", "B") and dash and kind):
            raise DataError(f"{path}:{number}: the entity tag {fields[3]!r} is neither O nor I-KIND nor B-KIND")
        tokens.append(fields[0])
        tags.append(fields[3])
    finish()
    if not sentences:
        raise DataError(f"{path}: holds no sentence")
    return sentences


class NerData:
    """All splits as one flat text, `train` first, with their tags in IOBES.

    What kinds of spans there are is known from `train` alone: another kind is never found, and so never right.
    """

    def __init__(self, splits: Mapping[str, Sequence[TaggedSentence]]) -> None:
        if next(iter(splits), None) != "train" or not splits["train"]:
            given = ", ".join(f"{name} ({len(split)} sentences)" for name, split in splits.items())
            raise InputError(f"the splits are {given or 'none'}", hint="give `train` first, with at least one sentence")
        sentences = [sentence for split in splits.values() for sentence in split]
        ends = np.cumsum([len(split) for split in splits.values()]).tolist()
        self.text = FlatText([sentence.tokens for sentence in sentences])
        self.tags = [sentence.tags for sentence in sentences]
        self.numbers: dict[str, Ints] = {
            name: np.arange(end - len(split), end) for (name, split), end in zip(splits.items(), ends, strict=True)
        }
        self.tag_set = TagSet(tag[2:] for sentence in splits["train"] for tag in sentence.tags if tag != "O")

    @classmethod
    def load(cls, folder: Path) -> "NerData":
        """The three files of the shared task, training first."""
        return cls({name: read_conll2003(folder / file) for name, file in SPLITS.items()})

    @property
    def training_tokens(self) -> int:
        """They stand first in the flat text."""
        return int(self.text.lengths[self.numbers["train"]].sum())


# ── model ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class NerTagger(nn.Module):
    """Scores of tags from any of word vectors (trained on), characters, and the mixed layers of a frozen biLM."""

    def __init__(
        self,
        tags: TagSet,
        *,
        vectors: Tensor | None = None,  # (V, D)
        characters: bool = False,
        layers: tuple[int, int] | None = None,  # how many, and how wide
        cells: int = 200,  # in each direction
        dropout: float = 0.5,  # before the LSTM and after it
    ) -> None:
        super().__init__()
        self.words = None if vectors is None else nn.Embedding.from_pretrained(vectors.clone(), freeze=False)
        self.characters = CharacterCnn() if characters else None
        self.mix = ScalarMix(layers[0]) if layers else None
        width = 0 if vectors is None else vectors.shape[1]
        width += self.characters.convolution.out_features if self.characters else 0
        width += layers[1] if layers else 0
        self.lstm = nn.LSTM(width, cells, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.scores = nn.Linear(2 * cells, len(tags))
        self.crf = Crf(tags)

    def forward(self, read: Read, sizes: Tensor) -> Tensor:
        """What is read of n tokens, laid out step by step in these sizes (on the CPU) -> (n, K)"""
        inputs: list[Tensor] = []
        if self.words is not None:
            inputs.append(self.words(read.words))
        if self.characters is not None:
            inputs.append(self.characters(read.characters))
        if self.mix is not None and read.layers is not None:
            inputs.append(self.mix(read.layers.unbind(dim=1)))
        packed = PackedSequence(self.dropout(torch.cat(inputs, dim=1)), sizes)
        return self.scores(self.dropout(self.lstm(packed)[0].data))

    def penalty(self) -> Tensor | float:
        return MIX_PENALTY * self.mix.penalty() if self.mix is not None else 0.0


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────


class NerRun:
    """One model with one data set on one device: its loss, its predictions, its scores."""

    def __init__(self, model: NerTagger, data: NerData, features: Features, device: str | torch.device) -> None:
        self.model, self.data, self.features, self.device = model.to(device), data, features, device
        flat = np.concatenate([data.tag_set.ids(data.tags[number]) for number in data.numbers["train"]])
        self._tags = torch.from_numpy(flat).to(device)  # (training tokens,), which stand first

    def loss(self, numbers: Ints) -> Tensor:
        """Mean over sentences, which must be of `train`, with the mix's penalty."""
        scores, mask, places, cells = self._scores(self.data.text.batch(numbers))
        tags = _padded(self._tags[places], cells, mask.shape)
        return self.model.crf.loss(scores, mask, tags).mean() + self.model.penalty()

    def counts(self, split: str) -> Ints:
        """Of each sentence of a split: spans found rightly, predicted, in gold."""
        numbers = self.data.numbers[split]
        return span_counts([self.data.tags[number] for number in numbers], self.predict(numbers))

    def f1(self, split: str) -> float:
        """In percent."""
        return 100 * float(span_f1(self.counts(split).sum(axis=0).astype(np.float64)))

    @torch.no_grad()
    def predict(self, numbers: Ints) -> list[list[str]]:
        """IOBES tags of these sentences, in their order."""
        self.model.eval()
        names = np.array(self.data.tag_set.names, dtype=object)
        lengths = self.data.text.lengths
        order = numbers[np.argsort(-lengths[numbers], kind="stable")]
        found: dict[int, list[str]] = {}
        for first in range(0, len(order), _DECODED):
            batch = self.data.text.batch(order[first : first + _DECODED])
            scores, mask, _, _ = self._scores(batch)
            tags = names[self.model.crf.best(scores, mask).cpu().numpy()]
            found |= {n: row[: lengths[n]].tolist() for n, row in zip(batch.sentences.tolist(), tags, strict=True)}
        return [found[number] for number in numbers.tolist()]

    def _scores(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scores (B, T, K) and mask (B, T); then the batch's places and cells, on the device."""
        places, cells = torch.from_numpy(np.stack([batch.places, batch.cells])).to(self.device)
        read = self.features.at(batch.places, places)
        scores = _padded(self.model(read, torch.from_numpy(batch.sizes)), cells, batch.shape)
        mask = _padded(torch.ones_like(cells, dtype=torch.bool), cells, batch.shape)
        return scores, mask, places, cells


def _padded(rows: Tensor, cells: Tensor, shape: Sequence[int]) -> Tensor:
    """(n, ..) -> (B, T, ..), zero where there is no token"""
    room = rows.new_zeros(shape[0] * shape[1], *rows.shape[1:])
    return room.index_copy(0, cells, rows).unflatten(0, tuple(shape))


def train_ner(
    data: NerData,
    features: Features,
    settings: TrainerSettings | None = None,
    *,
    vectors: Tensor | None = None,
    seed: int = 1,
    device: str | torch.device = "cpu",
    report: Callable[[Epoch], None] | None = None,
) -> tuple[NerRun, list[Epoch]]:
    """Train on `train` what these features allow, stop by the F1 on `dev`. On a CPU the same seed gives the same model.

    `vectors` are the table that the features' words are rows of.
    """
    if features.words is None and features.spellings is None and features.layers is None:
        raise InputError("there are no features to train on", hint="give words, spellings or layers")
    if (features.words is None) != (vectors is None):
        raise InputError("words are rows of a table of vectors: give both or neither")
    with _seeded(seed):
        model = NerTagger(
            data.tag_set,
            vectors=vectors,
            characters=features.spellings is not None,
            layers=None if features.layers is None else (features.layers.shape[1], features.layers.shape[2]),
        )
        run = NerRun(model, data, features, device)
        lengths = data.text.lengths[data.numbers["train"]]
        first = data.numbers["train"][0]
        epochs = fit(
            model,
            lengths,
            lambda numbers: run.loss(first + numbers),
            lambda: run.f1("dev"),
            settings or TrainerSettings(),
            seed=seed,
            report=report,
        )
    return run, epochs


@contextmanager
def _seeded(seed: int):
    """torch's random numbers from a seed, and afterwards as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
