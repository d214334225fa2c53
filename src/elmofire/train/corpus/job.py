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
from elmofire.train.corpus.reader import FORMAT
from elmofire.train.corpus.report import (
    long_sentences,
    order_note,
    refuse_language_name,
    split_table,
    words_table,
    write_overlaps,
    write_table,
)
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
from elmofire.train.corpus.sources import DOCUMENTS, Source, find_sources, no_sentence, refuse_unreadable
from elmofire.train.corpus.words import SPECIALS, Counter, Words, most_frequent, vocabulary_ids, write_words
from elmofire.train.workers import Workers


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
        if not self.held_out >= 0 or (isinstance(self.held_out, float) and not self.held_out < 1):  # nan is neither
            raise InputError(f"held_out is {self.held_out}, but should be a share below 1 or a number of documents")
        if isinstance(self.vocabulary, int) and self.vocabulary <= len(SPECIALS):
            raise InputError(f"a vocabulary of {self.vocabulary} words has no room beside {', '.join(SPECIALS)}")
        if isinstance(self.vocabulary, str) and self.min_count > 1:
            raise InputError(
                f"min_count is {self.min_count}, but {self.vocabulary} is taken with all its words",
                hint="give a number and have the vocabulary made, or leave min_count out",
            )
        if self.ngram < 1:
            raise InputError(f"n-grams of {self.ngram} words do not exist")
        if not self.check_against and (self.drop_overlaps or self.ngram != Settings.ngram):
            what = "drop_overlaps" if self.drop_overlaps else "ngram"
            raise InputError(f"{what} is given, but no text to look for", hint="check_against names its files")
        try:
            re.compile(self.titles)
        except re.error as error:
            raise InputError(f"titles: {self.titles!r} is no regular expression: {error}") from None

    @property
    def splits_sentences(self) -> bool:
        return self.sentences == "split" and not self.pretokenized

    @property
    def sentence_rules(self) -> int | None:
        """The version of the rules by which sentences are split; None where lines are sentences."""
        return VERSION if self.splits_sentences else None

    def tokenizer(self) -> Tokenizer:
        refuse_language_name(self.language)
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
        self.titles = re.compile(settings.titles) if settings.titles else None
        self.evaluation = list(dict.fromkeys(source.path for source in find_sources(settings.check_against)))
        self._ngrams: dict[str, int] = {}  # of each evaluation file
        self.parts = Path(f"{output}.parts")
        self.blocks_folder, self.corpus_folder = self.parts / "blocks", self.parts / "corpus"

    def run(self, workers: Workers, described: dict[str, Any], progress: Callable[[int, int], None]) -> None:
        self._start()
        check = self._check() if self.evaluation else None  # before the long part, should its files be bad
        refuse_unreadable(self.sources, self.names, documents=self.settings.documents, titles=self.titles)
        blocks = self._tokenize(workers, progress)
        if not blocks:
            raise no_sentence(self.sources)
        self.note("choosing sentences")
        selected, duplicates = self._select(workers, blocks, check)
        if not sum(block.sentences[0] for block in selected):
            raise DataError("no sentence is left to train on", hint="all are held out, repeated or overlaps")
        self.note("sorting words")
        words, vocabulary, targets = self._count(blocks)
        unknown = vocabulary.id(UNKNOWN[0])
        about_words = words_table(words, targets, unknown)
        if told := order_note(about_words, self.settings.vocabulary):
            warnings.warn(told, stacklevel=2)
        self.note("writing shards")
        splits = self._write(workers, selected, unknown)
        paths = [source.path for source in self.sources]
        found = [overlap for block in selected for overlap in block.overlaps]
        overlaps = write_overlaps(self.corpus_folder, found, paths, self._ngrams)
        long = long_sentences(blocks, paths)
        table = {
            "format": FORMAT,
            "elmofire": elmofire.__version__,
            "tokenizer": asdict(self.tokenizer.info),
            "sentences": {"rules": self.settings.sentence_rules},
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

    def _manifest(self) -> str:
        """What this job is, and what its files are now."""
        stamps = [source.stamp() for source in self.sources]
        files = [*self.evaluation, *([self.settings.vocabulary] if isinstance(self.settings.vocabulary, str) else [])]
        stamps += [source.stamp() for source in find_sources(files)]
        manifest = [FORMAT, elmofire.__version__, blocks_module.BLOCK_BYTES, asdict(self.settings), stamps]
        return json.dumps([*manifest, asdict(self.tokenizer.info), VERSION], sort_keys=True)

    def _start(self) -> None:
        listed = self._manifest()
        file = self.parts / "manifest.json"
        if not file.is_file() or file.read_text() != listed:
            shutil.rmtree(self.parts, ignore_errors=True)
        self.blocks_folder.mkdir(parents=True, exist_ok=True)
        self.corpus_folder.mkdir(exist_ok=True)
        for left in [*self.blocks_folder.glob(".*"), *self.corpus_folder.glob(".*")]:
            left.unlink()  # half a file, of a run that was killed
        with written_aside(file) as aside:
            aside.write_text(listed)

    def _tokenize(self, workers: Workers, progress: Callable[[int, int], None]) -> list[Block]:
        blocks: list[Block] = []
        while block_file(self.blocks_folder, len(blocks)).is_file():
            blocks.append(Block(block_file(self.blocks_folder, len(blocks))))
            progress(len(blocks[-1].array("lengths")), 0)
        start = blocks[-1].end if blocks else Position()
        paths = [source.path for source in self.sources]
        raw = cut_blocks(self.sources, start, documents=self.settings.documents, titles=self.titles)
        files = (block_file(self.blocks_folder, number) for number in range(len(blocks), 10**9))
        settings = self.settings
        write = partial(write_block, split=settings.splits_sentences, with_hashes=settings.unique == "sentences")
        calls = ((file, block, paths, self.tokenizer.info) for block, file in zip(raw, files, strict=False))
        for sentences, tokens in workers.map(write, calls):
            blocks.append(Block(block_file(self.blocks_folder, len(blocks))))
            progress(sentences, tokens)
        return blocks

    def _select(self, workers: Workers, blocks: list[Block], check: Check | None) -> tuple[list[Selected], int | None]:
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

    def _write(self, workers: Workers, selected: list[Selected], unknown: int) -> dict[str, list[ShardCounts]]:
        names = ["train", *self.names]
        plans = [plan for split, name in enumerate(names) for plan in plan_shards(split, name, selected)]
        calls = ((plan, self.blocks_folder, self.corpus_folder, unknown) for plan in plans)
        splits: dict[str, list[ShardCounts]] = {name: [] for name in names}
        for plan, counts in zip(plans, workers.map(write_shard, calls), strict=True):
            splits[names[plan.split]].append(counts)
        return splits

    def _finish(self, table: dict[str, Any]) -> None:
        """Checksums of all files, then the rename that makes it a corpus.

        What is edited before is seen here; what is edited after is newer than the table.
        """
        write_table(self.corpus_folder, table)
        if self._manifest() != (self.parts / "manifest.json").read_text():
            raise DataError("a file has changed while it was read", hint="the same line again reads everything anew")
        if self.output.exists():
            self.output.rmdir()  # it was empty
        self.corpus_folder.rename(self.output)
        (self.parts / "manifest.json").unlink()  # first, or a run killed in the middle would leave a job with holes
        shutil.rmtree(self.parts)
