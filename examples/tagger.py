"""A part-of-speech tagger, with and without a model's vectors: what do they gain?

Run: python examples/tagger.py --model ko-small TRAIN.conllu DEV.conllu TEST.conllu [--tags xpos]

Both taggers are the same: what is known of a word from the training part (itself, its beginnings and ends, if they were seen there at
least twice), a biLSTM over the sentence, a softmax. One of them also gets the model's layers, frozen and mixed by weights that it learns.
Each is trained with several seeds; the epoch that is best on the dev part is the one whose accuracy on the test part counts.
"""
# ruff: noqa: T201

import argparse
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from elmofire import Embedder, ScalarMix

COLUMNS = {"upos": 3, "xpos": 4}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Batch(NamedTuple):
    """Sentences side by side, the longest first; B of them, T tokens long."""

    lengths: Tensor  # (B,), on the CPU
    features: Tensor  # (B, T, kinds of features), 0: unknown
    tags: Tensor  # (B, T), -1: a tag that training never saw, -100: padding
    unseen: Tensor  # (B, T), whether the word is not in the training part
    layers: list[Tensor]  # of the model, each (B, T, width)


class Tagger(nn.Module):
    def __init__(self, features: int, kinds: int, tags: int, layers: int, width: int) -> None:
        super().__init__()
        self.features = nn.Embedding(features, 32)
        self.mix = ScalarMix(layers) if layers else None
        self.lstm = nn.LSTM(32 * kinds + width, 128, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(256, tags)
        self.dropout = nn.Dropout(0.5)

    def forward(self, batch: Batch) -> Tensor:
        """(B, T, tags)"""
        inputs = [self.features(batch.features).flatten(2)]
        if self.mix is not None:
            inputs.append(self.mix(batch.layers))
        packed = pack_padded_sequence(self.dropout(torch.cat(inputs, dim=2)), batch.lengths, batch_first=True)
        read, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.scores(self.dropout(read))


def read_sentences(path: str, column: int) -> Iterator[tuple[list[str], list[str]]]:
    """Words and tags of each sentence; multiword tokens and empty nodes are left out."""
    for block in Path(path).read_text(encoding="utf-8").split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines() if line[:1].isdecimal()]
        rows = [row for row in rows if row[0].isdecimal()]
        if rows:
            yield [row[1] for row in rows], [row[column] for row in rows]


def features_of(word: str) -> list[str]:
    """The word, its ends and beginnings; letters taken apart, so that a Hangul syllable shows the ending that is melted into it."""
    letters = unicodedata.normalize("NFD", word)
    ends = [f"-{letters[-length:]}" for length in (1, 2, 3, 4, 6, 8)]
    beginnings = [f"{letters[:length]}-" for length in (2, 4)]
    shape = "".join(sorted({unicodedata.category(letter)[0] for letter in letters})) + str(min(len(letters), 9))
    return [word, *ends, *beginnings, f"={shape}"]


class Treebank:
    """The three parts as batches; features, tags and words are numbered by the training part."""

    def __init__(self, paths: list[str], column: int, elmo: Embedder) -> None:
        parts = [list(read_sentences(path, column)) for path in paths]
        words = {word for sentence, _ in parts[0] for word in sentence}
        counts = Counter(feature for sentence, _ in parts[0] for word in sentence for feature in features_of(word))
        known = [feature for feature, count in counts.items() if count > 1]
        self.features = {feature: number for number, feature in enumerate(known, 1)}
        self.tags = {tag: number for number, tag in enumerate(sorted({tag for _, tags in parts[0] for tag in tags}))}
        self.kinds = len(features_of("word"))
        self.train, self.dev, self.test = (list(self._batches(part, words, elmo)) for part in parts)

    def _batches(
        self, part: list[tuple[list[str], list[str]]], words: set[str], elmo: Embedder, rows: int = 32
    ) -> Iterator[Batch]:
        """Sentences of about one length lie side by side, so that there is little padding."""
        part = sorted(part, key=lambda sentence: -len(sentence[0]))
        vectors = elmo.embed([sentence for sentence, _ in part], layers="all")  # each (layers, tokens, width)
        for first in range(0, len(part), rows):
            some = part[first : first + rows]
            numbers = [[self._numbers(word) for word in sentence] for sentence, _ in some]
            tags = [[self.tags.get(tag, -1) for tag in tags] for _, tags in some]
            unseen = [[word not in words for word in sentence] for sentence, _ in some]
            layers = zip(*(torch.from_numpy(array) for array in vectors[first : first + rows]), strict=True)
            yield Batch(
                torch.tensor([len(sentence) for sentence, _ in some]),
                padded(numbers),
                padded(tags, filling=-100),
                padded(unseen),
                [padded(layer) for layer in layers],
            )

    def _numbers(self, word: str) -> list[int]:
        return [self.features.get(feature, 0) for feature in features_of(word)]


def padded(rows: Iterable[Tensor | list], filling: int = 0) -> Tensor:
    return pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True, padding_value=filling).to(DEVICE)


def train(treebank: Treebank, *, vectors: bool, seed: int, epochs: int) -> tuple[float, float, list[float]]:
    """Accuracy on the test part, of all words and of unseen ones, and the shares of the layers."""
    torch.manual_seed(seed)
    layers = treebank.train[0].layers if vectors else []
    width = layers[0].shape[2] if vectors else 0
    tagger = Tagger(len(treebank.features) + 1, treebank.kinds, len(treebank.tags), len(layers), width).to(DEVICE)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=2e-3)
    best, result = -1.0, (0.0, 0.0, [])
    for _ in range(epochs):
        tagger.train()
        for number in torch.randperm(len(treebank.train)).tolist():
            batch = treebank.train[number]
            loss = nn.functional.cross_entropy(tagger(batch).flatten(0, 1), batch.tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        reached, _ = accuracy(tagger, treebank.dev)
        if reached > best:
            shares = tagger.mix.shares.tolist() if tagger.mix is not None else []
            best, result = reached, (*accuracy(tagger, treebank.test), shares)
    return result


@torch.no_grad()
def accuracy(tagger: Tagger, batches: list[Batch]) -> tuple[float, float]:
    """Percent of all words, and of those that the training part does not have."""
    tagger.eval()
    right, unseen = [], []
    for batch in batches:
        there = batch.tags != -100
        right.append((tagger(batch).argmax(dim=2) == batch.tags)[there])
        unseen.append(batch.unseen[there])
    correct, new = torch.cat(right).float(), torch.cat(unseen)
    return 100 * correct.mean().item(), 100 * correct[new].mean().item()


def shown(name: str, figures: list[float]) -> str:
    return f"{name:<28}{mean(figures):6.2f}  ({min(figures):.2f} to {max(figures):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs=3, metavar="CONLLU", help="the training, dev and test part")
    parser.add_argument("--model", required=True, help="a name or a folder")
    parser.add_argument("--tags", choices=list(COLUMNS), default="upos")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    treebank = Treebank(options.paths, COLUMNS[options.tags], Embedder.load(options.model, device=DEVICE))
    runs = {
        name: [train(treebank, vectors=vectors, seed=seed, epochs=options.epochs) for seed in range(options.seeds)]
        for name, vectors in (("words alone", False), (f"with {options.model}", True))
    }
    print(f"{options.tags}: {len(treebank.tags)} tags, accuracy on the test part, mean of {options.seeds} seeds")
    for name, found in runs.items():
        print(shown(name, [everywhere for everywhere, _, _ in found]))
        print(shown("  words not seen in training", [unseen for _, unseen, _ in found]))
    without, beside = (mean(everywhere for everywhere, _, _ in found) for found in runs.values())
    print(f"gain {beside - without:.2f}: {100 * (beside - without) / (100 - without):.0f}% fewer errors")
    shares = zip(*(shares for _, _, shares in list(runs.values())[1]), strict=True)
    print("shares of the layers", *(f"{mean(share):.2f}" for share in shares))


if __name__ == "__main__":
    main()
