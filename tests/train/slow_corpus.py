"""A prepared corpus by its definition: Python lists, one loop after the other, nothing shared with the package but tokens."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

SPECIALS = ["<S>", "</S>", "<UNK>"]


@dataclass
class SlowCorpus:
    words: list[str]
    counts: dict[str, int]
    vocabulary: list[str]

    def __init__(self, train: list[list[list[str]]], others: list[list[list[str]]], size: int) -> None:
        """`train` and `others` are documents, which are sentences, which are words."""
        self.counts = Counter(word for document in train for sentence in document for word in sentence)
        elsewhere = {word for document in others for sentence in document for word in sentence} - set(self.counts)
        by_count = sorted(set(self.counts) - set(SPECIALS), key=lambda word: (-self.counts[word], word.encode()))
        self.words = [*SPECIALS, *by_count, *sorted(elsewhere - set(SPECIALS), key=str.encode)]
        self.vocabulary = [*SPECIALS, *by_count][:size]


def documents_of(split, corpus) -> list[list[list[str]]]:
    """The words of a prepared split, document by document."""
    starts = [*split.document_starts.tolist(), len(split)]
    assert starts[0] == 0
    sentences = [corpus.spellings(split.sentence(number)) for number in range(len(split))]
    return [sentences[first:last] for first, last in pairwise(starts)]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
