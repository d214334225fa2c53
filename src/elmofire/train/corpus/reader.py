"""A prepared corpus, opened: nothing is read before it is asked for, everything lies in mapped files."""

import os
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elmofire.errors import DataError, ModelError
from elmofire.formats.files import read_json_object
from elmofire.formats.weights import as_folder
from elmofire.text.characters import END, START, boundary_ids, spelled_ids
from elmofire.text.tokenizers import TokenizerInfo
from elmofire.text.vocabulary import Vocabulary, read_vocabulary
from elmofire.train.corpus.shards import parts_of

FORMAT = 1
_MOST_JSON = 2 << 30  # bytes: it lists every source, of which there may be a million
CORPUS_FILE, OVERLAPS_FILE = "corpus.json", "overlaps.jsonl"


class Split:
    """The sentences of one part of a corpus, numbered in the text's order; words are ids into the corpus's table."""

    def __init__(self, folder: Path, name: str, table: dict[str, Any]) -> None:
        self.name = name
        self.sentences: int = table["sentences"]
        self.tokens: int = table["tokens"]
        self.documents: int = table["documents"]
        self.shards: list[str] = [shard["name"] for shard in table["shards"]]
        self._folder = folder
        self._starts = np.cumsum([0, *(shard["sentences"] for shard in table["shards"])])

    def __len__(self) -> int:
        return self.sentences

    @cached_property
    def _maps(self) -> list[tuple[NDArray[np.uint32], NDArray[np.uint32]]]:
        files = [parts_of(self._folder, name) for name in self.shards]
        return [(_mapped(ids), _mapped(ends)) for ids, ends, _ in files]

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        """How many words each sentence has."""
        return np.concatenate(
            [np.zeros(0, np.uint32), *(np.diff(ends, prepend=np.uint32(0)) for _, ends in self._maps)]
        )

    @cached_property
    def document_starts(self) -> NDArray[np.int64]:
        """The sentences with which documents start."""
        files = [parts_of(self._folder, name)[2] for name in self.shards]
        return np.concatenate(
            [np.zeros(0, np.int64), *(start + _mapped(file) for start, file in zip(self._starts, files, strict=False))]
        )

    def sentence(self, number: int) -> NDArray[np.uint32]:
        """The word ids of one sentence: a view of the file, without boundaries."""
        if not 0 <= number < self.sentences:
            raise IndexError(f"{self.name} has {self.sentences:,} sentences, no number {number}")
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        ids, ends = self._maps[shard]
        place = number - self._starts[shard]
        return ids[int(ends[place - 1]) if place else 0 : int(ends[place])]

    def gather(self, numbers: ArrayLike) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The word ids of many sentences, one after the other in the order given, and their lengths."""
        wanted = np.asarray(numbers, dtype=np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < self.sentences):
            raise IndexError(f"{self.name} has {self.sentences:,} sentences, numbered from 0")
        shards = np.searchsorted(self._starts, wanted, side="right") - 1
        first, lengths = np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.int64)
        used = np.unique(shards)
        for shard in used:
            ends = self._maps[shard][1]
            mine = shards == shard
            place = wanted[mine] - self._starts[shard]
            first[mine] = np.where(place > 0, ends[np.maximum(place - 1, 0)], 0)
            lengths[mine] = ends[place] - first[mine]
        starts = np.cumsum(lengths) - lengths
        sources = np.repeat(first - starts, lengths) + np.arange(int(lengths.sum()))
        if len(used) == 1:
            return self._maps[used[0]][0][sources], lengths
        ids = np.zeros(len(sources), dtype=np.uint32)
        of_word = np.repeat(shards, lengths)
        for shard in used:
            mine = of_word == shard
            ids[mine] = self._maps[shard][0][sources[mine]]
        return ids, lengths


class Corpus:
    """A folder that `elmofire prepare` has made; opened with `Corpus.open`.

    Words are numbered by falling frequency in the training text after `<S>`, `</S>` and `<UNK>` (0, 1, 2), all of them, so that each is
    read as it is spelled. What the model predicts are `targets`: ids of `vocabulary`.
    """

    def __init__(self, folder: Path, table: dict[str, Any]) -> None:
        self.folder = folder
        self.table = table
        self.tokenizer = TokenizerInfo(**table["tokenizer"])
        splits = {name: Split(folder, name, split) for name, split in table["splits"].items()}
        self.train = splits.pop("train")
        self.heldout = splits
        self.words: int = table["words"]
        self._targets = _mapped(folder / "targets.npy")
        self._utf8 = np.memmap(folder / "words.utf8", dtype=np.uint8, mode="r")
        self._ends = _mapped(folder / "words.ends.npy")
        self.counts: NDArray[np.uint64] = _mapped(folder / "words.counts.npy")

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Corpus":
        """Open a prepared corpus; its files must all be there, with the sizes they should have."""
        folder = as_folder(folder)
        if not (folder / CORPUS_FILE).is_file():
            raise DataError(
                f"{folder}: is no prepared corpus: it has no {CORPUS_FILE}",
                hint="elmofire.prepare (elmofire prepare TEXT... --output CORPUS) makes one; an archive is unpacked first",
            )
        try:
            table = read_json_object(folder / CORPUS_FILE, _MOST_JSON)
        except ModelError as error:
            raise DataError(str(error)) from None
        if table.get("format") != FORMAT:
            raise DataError(
                f"{folder}: a corpus of format {table.get('format')!r}; this elmofire reads {FORMAT}",
                hint="prepare it again",
            )
        try:
            wrong = [
                name
                for name, file in table["files"].items()
                if not (folder / name).is_file() or (folder / name).stat().st_size != file["bytes"]
            ]
            if wrong:
                raise DataError(f"{folder}: missing or of a wrong size: {', '.join(wrong)}", hint="prepare it again")
            return cls(folder, table)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{folder / CORPUS_FILE}: is not as it was written: {error!r}", hint="prepare it again"
            ) from None

    def verify(self) -> None:
        """Read every file and compare its checksum."""
        wrong = [
            name for name, file in self.table["files"].items() if digest(self.folder / name) != file.get("blake2b")
        ]
        if wrong:
            raise DataError(f"{self.folder}: damaged: {', '.join(wrong)}", hint="prepare it again")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words that the head predicts."""
        return read_vocabulary(self.folder / "vocab.txt")

    def targets(self, word_ids: ArrayLike) -> NDArray[np.uint32]:
        """The vocabulary's ids of words; that of `<UNK>` for those it does not list."""
        return self._targets[np.asarray(word_ids)]

    def spellings(self, word_ids: Sequence[int] | NDArray) -> list[str]:
        """The words themselves."""
        numbers = np.asarray(word_ids, dtype=np.int64)
        starts, ends = self._places(numbers)
        return [self._utf8[start:end].tobytes().decode() for start, end in zip(starts, ends, strict=True)]

    def character_ids(self, word_ids: Sequence[int] | NDArray, max_characters: int = 50) -> NDArray[np.int32]:
        """Rows of character ids, as `text.characters.character_ids` makes them of the spellings.

        Of all words (`np.arange(corpus.words)`) it is a table that a trainer can index: 100 bytes a word as int16.
        """
        numbers = np.asarray(word_ids, dtype=np.int64)
        starts, ends = self._places(numbers)
        lengths = np.minimum(ends - starts, max_characters - 2)
        before = np.cumsum(lengths) - lengths
        ids = spelled_ids(
            self._utf8[np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))], lengths, max_characters
        )
        for number, boundary in enumerate((START, END)):
            ids[numbers == number] = boundary_ids(boundary, max_characters)
        return ids

    def _places(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ends = self._ends[numbers].astype(np.int64)
        starts = np.where(numbers > 0, self._ends[np.maximum(numbers - 1, 0)].astype(np.int64), 0)
        return starts, ends


def digest(path: Path) -> str:
    """The checksum of a file."""
    found = blake2b(digest_size=32)
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            found.update(data)
    return found.hexdigest()


def _mapped(path: Path) -> NDArray:
    # An empty array cannot be mapped.
    return np.load(path, mmap_mode="r" if path.stat().st_size > 128 else None, allow_pickle=False)
