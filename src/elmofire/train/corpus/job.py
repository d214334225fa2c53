"""The steps from text to a corpus, each out of what the ones before it have left in the folder of parts."""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import elmofire
from elmofire.errors import DataError
from elmofire.formats.files import written_aside
from elmofire.text.sentences import VERSION
from elmofire.text.tokenizers import Tokenizer
from elmofire.text.vocabulary import UNKNOWN, Vocabulary
from elmofire.train.corpus import blocks as blocks_module
from elmofire.train.corpus.blocks import Block, Position, cut_blocks, write_block
from elmofire.train.corpus.overlaps import read_evaluation
from elmofire.train.corpus.reader import FORMAT
from elmofire.train.corpus.report import (
    LONG,
    long_sentences,
    order_note,
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
from elmofire.train.corpus.settings import CorpusSettings
from elmofire.train.corpus.shards import (
    ShardCounts,
    block_file,
    plan_shards,
    save,
    selected_file,
    words_file,
    write_shard,
)
from elmofire.train.corpus.sources import Source, find_sources, no_sentence, refuse_unreadable
from elmofire.train.corpus.words import Counter, Words, most_frequent, vocabulary_ids, write_words
from elmofire.train.processes import Processes


class Job:
    """One corpus in the making; `run` takes the steps in order."""

    def __init__(
        self,
        output: Path,
        settings: CorpusSettings,
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
        self._checked: list[dict[str, Any]] = []  # what each evaluation file holds
        self.parts = Path(f"{output}.parts")
        self.blocks_folder, self.corpus_folder = self.parts / "blocks", self.parts / "corpus"

    def run(self, processes: Processes, described: dict[str, Any], progress: Callable[[int, int], None]) -> None:
        self._start()
        check = self._check() if self.evaluation else None  # before the long part, should its files be bad
        refuse_unreadable(self.sources, self.names, documents=self.settings.documents, titles=self.titles)
        blocks = self._tokenize(processes, progress)
        if not blocks:
            raise no_sentence(self.sources)
        if self.settings.splits_sentences:
            self._refuse_endless_line(blocks)
        self.note("choosing sentences")
        selected, duplicates = self._select(processes, blocks, check)
        if not sum(block.sentences[0] for block in selected):
            raise DataError("no sentence is left to train on", hint="all are held out, repeated or overlaps")
        self.note("sorting words")
        words, vocabulary, targets = self._count(blocks)
        unknown = vocabulary.id(UNKNOWN[0])
        about_words = words_table(words, targets, unknown)
        if told := order_note(about_words, self.settings.vocabulary):
            warnings.warn(told, stacklevel=2)
        self.note("writing shards")
        splits = self._write(processes, selected, unknown)
        paths = [source.path for source in self.sources]
        found = [overlap for block in selected for overlap in block.overlaps]
        overlaps = write_overlaps(self.corpus_folder, found, paths, self._checked)
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

    def _tokenize(self, processes: Processes, progress: Callable[[int, int], None]) -> list[Block]:
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
        for sentences, tokens in processes.map(write, calls):
            blocks.append(Block(block_file(self.blocks_folder, len(blocks))))
            progress(sentences, tokens)
        return blocks

    def _select(
        self, processes: Processes, blocks: list[Block], check: Check | None
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
            repeated, duplicates = mark_repeated_sentences(blocks, splits)

        def calls() -> Iterator[tuple[Any, ...]]:
            sentence = 0
            for number, block in enumerate(blocks):
                rows, sentences = len(block.array("sources")), len(block.array("lengths"))
                marks = None if repeated is None else np.array(repeated[sentence : sentence + sentences])
                sentence += sentences
                mine = splits[block.first_document : block.first_document + rows]
                yield block, selected_file(self.blocks_folder, number), mine, marks, len(self.names) + 1, check

        return list(processes.map(select_sentences, calls())), duplicates

    def _refuse_endless_line(self, blocks: list[Block]) -> None:
        """Where one sentence is most of the text, sentences were not found, and a model could learn nothing of how they start and end."""
        trained_on = np.array([not source.split for source in self.sources])
        sources = [block.array("sources")[block.array("documents")] for block in blocks]  # of each sentence
        lengths = [block.array("lengths") * trained_on[of] for block, of in zip(blocks, sources, strict=True)]
        most = max(LONG, sum(int(some.sum()) for some in lengths) // 2)
        for block, of, some in zip(blocks, sources, lengths, strict=True):
            for place in np.flatnonzero(some > most):
                raise DataError(
                    f"{self.sources[of[place]].path}:{block.array('numbers')[place]}: a sentence of {some[place]:,} words, more than half "
                    "of the training text",
                    hint="sentences end with a stop or a line: was the text one line, or do its lines end in something other than \\n?",
                )

    def _check(self) -> Check:
        files = self.evaluation
        text = read_evaluation(files, self.settings.ngram, self.tokenizer, split=self.settings.splits_sentences)
        self._checked = [
            {
                "file": file,
                "ngrams": int((text.files == number).sum()),
                "lines": text.lines[number],
                "short": text.short[number],
            }
            for number, file in enumerate(files)
        ]
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

    def _write(self, processes: Processes, selected: list[Selected], unknown: int) -> dict[str, list[ShardCounts]]:
        names = ["train", *self.names]
        plans = [plan for split, name in enumerate(names) for plan in plan_shards(split, name, selected)]
        calls = ((plan, self.blocks_folder, self.corpus_folder, unknown) for plan in plans)
        splits: dict[str, list[ShardCounts]] = {name: [] for name in names}
        for plan, counts in zip(plans, processes.map(write_shard, calls), strict=True):
            splits[names[plan.split]].append(counts)
        return splits

    def _finish(self, table: dict[str, Any]) -> None:
        """Checksums of all files, then the rename that makes it a corpus.

        What is edited before is seen here; what is edited after is newer than the table.
        """
        write_table(self.corpus_folder, table)
        if self._manifest() != (self.parts / "manifest.json").read_text():
            raise DataError("a file has changed while it was read", hint="the same command again reads everything anew")
        if self.output.exists():
            self.output.rmdir()  # it was empty
        self.corpus_folder.rename(self.output)
        (self.parts / "manifest.json").unlink()  # first, or a run killed in the middle would leave a job with holes
        shutil.rmtree(self.parts)
