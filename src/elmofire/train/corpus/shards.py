"""Selected sentences become shards: arrays of word ids that training maps into memory.

SPLIT-00000.ids.npy        uint32, the words of all its sentences, without boundaries
SPLIT-00000.ends.npy       uint32, where in those each sentence ends
SPLIT-00000.documents.npy  uint32, the sentences with which documents start; before the first, the last shard's document goes on
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmofire.formats.files import written_aside
from elmofire.train.corpus.blocks import Block
from elmofire.train.corpus.selection import Selected

SHARD_TOKENS = 1 << 23  # 32 MB, and as much again a few times while it is made


@dataclass(frozen=True)
class ShardPlan:
    """Blocks whose sentences of one split make a shard; `previous` is the document of the sentence before."""

    name: str
    split: int
    blocks: tuple[int, ...]
    previous: int


@dataclass(frozen=True)
class ShardCounts:
    """What is in a shard; `lengths` are pairs of a sentence's length and how many have it."""

    name: str
    sentences: int
    tokens: int
    documents: int
    unknown: int
    lengths: list[tuple[int, int]]


def plan_shards(split: int, name: str, selected: Sequence[Selected]) -> Iterator[ShardPlan]:
    """Shards in the text's order, each of so many whole blocks that it has enough tokens."""
    blocks: list[int] = []
    tokens = shards = 0
    previous = before = -1
    for number, block in enumerate(selected):
        if not block.sentences[split]:
            continue
        blocks.append(number)
        tokens += block.tokens[split]
        before = block.last_documents[split]
        if tokens >= SHARD_TOKENS:
            yield ShardPlan(f"{name}-{shards:05}", split, tuple(blocks), previous)
            blocks, tokens, shards, previous = [], 0, shards + 1, before
    if blocks:
        yield ShardPlan(f"{name}-{shards:05}", split, tuple(blocks), previous)


def parts_of(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """The three files of a shard."""
    ids, ends, documents = (folder / f"{name}.{part}.npy" for part in ("ids", "ends", "documents"))
    return ids, ends, documents


def write_shard(plan: ShardPlan, blocks: Path, folder: Path, unknown: int) -> ShardCounts:
    """One shard out of its blocks; a file that a killed run has left is not written again."""
    ids_file, ends_file, documents_file = parts_of(folder, plan.name)
    targets = np.load(folder / "targets.npy", mmap_mode="r")
    if not all(file.exists() for file in (ids_file, ends_file, documents_file)):
        final = np.load(blocks / "final.npy", mmap_mode="r")
        ids: list[NDArray] = []
        lengths: list[NDArray] = []
        documents: list[NDArray] = []
        for number in plan.blocks:
            block = Block(block_file(blocks, number))
            with np.load(selected_file(blocks, number)) as arrays:
                mine = arrays["splits"] == plan.split
            sizes = block.array("lengths")
            words = final[np.load(words_file(blocks, number))]
            ids.append(words[block.array("ids")[np.repeat(mine, sizes)]])
            lengths.append(sizes[mine])
            documents.append(block.first_document + block.array("documents")[mine].astype(np.int64))
        of_sentence = np.concatenate(documents)
        starts = np.flatnonzero(np.diff(of_sentence, prepend=plan.previous))
        save(documents_file, starts.astype(np.uint32))
        save(ends_file, np.cumsum(np.concatenate(lengths)).astype(np.uint32))
        save(ids_file, np.concatenate(ids).astype(np.uint32))
    written, ends = np.load(ids_file, mmap_mode="r"), np.load(ends_file)
    found, counts = np.unique(np.diff(ends, prepend=np.uint32(0)), return_counts=True)
    return ShardCounts(
        plan.name,
        len(ends),
        len(written),
        len(np.load(documents_file)),
        int((targets[written] == unknown).sum()),
        list(zip(found.tolist(), counts.tolist(), strict=True)),
    )


def block_file(folder: Path, number: int) -> Path:
    return folder / f"{number:06}.npz"


def selected_file(folder: Path, number: int) -> Path:
    return folder / f"{number:06}.selected.npz"


def words_file(folder: Path, number: int) -> Path:
    return folder / f"{number:06}.words.npy"


def save(path: Path, array: NDArray) -> None:
    """An array in a file, whole or not at all."""
    with written_aside(path) as aside, aside.open("wb") as file:
        np.save(file, array, allow_pickle=False)
