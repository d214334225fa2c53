"""The one pass over the text: lines are cut into blocks of a few megabytes, split into sentences and tokens, each block to a file of its own.

A block's file holds its sentences as ids into a list of its own words. It also says where in the text it ends, so that a run that was
killed goes on after the last whole block, without reading the files before it again.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from re import Pattern

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import InputError
from elmofire.formats.files import written_aside
from elmofire.text.characters import END, START
from elmofire.text.sentences import split_sentences
from elmofire.text.tokenizers import Tokenizer, TokenizerInfo, load_tokenizer
from elmofire.train.corpus.sources import Source, read_source

BLOCK_BYTES = 4 << 20  # about a second's work


@dataclass(frozen=True)
class Position:
    """Where a block ends: so many lines of that source are read; the document that goes on, if any, hashed so far."""

    source: int = 0
    line: int = 0
    documents: int = 0  # begun so far
    digest: str = ""


@dataclass
class RawBlock:
    """Lines as they were read, with their places."""

    first_document: int  # the number of the first line's document
    lines: list[str | list[str]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # each line's
    documents: list[int] = field(default_factory=list)  # each line's document, from 0 in this block
    sources: list[int] = field(default_factory=list)  # each document's source
    digests: list[bytes] = field(default_factory=list)  # each document's, as far as it goes in this block
    end: Position = field(default_factory=Position)


def cut_blocks(
    sources: Sequence[Source],
    start: Position,
    *,
    documents: str,
    titles: Pattern[str] | None,
) -> Iterator[RawBlock]:
    """The text from `start` on; a document may go on in the next block, a line or record may not."""
    begun, digest, size = start.documents, bytes.fromhex(start.digest), 0
    block = _empty(begun)
    for number in range(start.source, len(sources)):
        last = read = start.line if number == start.source else 0
        for line in read_source(sources[number], documents=documents, titles=titles):
            if line.number <= read:
                continue  # by an earlier run
            if size >= BLOCK_BYTES and line.number != last:
                block.end = Position(number, last, begun, digest.hex())
                yield block
                block, size = _empty(begun), 0
            last = line.number
            if line.starts_document:
                begun, digest = begun + 1, b""
            if not block.lines:
                block.first_document = begun - 1
            if block.first_document + len(block.sources) < begun:
                block.sources.append(number)
                block.digests.append(b"")
            text = line.content if isinstance(line.content, str) else " ".join(line.content)
            data = text.encode()
            digest = blake2b(digest + data, digest_size=16).digest()
            block.digests[-1] = digest
            block.lines.append(line.content)
            block.numbers.append(line.number)
            block.documents.append(begun - 1 - block.first_document)
            size += len(data) + 1
    if block.lines:
        block.end = Position(len(sources), 0, begun, digest.hex())
        yield block


def _empty(begun: int) -> RawBlock:
    return RawBlock(first_document=begun)


# ── a block's file ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Block:
    """A block's file, read as its parts are asked for."""

    path: Path

    def array(self, name: str) -> NDArray:
        with np.load(self.path) as arrays:
            return arrays[name]

    @property
    def words(self) -> list[bytes]:
        return self.array("words").tobytes().split(b"\n")

    @property
    def end(self) -> Position:
        return Position(**json.loads(self.array("end").tobytes()))

    @property
    def first_document(self) -> int:
        return int(self.array("first_document"))


@cache
def _tokenizer(info: TokenizerInfo) -> Tokenizer:
    return load_tokenizer(info)


def tokens_of(line: str | list[str], tokenizer: Tokenizer, *, split: bool) -> list[list[str]]:
    """The sentences of a line as tokens: as given, or of raw text the whole line as one unless it is to be split."""
    if not isinstance(line, str):
        return [line]
    return [
        tokenizer.words(sentence) for sentence in (split_sentences(line, tokenizer.info.language) if split else [line])
    ]


def write_block(
    path: Path, raw: RawBlock, paths: Sequence[str], tokenizer: TokenizerInfo, *, split: bool, with_hashes: bool
) -> tuple[int, int]:
    """Make sentences and tokens of a block; how many it has. `with_hashes` keeps 128 bits of each sentence."""
    words = _tokenizer(tokenizer)
    local: dict[str, int] = {}
    ids: list[int] = []
    lengths: list[int] = []
    sentences: list[int] = []  # of each line
    hashes: list[bytes] = []
    for place, line in enumerate(raw.lines):
        found = tokens_of(line, words, split=split)
        before = len(local)
        for tokens in found:
            ids += [local.setdefault(token, len(local)) for token in tokens]
            lengths.append(len(tokens))
            if with_hashes:
                hashes.append(blake2b(" ".join(tokens).encode(), digest_size=16).digest())
        if len(local) > before and (START in local or END in local):
            where = f"{paths[raw.sources[raw.documents[place]]]}:{raw.numbers[place]}"
            raise InputError(
                f"{where}: holds {START} or {END}", hint="leave them out: training puts them around each sentence"
            )
        sentences.append(len(found))
    arrays = {
        "ids": np.array(ids, dtype=np.uint16 if len(local) < 1 << 16 else np.uint32),
        "lengths": np.array(lengths, dtype=np.uint32),
        "numbers": np.repeat(np.array(raw.numbers, dtype=np.uint32), sentences),
        "documents": np.repeat(np.array(raw.documents, dtype=np.uint32), sentences),
        "sources": np.array(raw.sources, dtype=np.uint32),
        "digests": np.frombuffer(b"".join(raw.digests), dtype=">u8").astype(np.uint64).reshape(-1, 2),
        "hashes": np.frombuffer(b"".join(hashes), dtype=">u8").astype(np.uint64).reshape(-1, 2),
        "words": np.frombuffer("\n".join(local).encode(), dtype=np.uint8),
        "first_document": np.array(raw.first_document, dtype=np.int64),
        "end": np.frombuffer(json.dumps(asdict(raw.end)).encode(), dtype=np.uint8),
    }
    with written_aside(path) as aside, aside.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return len(lengths), len(ids)
