"""Which sentences stay, and where they go: held-out documents by a hash of their text, and each duplicate once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.spill import allocate
from elmofire.errors import DataError
from elmofire.formats.files import written_aside
from elmofire.train.corpus.blocks import Block
from elmofire.train.corpus.overlaps import EvaluationText, find_overlaps, word_hashes

TRAIN, DROPPED = 0, 255  # held-out splits are 1, 2, ...
_HASHES_AT_ONCE = 1 << 23  # 300 MB while they are sorted
_SHARE = 2.0**-64


class TooFewDocuments(DataError):
    """The text has too few documents for the share or number that should be held out."""


def document_splits(
    blocks: Sequence[Block], source_splits: Sequence[int], held_out: float | int, held_out_split: int, *, unique: bool
) -> NDArray[np.uint8]:
    """The split of each document, by its number: that of its source, else `held_out_split` by the hash of its text, else training.

    `held_out` is a share of the documents, or as an int how many; the order of files and documents has no influence. With `unique`,
    training documents with the text of an earlier one, or of a held-out one, are dropped.
    """
    total = max((block.end.documents for block in blocks), default=0)
    digests = np.zeros((total, 2), dtype=np.uint64)
    splits = np.zeros(total, dtype=np.uint8)
    of_source = np.array(source_splits, np.uint8)
    for block in blocks:
        found = block.array("digests")  # a later block knows more of a document that goes on in it
        rows = slice(block.first_document, block.first_document + len(found))
        digests[rows] = found
        splits[rows] = of_source[block.array("sources")]
    given = splits == TRAIN
    if held_out:
        first = digests[given, 0]
        if isinstance(held_out, int):
            if held_out >= len(first):
                raise TooFewDocuments(
                    f"{held_out:,} documents should be held out, but there are only {len(first):,}", hint=_HINT
                )
            limit = np.partition(first, held_out - 1)[held_out - 1]
            chosen = first <= limit
        else:
            chosen = first.astype(np.float64) * _SHARE < held_out
        if not chosen.any() or chosen.all():
            raise TooFewDocuments(
                f"of {len(first):,} document{'' if len(first) == 1 else 's'}, "
                f"{'none' if not chosen.any() else 'all'} would be held out",
                hint=_HINT,
            )
        splits[np.flatnonzero(given)[chosen]] = held_out_split
    if unique:
        splits[_repeated(digests, splits != TRAIN)] = DROPPED
    return splits


_HINT = (
    'documents="files", "records" or "blocks" (--documents) says what a document is; held_out=1 (--held-out 1) holds out one; '
    "held_out_texts={NAME: [FILE]} (--held-out-text NAME=FILE) is text of its own"
)


def _repeated(hashes: NDArray[np.uint64], held_out: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The places of what stands earlier too, or is held out; what is held out itself stays."""
    order = np.lexsort((np.arange(len(hashes)), ~held_out, hashes[:, 1], hashes[:, 0]))
    ordered = hashes[order]
    same = np.zeros(len(order), dtype=bool)
    same[1:] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return order[same & ~held_out[order]]


def mark_repeated_sentences(blocks: Sequence[Block], splits: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], int]:
    """For each sentence of the corpus, whether it is to be dropped as a repeated one, and how many are.

    The hashes are sorted part by part, by their first bits, so that memory does not grow with the corpus.
    """
    lengths = [len(block.array("lengths")) for block in blocks]
    starts = np.cumsum([0, *lengths])
    marks = allocate((int(starts[-1]),), np.bool_)
    marks[:] = False
    parts = 1
    while starts[-1] > parts * _HASHES_AT_ONCE:
        parts *= 2
    count = 0
    for part in range(parts):
        gathered: list[NDArray[np.uint64]] = []
        places: list[NDArray[np.int64]] = []
        held_out: list[NDArray[np.bool_]] = []
        for block, start in zip(blocks, starts, strict=False):
            hashes = block.array("hashes")
            split = splits[block.first_document + block.array("documents")]
            mine = (split != DROPPED) & (hashes[:, 0] % np.uint64(parts) == part)
            gathered.append(hashes[mine])
            places.append(start + np.flatnonzero(mine))
            held_out.append(split[mine] != TRAIN)
        if gathered:
            repeated = _repeated(np.concatenate(gathered), np.concatenate(held_out))
            marks[np.concatenate(places)[repeated]] = True
            count += len(repeated)
    return marks, count


# ── block by block ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Overlap:
    """A training sentence with evaluation text in it."""

    source: int
    line: int
    file: int  # of the evaluation files
    sentence: int  # of that file, from 1
    words: str


@dataclass(frozen=True)
class Selected:
    """What a block gives to each split: sentences, tokens, and the numbers of its first and last documents there (-1: none)."""

    sentences: list[int]
    tokens: list[int]
    last_documents: list[int]
    overlaps: list[Overlap]


@dataclass(frozen=True)
class Check:
    """Evaluation text, saved as arrays, to look for; `drop` what has it."""

    path: Path
    n: int
    drop: bool


@cache
def _evaluation(check: Check) -> EvaluationText:
    with np.load(check.path) as arrays:
        return EvaluationText(check.n, arrays["hashes"], arrays["files"], arrays["sentences"])


def select_sentences(
    block: Block,
    output: Path,
    document_splits: NDArray[np.uint8],
    repeated: NDArray[np.bool_] | None,
    splits: int,
    check: Check | None,
) -> Selected:
    """Write each sentence's split, and the counts of the block's words in the training text and everywhere.

    `document_splits` and `repeated` are those of this block's documents and sentences.
    """
    ids, lengths, documents = block.array("ids"), block.array("lengths"), block.array("documents")
    chosen = document_splits[documents]
    if repeated is not None:
        chosen[repeated] = DROPPED
    overlaps = _overlaps(block, ids, lengths, chosen, check) if check else []
    words = int(ids.max()) + 1
    of_token = np.repeat(chosen, lengths)
    train = np.bincount(ids[of_token == TRAIN], minlength=words).astype(np.uint64)
    everywhere = np.bincount(ids[of_token != DROPPED], minlength=words).astype(np.uint64)
    with written_aside(output) as aside, aside.open("wb") as file:
        np.savez(file, allow_pickle=False, splits=chosen, train=train, everywhere=everywhere)
    where = [np.flatnonzero(chosen == split) for split in range(splits)]
    return Selected(
        [len(rows) for rows in where],
        [int(lengths[rows].sum()) for rows in where],
        [block.first_document + int(documents[rows[-1]]) if len(rows) else -1 for rows in where],
        overlaps,
    )


def _overlaps(block: Block, ids: NDArray, lengths: NDArray, chosen: NDArray[np.uint8], check: Check) -> list[Overlap]:
    """The first overlap of each training sentence that has one, or a part of one; dropped, if they are to be."""
    text = _evaluation(check)
    words = [word.decode() for word in block.words]
    hashes = word_hashes(words)
    sources, documents, numbers = block.array("sources"), block.array("documents"), block.array("numbers")
    ends = np.cumsum(lengths, dtype=np.int64)
    last_of_line = np.append((numbers[1:] != numbers[:-1]) | (documents[1:] != documents[:-1]), True)
    starts, lasts, which = find_overlaps(text, ids, np.diff(ends[last_of_line], prepend=0), hashes)
    first = np.searchsorted(ends, starts, side="right")
    touched = np.searchsorted(ends, lasts, side="right") - first + 1
    runs = np.repeat(np.arange(len(first)), touched)
    sentences = first[runs] + np.arange(len(runs)) - np.repeat(np.cumsum(touched) - touched, touched)
    sentences, rows = np.unique(sentences, return_index=True)
    in_train = chosen[sentences] == TRAIN
    sentences, runs = sentences[in_train], runs[rows[in_train]]
    if check.drop:
        chosen[sentences] = DROPPED
    found: list[Overlap] = []
    for sentence, place, last, gram in zip(sentences, starts[runs], lasts[runs], which[runs], strict=True):
        run = ids[place : last + 1]
        run = run[hashes[run] != 0]
        found.append(
            Overlap(
                int(sources[documents[sentence]]),
                int(numbers[sentence]),
                int(text.files[gram]),
                int(text.sentences[gram]),
                " ".join(words[token] for token in run),
            )
        )
    return found
