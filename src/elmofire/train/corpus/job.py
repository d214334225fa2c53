"""The steps from text to a corpus, each out of what the ones before it have left in the folder of parts."""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import elmofire
from elmofire.errors import DataError, InputError
from elmofire.formats.files import written_aside
from elmofire.text.sentences import VERSION
from elmofire.text.tokenizers import Tokenizer, TokenizerInfo, load_tokenizer, tokenizer_for
from elmofire.text.vocabulary import UNKNOWN, Vocabulary
from elmofire.train.corpus import blocks as blocks_module
from elmofire.train.corpus.blocks import Block, Position, cut_blocks, write_block
from elmofire.train.corpus.overlaps import read_evaluation
from elmofire.train.corpus.reader import CORPUS_FILE, FORMAT, digest
from elmofire.train.corpus.report import long_sentences, split_table, words_table
from elmofire.train.corpus.selection import (
    DROPPED,
    TRAIN,
    Check,
    Selected,
    document_splits,
    mark_repeated_sentences,
    select_sentences,
)
from elmofire.train.corpus.shards import (
    ShardCounts,
    block_file,
    plan_shards,
    save,
    selected_file,
    words_file,
    write_shard,
)
from elmofire.train.corpus.sources import DOCUMENTS, Source, find_sources
from elmofire.train.corpus.words import SPECIALS, Counter, Words, most_frequent, vocabulary_ids, write_words
from elmofire.train.processes import Processes

OVERLAPS_FILE = "overlaps.jsonl"
_SORTED = 0.5  # a vocabulary by frequency of other text has more, one in another order less
_ENOUGH_WORDS = 50  # to tell


@dataclass(frozen=True)
class Settings:
    """How a corpus is made. `vocabulary` is a number of words, specials included, or the path of a vocab.txt."""

    language: str = "en"
    pretokenized: bool = False
    sentences: str = "split"  # or "lines": each is one already, as it is with pretokenized text
    documents: str = "auto"  # files, records or blocks
    titles: str = ""  # lines in which this pattern is found are left out
    held_out: float | int = 0  # a share of the documents below 1, or how many
    held_out_name: str = "heldout"
    vocabulary: int | str = 100_000
    min_count: int = 1
    unique: str = ""  # sentences or documents
    check_against: tuple[str, ...] = ()
    ngram: int = 13
    drop_overlaps: bool = False

    def check(self) -> None:
        if self.documents not in DOCUMENTS:
            raise InputError(f"documents are {self.documents!r}, but should be {', '.join(DOCUMENTS)}")
        if self.sentences not in ("split", "lines"):
            raise InputError(f"sentences are {self.sentences!r}, but should be split or lines")
        if self.unique not in ("", "sentences", "documents"):
            raise InputError(f"unique is {self.unique!r}, but should be sentences or documents")
        if self.held_out < 0 or (isinstance(self.held_out, float) and self.held_out >= 1):
            raise InputError(f"held_out is {self.held_out}, but should be a share below 1 or a number of documents")
        if isinstance(self.vocabulary, int) and self.vocabulary <= len(SPECIALS):
            raise InputError(f"a vocabulary of {self.vocabulary} words has no room beside {', '.join(SPECIALS)}")
        if self.ngram < 1:
            raise InputError(f"n-grams of {self.ngram} words do not exist")
        try:
            re.compile(self.titles)
        except re.error as error:
            raise InputError(f"titles: {self.titles!r} is no regular expression: {error}") from None

    @property
    def splits_sentences(self) -> bool:
        return self.sentences == "split" and not self.pretokenized

    def tokenizer(self) -> Tokenizer:
        if self.pretokenized:
            return load_tokenizer(TokenizerInfo("whitespace", self.language, 1))
        return tokenizer_for(self.language)


class Job:
    """One corpus in the making; `run` takes the steps in order."""

    def __init__(
        self,
        output: Path,
        settings: Settings,
        tokenizer: Tokenizer,
        sources: list[Source],
        names: list[str],
        vocabulary: Vocabulary | None,
        note: Callable[[str], None],
    ) -> None:
        self.output, self.settings, self.tokenizer = output, settings, tokenizer
        self.sources, self.names, self.vocabulary, self.note = sources, names, vocabulary, note
        self.evaluation = list(dict.fromkeys(source.path for source in find_sources(settings.check_against)))
        self.parts = Path(f"{output}.parts")
        self.blocks_folder, self.corpus_folder = self.parts / "blocks", self.parts / "corpus"

    def run(self, workers: Processes, described: dict[str, Any], progress: Callable[[int, int], None]) -> None:
        self._start()
        check = self._check() if self.evaluation else None  # before the long part, should its files be bad
        blocks = self._tokenize(workers, progress)
        if not blocks:
            raise DataError(f"no sentence in {self._first_sources()}", hint="it takes lines of text in utf-8")
        self.note("choosing sentences")
        selected, duplicates = self._select(workers, blocks, check)
        if not sum(block.sentences[0] for block in selected):
            raise DataError("no sentence is left to train on", hint="all are held out, repeated or overlaps")
        self.note("sorting words")
        words, vocabulary, targets = self._count(blocks)
        unknown = vocabulary.id(UNKNOWN[0])
        about_words = words_table(words, targets, unknown)
        if about_words["vocabulary_order"] < _SORTED and about_words["vocabulary_seen"] >= _ENOUGH_WORDS:
            self._warn_of_order(about_words["vocabulary_order"])
        self.note("writing shards")
        splits = self._write(workers, selected, unknown)
        overlaps = self._write_overlaps(selected)
        long = long_sentences(blocks, [source.path for source in self.sources])
        table = {
            "format": FORMAT,
            "elmofire": elmofire.__version__,
            "tokenizer": asdict(self.tokenizer.info),
            "sentences": {"rules": VERSION if self.settings.splits_sentences else None},
            "vocabulary": len(vocabulary),
            "words": len(words.spellings),
            "splits": {name: split_table(shards) for name, shards in splits.items()},
            "report": {
                "words": about_words,
                "duplicates": duplicates,
                "overlaps": overlaps,
                **({"long_sentences": long} if long else {}),
            },
            **described,
        }
        self._finish(table)

    def _warn_of_order(self, order: float) -> None:
        what = f"{self.settings.vocabulary}: the words do not stand by falling frequency in this text"
        warnings.warn(
            f"{what} ({order:.2f}, where 1 is that order and 0 is any): with a sampled softmax the negatives would be the wrong ones; "
            "train with the full softmax, or give a number and have the vocabulary made",
            stacklevel=2,
        )

    def _first_sources(self) -> str:
        return ", ".join(source.path for source in self.sources[:3]) + (", ..." if len(self.sources) > 3 else "")

    def _start(self) -> None:
        stamps = [source.stamp() for source in self.sources]
        files = [*self.evaluation, *([self.settings.vocabulary] if isinstance(self.settings.vocabulary, str) else [])]
        stamps += [source.stamp() for source in find_sources(files)]
        manifest = [FORMAT, elmofire.__version__, blocks_module.BLOCK_BYTES, asdict(self.settings), stamps]
        listed = json.dumps([*manifest, asdict(self.tokenizer.info), VERSION], sort_keys=True)
        file = self.parts / "manifest.json"
        if not file.is_file() or file.read_text() != listed:
            shutil.rmtree(self.parts, ignore_errors=True)
        self.blocks_folder.mkdir(parents=True, exist_ok=True)
        self.corpus_folder.mkdir(exist_ok=True)
        for left in [*self.blocks_folder.glob(".*"), *self.corpus_folder.glob(".*")]:
            left.unlink()  # half a file, of a run that was killed
        with written_aside(file) as aside:
            aside.write_text(listed)

    def _tokenize(self, workers: Processes, progress: Callable[[int, int], None]) -> list[Block]:
        blocks: list[Block] = []
        while block_file(self.blocks_folder, len(blocks)).is_file():
            blocks.append(Block(block_file(self.blocks_folder, len(blocks))))
            progress(len(blocks[-1].array("lengths")), 0)
        start = blocks[-1].end if blocks else Position()
        paths = [source.path for source in self.sources]
        titles = re.compile(self.settings.titles) if self.settings.titles else None
        raw = cut_blocks(self.sources, start, documents=self.settings.documents, titles=titles)
        files = (block_file(self.blocks_folder, number) for number in range(len(blocks), 10**9))
        settings = self.settings
        write = partial(write_block, split=settings.splits_sentences, with_hashes=settings.unique == "sentences")
        calls = ((file, block, paths, self.tokenizer.info) for block, file in zip(raw, files, strict=False))
        for sentences, tokens in workers.map(write, calls):
            blocks.append(Block(block_file(self.blocks_folder, len(blocks))))
            progress(sentences, tokens)
        return blocks

    def _select(
        self, workers: Processes, blocks: list[Block], check: Check | None
    ) -> tuple[list[Selected], int | None]:
        settings = self.settings
        splits = document_splits(
            blocks,
            [self.names.index(source.split) + 1 if source.split else TRAIN for source in self.sources],
            settings.held_out,
            len(self.names),
            unique=settings.unique == "documents",
        )
        duplicates = int((splits == DROPPED).sum()) if settings.unique == "documents" else None
        repeated: NDArray[np.bool_] | None = None
        if settings.unique == "sentences":
            repeated, duplicates = mark_repeated_sentences(blocks, splits, self.blocks_folder)

        def calls() -> Iterator[tuple[Any, ...]]:
            sentence = 0
            for number, block in enumerate(blocks):
                rows, sentences = len(block.array("sources")), len(block.array("lengths"))
                marks = None if repeated is None else np.array(repeated[sentence : sentence + sentences])
                sentence += sentences
                mine = splits[block.first_document : block.first_document + rows]
                yield block, selected_file(self.blocks_folder, number), mine, marks, len(self.names) + 1, check

        return list(workers.map(select_sentences, calls())), duplicates

    def _check(self) -> Check:
        files = self.evaluation
        text = read_evaluation(files, self.settings.ngram, self.tokenizer, split=self.settings.splits_sentences)
        counts = np.bincount(text.files, minlength=len(files)).tolist()
        self._ngrams = dict(zip(files, counts, strict=True))
        path = self.blocks_folder / "evaluation.npz"
        with written_aside(path) as aside, aside.open("wb") as file:
            np.savez(file, hashes=text.hashes, files=text.files, sentences=text.sentences)
        return Check(path, self.settings.ngram, self.settings.drop_overlaps)

    def _count(self, blocks: list[Block]) -> tuple[Words, Vocabulary, NDArray[np.uint32]]:
        counter = Counter()
        for number, block in enumerate(blocks):
            with np.load(selected_file(self.blocks_folder, number)) as arrays:
                numbers = counter.add(block.words, arrays["train"], arrays["everywhere"])
            save(words_file(self.blocks_folder, number), numbers)
        words, final = counter.table()
        save(self.blocks_folder / "final.npy", final)
        size = self.settings.vocabulary
        vocabulary = self.vocabulary or most_frequent(words, int(size), self.settings.min_count)
        targets = vocabulary_ids(words, vocabulary)
        write_words(self.corpus_folder, words, vocabulary, targets)
        return words, vocabulary, targets

    def _write(self, workers: Processes, selected: list[Selected], unknown: int) -> dict[str, list[ShardCounts]]:
        names = ["train", *self.names]
        plans = [plan for split, name in enumerate(names) for plan in plan_shards(split, name, selected)]
        calls = ((plan, self.blocks_folder, self.corpus_folder, unknown) for plan in plans)
        splits: dict[str, list[ShardCounts]] = {name: [] for name in names}
        for plan, counts in zip(plans, workers.map(write_shard, calls), strict=True):
            splits[names[plan.split]].append(counts)
        return splits

    def _write_overlaps(self, selected: list[Selected]) -> list[dict[str, Any]]:
        files = self.evaluation
        if not files:
            return []
        found = [overlap for block in selected for overlap in block.overlaps]
        with written_aside(self.corpus_folder / OVERLAPS_FILE) as aside, aside.open("w", encoding="utf-8") as file:
            for overlap in found:
                places = {"text": self.sources[overlap.source].path, "line": overlap.line}
                places |= {"file": files[overlap.file], "sentence": overlap.sentence, "words": overlap.words}
                file.write(json.dumps(places, ensure_ascii=False) + "\n")
        sentences = [sum(overlap.file == number for overlap in found) for number in range(len(files))]
        return [
            {"file": file, "ngrams": self._ngrams[file], "sentences": count}
            for file, count in zip(files, sentences, strict=True)
        ]

    def _finish(self, table: dict[str, Any]) -> None:
        """Checksums of all files, then the rename that makes it a corpus."""
        write_table(self.corpus_folder, table)
        if self.output.exists():
            self.output.rmdir()  # it was empty
        self.corpus_folder.rename(self.output)
        (self.parts / "manifest.json").unlink()  # first, or a run killed in the middle would leave a job with holes
        shutil.rmtree(self.parts)


def write_table(folder: Path, table: dict[str, Any]) -> None:
    """`corpus.json`, last: with it a folder is a corpus."""
    (folder / CORPUS_FILE).unlink(missing_ok=True)
    files = {file.name: {"bytes": file.stat().st_size, "blake2b": digest(file)} for file in sorted(folder.iterdir())}
    with written_aside(folder / CORPUS_FILE) as aside:
        aside.write_text(json.dumps({**table, "files": files}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
