"""Files of vectors written from pieces that lie on disk: nothing is held but a part of them, however long a sentence is."""

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmofire.embed.outputs import check_layout, output_format
from elmofire.errors import InputError
from elmofire.formats.files import written_aside

_CHUNK_BYTES = 8 << 20
_BLOCK_BYTES = 1 << 20  # of text
_ATTRIBUTE_LIMIT = 60_000  # bytes; HDF5 refuses attributes from 64 KiB on


class Piece(NamedTuple):
    """Some sentences: a file with their tokens (JSON, a line each, from a place on), how many, and the rows of all one after the other."""

    file: Path
    start: int
    counts: list[int]  # tokens of each
    lengths: list[int]  # rows of each
    vectors: NDArray  # (rows, width), or (rows, layers, width)

    def token_lines(self) -> Iterator[bytes]:
        """With their ends."""
        with self.file.open("rb") as file:
            file.seek(self.start)
            yield from file

    def token_blocks(self) -> Iterator[bytes]:
        """The same, cut anywhere: a line may be long."""
        with self.file.open("rb") as file:
            file.seek(self.start)
            while block := file.read(_BLOCK_BYTES):
                yield block

    @property
    def token_bytes(self) -> int:
        return self.file.stat().st_size - self.start


def write_embeddings(
    path: Path, pieces: Callable[[], Iterator[Piece]], metadata: dict[str, Any], *, layout: str = "index"
) -> None:
    """Write a file whole or not at all; `pieces()` walks over the sentences, and is called more than once."""
    check_layout(path, layout)
    if output_format(path) == "hdf5":
        _write_hdf5(path, pieces, metadata, layout)
    else:
        _WRITERS[output_format(path)](path, pieces, metadata)


def _write_hdf5(path: Path, pieces: Callable[[], Iterator[Piece]], metadata: dict[str, Any], layout: str) -> None:
    import h5py

    with written_aside(path) as aside, h5py.File(aside, "w") as file:
        file.attrs["elmofire"] = json.dumps(metadata)
        index: dict[str, str] = {}
        number = 0
        for piece in pieces():
            first = 0
            for line, length in zip(piece.token_lines(), piece.lengths, strict=True):
                rows = piece.vectors[first : first + length]
                first += length
                sentence = " ".join(json.loads(line))
                key = _free_name(file, path, sentence, number) if layout == "sentences" else str(number)
                dataset = _store(file, key, rows)
                if layout != "numbers" and len(line) < _ATTRIBUTE_LIMIT:
                    dataset.attrs["tokens"] = line.decode().rstrip()
                if layout == "sentences":
                    dataset.attrs["number"] = number
                index[sentence] = key  # a repeated sentence keeps its last number, as it did
                number += 1
        if layout == "index":
            text = h5py.string_dtype(encoding="utf-8")
            file.create_dataset("sentence_to_index", (1,), dtype=text, data=json.dumps(index))


def _store(file: Any, key: str, rows: NDArray) -> Any:
    """A sentence's dataset ([layers,] tokens, width) out of its rows (tokens, [layers,] width)."""
    vectors = np.moveaxis(rows, 0, -2)
    if vectors.nbytes <= _CHUNK_BYTES:
        return file.create_dataset(key, data=vectors)
    dataset = file.create_dataset(key, vectors.shape, vectors.dtype)
    first = 0
    for part in chunks_of_rows(rows):
        dataset[..., first : first + len(part), :] = np.moveaxis(part, 0, -2)
        first += len(part)
    return dataset


def _free_name(file: Any, path: Path, sentence: str, number: int) -> str:
    """The sentence, if a dataset can be called so. A slash makes groups of it, and it is found again under the same name."""
    parts = sentence.split("/")
    above = [name for end in range(1, len(parts)) if (name := "/".join(parts[:end]))]
    text = sentence.encode("utf-8", "ignore").decode()  # without lone surrogates, which no file takes
    nameable = text == sentence and sentence.strip("/.") and "\0" not in sentence
    if nameable and sentence in file:
        wrong = "is there twice"
    elif not nameable or any(hasattr(file.get(name), "shape") for name in above):
        wrong = "cannot be the name of a dataset"
    else:
        return sentence
    raise InputError(
        f"{path.name}: sentence {number} ({sentence!r:.60}) {wrong}",
        hint='layout="numbers" (no --use-sentence-keys) names datasets by number',
    )


def chunks_of_rows(rows: NDArray) -> Iterator[NDArray]:
    """Rows some at a time: whatever copies them on the way to a file copies a part only."""
    at_once = max(1, _CHUNK_BYTES // max(1, rows[:1].nbytes))
    for first in range(0, len(rows), at_once):
        yield rows[first : first + at_once]


def _write_npz(path: Path, pieces: Callable[[], Iterator[Piece]], metadata: dict[str, Any]) -> None:
    with written_aside(path) as aside, zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, dtype, shape, parts in _arrays(pieces):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for part in parts:
                    file.write(np.ascontiguousarray(part, dtype=dtype).data)
        with archive.open("metadata.npy", "w") as file:
            np.lib.format.write_array(file, np.frombuffer(json.dumps(metadata).encode(), dtype=np.uint8))


def _write_safetensors(path: Path, pieces: Callable[[], Iterator[Piece]], metadata: dict[str, Any]) -> None:
    from elmofire.formats.tensors import write_tensors

    names = {
        np.dtype(np.float32): "F32",
        np.dtype(np.float16): "F16",
        np.dtype(np.int64): "I64",
        np.dtype(np.uint8): "U8",
    }
    arrays = {name: (dtype, shape, parts) for name, dtype, shape, parts in _arrays(pieces)}
    write_tensors(
        path,
        {name: (names[dtype], shape) for name, (dtype, shape, _) in arrays.items()},
        lambda name: arrays[name][2],
        metadata={"elmofire": json.dumps(metadata)},
    )


_WRITERS = {"npz": _write_npz, "safetensors": _write_safetensors}


def _arrays(
    pieces: Callable[[], Iterator[Piece]],
) -> Iterator[tuple[str, np.dtype, tuple[int, ...], Iterable[NDArray]]]:
    """The three arrays as (name, dtype, shape, parts)."""
    lengths: list[int] = []
    text_bytes = 0
    inner, dtype = (0,), np.dtype(np.float32)
    for piece in pieces():
        lengths += piece.lengths
        text_bytes += piece.token_bytes
        inner, dtype = piece.vectors.shape[1:], piece.vectors.dtype
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    yield "vectors", dtype, (int(offsets[-1]), *inner), (piece.vectors for piece in pieces())
    yield "offsets", offsets.dtype, offsets.shape, [offsets]
    blocks = (np.frombuffer(block, dtype=np.uint8) for piece in pieces() for block in piece.token_blocks())
    yield "tokens", np.dtype(np.uint8), (text_bytes,), blocks
