"""All words of a corpus by falling frequency, and the vocabulary: those that the model is to predict."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import InputError
from elmofire.formats.files import written_aside
from elmofire.text.characters import END, START
from elmofire.text.vocabulary import UNKNOWN, Vocabulary, read_vocabulary, write_vocabulary
from elmofire.train.corpus.shards import save

SPECIALS = (START, END, UNKNOWN[0])  # the first three words of every corpus: ids 0, 1 and 2


@dataclass(frozen=True)
class Words:
    """Each distinct word once: the specials, then by falling count in the training text, equal counts by their bytes."""

    spellings: list[bytes]
    counts: NDArray[np.uint64]  # in the training text; words that only held-out text has come last, with 0


class Counter:
    """Counts of many blocks become one table, whatever the order in which blocks were made."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {word.encode(): number for number, word in enumerate(SPECIALS)}
        self._train = np.zeros(1 << 16, dtype=np.uint64)
        self._all = np.zeros(1 << 16, dtype=np.uint64)

    def add(
        self, words: Sequence[bytes], train: NDArray[np.uint64], everywhere: NDArray[np.uint64]
    ) -> NDArray[np.uint32]:
        """Add a block's counts; the number that each of its words has here."""
        numbers = self._numbers
        found = np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.uint32)
        while len(numbers) > len(self._train):
            self._train = np.concatenate([self._train, np.zeros_like(self._train)])
            self._all = np.concatenate([self._all, np.zeros_like(self._all)])
        self._train[found] += train
        self._all[found] += everywhere
        return found

    def table(self) -> tuple[Words, NDArray[np.uint32]]:
        """The words in their final order, and the final id of each number that `add` gave."""
        listed = list(self._numbers)
        used = [number for number in range(len(SPECIALS), len(listed)) if self._all[number]]
        counts = self._train.tolist()
        used.sort(key=lambda number: (-counts[number], listed[number]))
        order = [*range(len(SPECIALS)), *used]
        ids = np.zeros(len(listed), dtype=np.uint32)
        ids[order] = np.arange(len(order), dtype=np.uint32)
        return Words([listed[number] for number in order], self._train[order]), ids


def most_frequent(words: Words, size: int, min_count: int) -> Vocabulary:
    """The specials and the most frequent words, `size` in all, none rarer than `min_count` in the training text."""
    rare = np.flatnonzero(words.counts[len(SPECIALS) :] < max(min_count, 1))
    known = int(rare[0]) if len(rare) else len(words.spellings) - len(SPECIALS)
    return Vocabulary(word.decode() for word in words.spellings[: min(size, len(SPECIALS) + known)])


def given_vocabulary(path: Path) -> Vocabulary:
    """A vocabulary file to predict the words of; it needs the three specials."""
    vocabulary = read_vocabulary(path)
    missing = [word for word in SPECIALS if word not in vocabulary]
    if missing:
        raise InputError(
            f"{path}: the vocabulary has no {' and no '.join(missing)}",
            hint="add a line for each; training marks where sentences start and end, and words that are not listed",
        )
    if vocabulary.repeated:
        raise InputError(f"{path}: {vocabulary.repeated:,} words stand there twice")
    return vocabulary


def vocabulary_ids(words: Words, vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """The id in the vocabulary of every word."""
    return np.array(vocabulary.ids([word.decode() for word in words.spellings]), dtype=np.uint32)


def frequency_order(words: Words, targets: NDArray[np.uint32], unknown: int) -> float:
    """How well the vocabulary's ids follow the training text's frequencies: 1 exactly, about 0 in any other order, as the alphabet's.

    Compared is the mean logarithm of a token's id, as it is what a log-uniform sampler supposes: with the best order of the same ids (1),
    and with a random one (0). Words that the text does not have do not count.
    """
    seen = (words.counts > 0) & (targets != unknown)
    counts, ids = words.counts[seen].astype(np.float64), np.log2(targets[seen] + 1.0)
    if not len(ids):
        return 1.0
    mine = (counts * ids).sum() / counts.sum()
    best = (np.sort(counts)[::-1] * np.sort(ids)).sum() / counts.sum()
    chance = ids.mean()
    return float((chance - mine) / (chance - best)) if chance > best else 1.0


def write_words(folder: Path, words: Words, vocabulary: Vocabulary, targets: NDArray[np.uint32]) -> None:
    """The files of a corpus that say what its words are."""
    ends = np.cumsum(np.fromiter(map(len, words.spellings), dtype=np.uint64, count=len(words.spellings)))
    with written_aside(folder / "words.utf8") as aside:
        aside.write_bytes(b"".join(words.spellings))
    save(folder / "words.ends.npy", ends.astype(np.uint64))
    save(folder / "words.counts.npy", words.counts)
    save(folder / "targets.npy", targets)
    with written_aside(folder / "vocab.txt") as aside:
        write_vocabulary(aside, vocabulary)
