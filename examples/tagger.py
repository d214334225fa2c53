"""A part-of-speech tagger with and without a model's vectors: what do they gain?

Run: python examples/tagger.py --model MODEL TRAIN.conllu DEV.conllu TEST.conllu [--tags xpos]

Both taggers know a word by what the training part holds at least twice: itself, its first and its last letters. Then come a biLSTM over
the sentence and a softmax. One of the two also gets the model's layers, frozen, mixed by weights that it learns. Each is trained with
several seeds, and its epoch that is best on the dev part counts.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import NamedTuple
from unicodedata import normalize

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
except ImportError:
    sys.exit('This example needs torch: pip install ".[torch]" in a checkout of elmofire')

from elmofire import Embedder, ScalarMix

COLUMNS = {"upos": 3, "xpos": 4}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PADDING, NEVER_SEEN = -100, -1  # in the place of a tag


class Batch(NamedTuple):
    """B sentences side by side, the longest first, of T tokens."""

    lengths: Tensor  # (B,)
    features: Tensor  # (B, T, kinds of features); 0 is unknown
    tags: Tensor  # (B, T)
    new: Tensor  # (B, T), whether the training part lacks the word
    layers: list[Tensor]  # of the model, each (B, T, width)


def read_sentences(path: str, column: int) -> Iterator[tuple[list[str], list[str]]]:
    """Words and tags of each sentence; multiword tokens and empty nodes are left out."""
    for block in Path(path).read_text(encoding="utf-8").split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines()]
        rows = [row for row in rows if row[0].isdecimal()]
        if rows:
            yield [row[1] for row in rows], [row[column] for row in rows]


def features_of(word: str) -> list[str]:
    """The word, its ends and beginnings; also of letters taken apart, as the last one of a Hangul syllable may be an ending."""
    forms = (word, normalize("NFD", word))
    ends = [f"-{form[-length:]}" for form in forms for length in (1, 2, 3, 4)]
    beginnings = [f"{form[:length]}-" for form in forms for length in (1, 2, 3)]
    return [word, *ends, *beginnings]


class Treebank:
    """Three parts as batches; features and tags are numbered by the training part."""

    def __init__(self, paths: list[str], column: int, elmo: Embedder) -> None:
        parts = [list(read_sentences(path, column)) for path in paths]
        self.words = Counter(word for sentence, _ in parts[0] for word in sentence)
        counts = Counter(feature for sentence, _ in parts[0] for word in sentence for feature in features_of(word))
        known = [feature for feature, count in counts.items() if count > 1]
        self.features = {feature: number for number, feature in enumerate(known, start=1)}
        self.tags = {tag: number for number, tag in enumerate(sorted({tag for _, tags in parts[0] for tag in tags}))}
        self.train, self.dev, self.test = (list(self._batches(part, elmo)) for part in parts)

    def _batches(self, part: list[tuple[list[str], list[str]]], elmo: Embedder, rows: int = 32) -> Iterator[Batch]:
        """Sentences of about the same length lie side by side, so that there is little padding."""
        part = sorted(part, key=lambda sentence: -len(sentence[0]))
        vectors = elmo.embed([words for words, _ in part], layers="all")  # of each sentence (layers, T, width)
        for first in range(0, len(part), rows):
            sentences, tags = zip(*part[first : first + rows], strict=True)
            layers = zip(*vectors[first : first + rows], strict=True)
            yield Batch(
                torch.tensor([len(words) for words in sentences]),
                padded([self._numbers(word) for word in words] for words in sentences),
                padded(([self.tags.get(tag, NEVER_SEEN) for tag in row] for row in tags), filling=PADDING),
                padded([word not in self.words for word in words] for words in sentences),
                [padded(layer) for layer in layers],
            )

    def _numbers(self, word: str) -> list[int]:
        return [self.features.get(feature, 0) for feature in features_of(word)]


def padded(rows: Iterable, filling: int = 0) -> Tensor:
    return pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True, padding_value=filling).to(DEVICE)


class Tagger(nn.Module):
    def __init__(self, treebank: Treebank, *, with_model: bool) -> None:
        super().__init__()
        example = treebank.train[0]
        self.features = nn.Embedding(len(treebank.features) + 1, 32)
        nn.init.normal_(self.features.weight, std=0.3)
        self.mix = ScalarMix(len(example.layers)) if with_model else None
        width = 32 * example.features.shape[2] + (example.layers[0].shape[2] if with_model else 0)
        self.lstm = nn.LSTM(width, 128, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(256, len(treebank.tags))
        self.dropout = nn.Dropout(0.5)

    def forward(self, batch: Batch) -> Tensor:
        """(B, T, tags)"""
        known = [self.features(batch.features).flatten(start_dim=2)]
        if self.mix is not None:
            known.append(self.mix(batch.layers))
        inputs = pack_padded_sequence(self.dropout(torch.cat(known, dim=2)), batch.lengths, batch_first=True)
        outputs, _ = pad_packed_sequence(self.lstm(inputs)[0], batch_first=True)
        return self.scores(self.dropout(outputs))


def train(treebank: Treebank, *, with_model: bool, seed: int, epochs: int) -> tuple[float, float, list[float]]:
    """Percent right of the test part, of all its words and of new ones; and the shares of the layers."""
    torch.manual_seed(seed)
    tagger = Tagger(treebank, with_model=with_model).to(DEVICE)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=epochs)
    best, result = -1.0, (0.0, 0.0, [])
    for _ in range(epochs):
        tagger.train()
        for number in torch.randperm(len(treebank.train)).tolist():
            batch = treebank.train[number]
            optimizer.zero_grad()
            nn.functional.cross_entropy(tagger(batch).flatten(0, 1), batch.tags.flatten()).backward()
            optimizer.step()
        schedule.step()
        if (reached := right(tagger, treebank.dev)[0]) > best:
            best = reached
            result = (*right(tagger, treebank.test), tagger.mix.shares.tolist() if tagger.mix else [])
    return result


@torch.no_grad()
def right(tagger: Tagger, batches: list[Batch]) -> tuple[float, float]:
    """Percent of all words, and of new ones."""
    tagger.eval()
    there = [batch.tags != PADDING for batch in batches]
    hits = torch.cat([(tagger(batch).argmax(2) == batch.tags)[own] for batch, own in zip(batches, there, strict=True)])
    new = torch.cat([batch.new[own] for batch, own in zip(batches, there, strict=True)])
    return 100 * hits.float().mean().item(), 100 * hits[new].float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs=3, metavar="CONLLU", help="training, dev and test part")
    parser.add_argument("--model", required=True, help="a name or a folder")
    parser.add_argument("--tags", choices=list(COLUMNS), default="upos")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    treebank = Treebank(given.parts, COLUMNS[given.tags], Embedder.load(given.model))
    print(f"{given.tags}, {len(treebank.tags)} tags: percent right, mean of {given.seeds} seeds (least to most)")
    means, shares = [], []
    for name, with_model in (("words alone", False), (f"with {given.model}", True)):
        runs = [train(treebank, with_model=with_model, seed=seed, epochs=given.epochs) for seed in range(given.seeds)]
        everywhere, new, shares = zip(*runs, strict=True)
        cells = [f"{mean(found):.2f} ({min(found):.2f} to {max(found):.2f})" for found in (everywhere, new)]
        print(f"{name:<20}  {cells[0]}   new words {cells[1]}", flush=True)
        means.append(mean(everywhere))
    gain = means[1] - means[0]
    print(f"{'gain':<20}  {gain:.2f}, {gain / max(100 - means[0], 1e-9):.0%} of the errors")
    print(f"{'shares of layers':<20}  {', '.join(f'{mean(share):.2f}' for share in zip(*shares, strict=True))}")


if __name__ == "__main__":
    main()
