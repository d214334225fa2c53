"""A corpus to a file of vectors: in pieces beside the output, so that an interrupted run goes on where it was.

`OUT.parts/` holds a manifest that says what run it belongs to, and numbered pieces, each written whole. At the end they become OUT.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

import elmofire
from elmofire.embed.embedder import Embedder
from elmofire.embed.outputs import Piece, check_layout, write_embeddings
from elmofire.embed.selection import LayerChoice, select
from elmofire.embed.sentences import Sentences
from elmofire.errors import InputError
from elmofire.formats.files import written_aside
from elmofire.formats.weights import Array

_PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class JobReport:
    """What a run did; `resumed` sentences were there from an earlier one."""

    sentences: int
    tokens: int
    resumed: int


def embed_to_file(
    elmo: Embedder,
    sentences: Sentences,
    output: Path,
    *,
    layers: LayerChoice = "average",
    dtype: str = "float32",
    boundaries: bool = False,
    layout: str = "index",
    tokenizer: str | None = None,
    input_stamp: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> JobReport:
    """Embed sentences into an .hdf5, .npz or .safetensors file; `layout` is how HDF5 names them (`outputs.LAYOUTS`).

    `tokenizer` goes into the file's metadata: what split the text, where something did.

    With an `input_stamp` that tells the input apart, the same call after an interruption goes on where it was. `progress` is called
    with the sentences and tokens that each batch adds; sentences found from an earlier run come first, with no tokens.
    """
    check_layout(output, layout)
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype is {dtype!r}, but should be float32 or float16")
    choice = layers if isinstance(layers, str | int) else [float(weight) for weight in layers]
    metadata = {
        "elmofire": elmofire.__version__,
        "model": elmo.info()["model"],
        "layers": choice,
        "dtype": dtype,
        "boundaries": boundaries,
        "tokenizer": tokenizer,
    }
    selection = select(layers, elmo.config)
    empty = selection.empty(elmo.config.layers)
    output.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{output}.lock")
    try:
        with lock.acquire(timeout=0):
            parts = Parts(output, {**metadata, "input": input_stamp, "stamp": elmo.stamp})
            done = parts.sentences
            if done and progress:
                progress(done, 0)
            # Each piece is cut and computed as if it were the only one, so that an interruption cannot change a bit of the rest.
            remaining = elmo.token_lists(islice(sentences, done, None))
            for tokens in _cut(remaining, selection.row_bytes(elmo.config.layers, dtype), boundaries=boundaries):
                elmo.clear_cache()
                vectors = [found for _, found in elmo.stream(tokens, layers, boundaries=boundaries, progress=progress)]
                parts.add(_piece(tokens, vectors, dtype, empty))
            if not parts.sentences:
                parts.add(_piece([], [], dtype, empty))  # which tells shape and dtype
            # Put together among the parts, so that a run killed in the middle leaves nothing else behind.
            told = metadata if layout == "index" else {**metadata, "layout": layout}
            write_embeddings(parts.folder / output.name, parts.pieces, told, layout=layout)
            (parts.folder / output.name).replace(output)
            report = JobReport(parts.sentences, parts.tokens, done)
            parts.remove()
    except Timeout:
        raise InputError(f"{output}: another process is writing it") from None
    Path(f"{output}.lock").unlink(missing_ok=True)
    return report


def _cut(sentences: Iterator[Sequence[str]], row_bytes: int, *, boundaries: bool) -> Iterator[list[list[str]]]:
    """Sentences gathered until their vectors are worth a file."""
    piece: list[list[str]] = []
    size = 0
    for tokens in sentences:
        piece.append(list(tokens))
        size += (len(tokens) + 2 * boundaries) * row_bytes
        if size >= _PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _piece(tokens: list[list[str]], vectors: list[Array], dtype: str, empty: Array) -> Piece:
    rows = [np.moveaxis(found, -2, 0) for found in vectors]
    joined = np.concatenate(rows) if rows else np.moveaxis(empty, -2, 0)
    with np.errstate(over="ignore"):
        return Piece(tokens, [len(found) for found in rows], joined.astype(dtype, copy=False))


class Parts:
    """The pieces that are there, of this run or of an interrupted one like it."""

    def __init__(self, output: Path, manifest: dict[str, Any]) -> None:
        self.folder = Path(f"{output}.parts")
        self.sentences = self.tokens = self._count = 0
        listed = json.dumps(manifest, sort_keys=True)
        if manifest["input"] is None or self._manifest() != listed:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        with written_aside(self.folder / "manifest.json") as aside:
            aside.write_text(listed)
        while self._vectors(self._count).is_file():
            self._counted(self._read(self._count))

    def _manifest(self) -> str | None:
        file = self.folder / "manifest.json"
        return file.read_text() if file.is_file() else None

    def _vectors(self, number: int) -> Path:
        return self.folder / f"{number:06}.npy"

    def _tokens(self, number: int) -> Path:
        return self.folder / f"{number:06}.json"

    def _counted(self, piece: Piece) -> None:
        self._count += 1
        self.sentences += len(piece.tokens)
        self.tokens += sum(map(len, piece.tokens))

    def add(self, piece: Piece) -> None:
        # The vectors last: a piece whose vectors are there is whole.
        with written_aside(self._tokens(self._count)) as aside:
            aside.write_text(json.dumps({"tokens": piece.tokens, "lengths": piece.lengths}))
        with written_aside(self._vectors(self._count)) as aside:
            np.save(aside, piece.vectors)
        self._counted(piece)

    def _read(self, number: int) -> Piece:
        stored = json.loads(self._tokens(number).read_text())
        return Piece(stored["tokens"], stored["lengths"], np.load(self._vectors(number), mmap_mode="r"))

    def pieces(self) -> Iterator[Piece]:
        for number in range(self._count):
            yield self._read(number)

    def remove(self) -> None:
        shutil.rmtree(self.folder)
