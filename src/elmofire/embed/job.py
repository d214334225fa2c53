"""A corpus to a file of vectors: in pieces beside the output, so that an interrupted run goes on where it was.

`OUT.parts/` holds a manifest that says what run it belongs to, and numbered pieces, each written whole. At the end they become OUT.
"""

import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import elmofire
from elmofire.embed.embedder import Embedder
from elmofire.embed.outputs import check_layout, check_place
from elmofire.embed.pooled import PoolVectors, gathered
from elmofire.embed.selection import LayerChoice, select
from elmofire.embed.sentences import LongSentence, Tokens, token_lists
from elmofire.embed.writers import Piece, chunks_of_rows, write_embeddings
from elmofire.errors import InputError, ModelError
from elmofire.formats.files import held_alone, read_json_object, written_aside
from elmofire.formats.weights import Array, as_folder
from elmofire.text.token_lists import Sentences

_PIECE_TOKENS = 1 << 15  # a minute's work in the original size, and enough to find sentences of like length
_STAMPS = {"input": "the input (its files, or how they are read)", "stamp": "the model's files"}


@dataclass(frozen=True)
class JobReport:
    """What a run did; `resumed` sentences were there from an earlier one."""

    sentences: int
    tokens: int
    resumed: int


def embed_to_file(
    elmo: Embedder,
    sentences: Sentences,
    output: str | os.PathLike[str],
    *,
    layers: LayerChoice = "average",
    dtype: str = "float32",
    boundaries: bool = False,
    layout: str = "index",
    tokenizer: str | None = None,
    input_stamp: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> JobReport:
    """Embed sentences into an .hdf5, .npz or .safetensors file.

    `layout` is how HDF5 names sentences: "numbers", "index" (numbers, and an index of the sentences) or "sentences" themselves.

    `tokenizer` goes into the file's metadata: what split the text, where something did.

    With an `input_stamp` that tells the input apart, the same call after an interruption goes on where it was. `progress` is called
    with the sentences and tokens that each batch adds; sentences found from an earlier run come first, with no tokens.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = embed_to_file(Embedder.load("en-small"), ["Stick to the plan.", "Why?"], f"{folder}/vectors.npz")
    >>> report.sentences, report.tokens
    (2, 7)
    """
    output = as_folder(output)
    check_layout(output, layout)
    check_place(output)
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype is {dtype!r}, but should be float32 or float16")
    choice = layers if isinstance(layers, str | int) else [float(weight) for weight in layers]
    metadata = {
        "elmofire": elmofire.__version__,
        "model": elmo.info()["model"],
        "layers": choice,
        "dtype": dtype,
        "precision": elmo.info()["precision"],
        "boundaries": boundaries,
        "tokenizer": tokenizer,
    }
    selection = select(layers, elmo.config)
    row = Row(selection.pooled_shape, np.dtype(dtype))
    with held_alone(Path(f"{output}.lock"), InputError(f"{output}: another process is writing it")):
        manifest = {**metadata, "engine": elmo.info()["engine"], "input": input_stamp, "stamp": elmo.stamp}
        with Parts(output, manifest) as parts:
            done = parts.sentences
            if done and progress:
                progress(done, 0)
            # Each piece is cut and computed as if it were the only one, so that an interruption cannot change a bit of the rest.
            remaining = token_lists(sentences, elmo.words, skip=done)
            pieces = gathered(remaining, lambda tokens: len(tokens) + 2, _PIECE_TOKENS)
            for tokens, pools in elmo.pool_by_pool(pieces, selection, boundaries=boundaries):
                parts.add(tokens, [len(found) + 2 * boundaries for found in tokens], row, _told(pools, progress))
            if not parts.sentences:
                parts.add([], [], row, iter(()))  # which tells shape and dtype
            # Put together among the parts, so that a run killed in the middle leaves nothing else behind.
            told = metadata if layout == "index" else {**metadata, "layout": layout}
            write_embeddings(parts.folder / output.name, parts.pieces, told, layout=layout)
            (parts.folder / output.name).replace(output)
            return JobReport(parts.sentences, parts.tokens, done)


class Row(NamedTuple):
    """What one token's vectors look like in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _told(pools: Iterator[PoolVectors], progress: Callable[[int, int], None] | None) -> Iterator[PoolVectors]:
    for pool in pools:
        yield pool
        if progress:
            progress(len(pool.numbers), pool.tokens)


class Parts:
    """The pieces that are there, of this run or of an interrupted one like it."""

    def __init__(self, output: Path, manifest: dict[str, Any]) -> None:
        self.folder = Path(f"{output}.parts")
        self.sentences = self.tokens = self._count = 0
        self._can_go_on = manifest["input"] is not None
        listed = json.dumps(manifest, sort_keys=True)
        before, now = self._manifest(), json.loads(listed)
        if not self._can_go_on or before != now:
            if self._vectors(0).is_file():
                self._refuse_to_lose(before, now)
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        with written_aside(self.folder / "manifest.json") as aside:
            aside.write_text(listed)
        while self._vectors(self._count).is_file():
            piece = self._read(self._count)
            self._counted(piece.counts)

    def _manifest(self) -> dict[str, Any]:
        """That of an earlier run; empty where none can be read."""
        try:
            return read_json_object(self.folder / "manifest.json")
        except ModelError:
            return {}

    def _refuse_to_lose(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        """An error if the pieces are hours of work that the command of an earlier run could go on with.

        What nobody types, such as the processor, brings no earlier run back: the same command has to do its work anew.
        """
        changed = [name for name in now if before.get(name) != now[name]]
        if before.get("elmofire") != now["elmofire"] or {*changed} <= {"engine", "stamp"}:
            warnings.warn(
                f"{self.folder} held pieces of an interrupted run that cannot be resumed here; they are removed",
                stacklevel=5,
            )
        elif before.get("input") is not None:
            changes = ", ".join(_change(name, before.get(name), now[name]) for name in changed)
            raise InputError(
                f"{self.folder}: holds pieces of an interrupted run that was not this one: {changes}",
                hint=f"repeat that run's command to resume it, choose another output, or remove {self.folder}",
            )

    def _vectors(self, number: int) -> Path:
        return self.folder / f"{number:06}.npy"

    def _tokens(self, number: int) -> Path:
        return self.folder / f"{number:06}.jsonl"

    def _counted(self, tokens: list[int]) -> None:
        self._count += 1
        self.sentences += len(tokens)
        self.tokens += sum(tokens)

    def add(self, tokens: list[Tokens], lengths: list[int], row: Row, pools: Iterator[PoolVectors]) -> None:
        """Write a piece, each sentence's rows at their place as its pool comes in."""
        # The vectors last: a piece whose vectors are there is whole.
        counts = [*map(len, tokens)]
        with written_aside(self._tokens(self._count)) as aside, aside.open("w", encoding="ascii") as file:
            file.write(json.dumps({"tokens": counts, "rows": lengths}) + "\n")
            for sentence in tokens:
                file.writelines(_json_line(sentence))
        starts = [0, *accumulate(lengths)]
        header = {"descr": row.dtype.str, "fortran_order": False, "shape": (starts[-1], *row.shape)}
        with written_aside(self._vectors(self._count)) as aside, aside.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            first = file.tell()
            for pool in pools:
                for number, vectors in zip(pool.numbers, pool.vectors, strict=True):
                    file.seek(first + starts[number] * row.bytes)
                    for part in chunks_of_rows(np.moveaxis(vectors, -2, 0)):
                        file.write(_converted(part, row.dtype).data)
        self._counted(counts)

    def _read(self, number: int) -> Piece:
        with self._tokens(number).open("rb") as file:
            sizes = json.loads(file.readline())
            start = file.tell()
        return Piece(
            self._tokens(number), start, sizes["tokens"], sizes["rows"], np.load(self._vectors(number), mmap_mode="r")
        )

    def pieces(self) -> Iterator[Piece]:
        for number in range(self._count):
            yield self._read(number)

    def __enter__(self) -> "Parts":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove the pieces when all is done, or when the next run could not use them."""
        if kind is None or not self._count or not self._can_go_on:
            self._remove()

    def _remove(self) -> None:
        (self.folder / "manifest.json").unlink()  # first, or a run killed in the middle would leave a job with holes
        shutil.rmtree(self.folder)


def _change(name: str, before: object, now: object) -> str:
    """What a run has other than an earlier one; what tells files apart says nothing to people."""
    if name in _STAMPS:
        return f"{_STAMPS[name]} changed"
    return f"{name} is {now} now and was {before}"


def _json_line(tokens: Tokens) -> Iterator[str]:
    """A list in ascii only, so that lone surrogates survive; a long one in parts."""
    if isinstance(tokens, LongSentence):
        yield "["
        for number, part in enumerate(tokens.parts()):
            yield (", " if number else "") + json.dumps(part)[1:-1]
        yield "]\n"
    else:
        yield json.dumps(tokens) + "\n"


def _converted(rows: Array, dtype: np.dtype) -> NDArray:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(rows, dtype=dtype)
