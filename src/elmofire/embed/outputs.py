"""Files of vectors, written from pieces and read back: HDF5 as AllenNLP laid it out, npz, safetensors.

HDF5 has one dataset per sentence, named by its number, and `sentence_to_index`; or the numbers alone, or the sentence as the name. The
other two hold `vectors` of all tokens one after the other, `offsets` (sentence i is rows offsets[i] to offsets[i+1]), and `tokens` (JSON,
one line a sentence, as bytes).
"""

import json
import operator
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import InputError, ModelError
from elmofire.formats.files import written_aside

# How HDF5 names sentences: by number with an index of the text, by number alone, or by the text itself.
LAYOUTS = ("index", "numbers", "sentences")
SUFFIXES = {".hdf5": "hdf5", ".h5": "hdf5", ".npz": "npz", ".safetensors": "safetensors"}

_ATTRIBUTE_LIMIT = 60_000  # bytes; HDF5 refuses attributes from 64 KiB on


class Piece(NamedTuple):
    """Some sentences: their tokens, the rows each has, and the rows of all one after the other."""

    tokens: list[list[str]]
    lengths: list[int]
    vectors: NDArray  # (rows, width), or (rows, layers, width)


def output_format(path: Path) -> str:
    """By the name's ending."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: the output's name should end in {', '.join(SUFFIXES)}")
    return SUFFIXES[path.suffix]


def check_layout(path: Path, layout: str) -> None:
    """Does the name tell a format, and does the format have the layout? Only AllenNLP's HDF5 has several."""
    if layout not in LAYOUTS:
        raise InputError(f"layout is {layout!r}, but should be one of {', '.join(LAYOUTS)}")
    if output_format(path) != "hdf5" and layout != "index":
        raise InputError(
            f"{path}: datasets named by sentence, or without sentence_to_index, are for HDF5 files",
            hint="name the output OUT.hdf5",
        )


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
            for tokens, length in zip(piece.tokens, piece.lengths, strict=True):
                rows = piece.vectors[first : first + length]
                first += length
                sentence = " ".join(tokens)
                key = _free_name(file, path, sentence, number) if layout == "sentences" else str(number)
                dataset = file.create_dataset(key, data=np.moveaxis(rows, 0, -2))
                listed = json.dumps(tokens)
                if layout != "numbers" and len(listed) < _ATTRIBUTE_LIMIT:
                    dataset.attrs["tokens"] = listed
                if layout == "sentences":
                    dataset.attrs["number"] = number
                index[sentence] = key  # a repeated sentence keeps its last number, as it did
                number += 1
        if layout == "index":
            text = h5py.string_dtype(encoding="utf-8")
            file.create_dataset("sentence_to_index", (1,), dtype=text, data=json.dumps(index))


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
        hint="leave --use-sentence-keys out: datasets are then named by number",
    )


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
        text_bytes += sum(len(line) for line in _token_lines(piece))
        inner, dtype = piece.vectors.shape[1:], piece.vectors.dtype
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    yield "vectors", dtype, (int(offsets[-1]), *inner), (piece.vectors for piece in pieces())
    yield "offsets", offsets.dtype, offsets.shape, [offsets]
    lines = (np.frombuffer(b"".join(_token_lines(piece)), dtype=np.uint8) for piece in pieces())
    yield "tokens", np.dtype(np.uint8), (text_bytes,), lines


def _token_lines(piece: Piece) -> Iterator[bytes]:
    for tokens in piece.tokens:
        yield json.dumps(tokens).encode() + b"\n"  # ascii only, so that lone surrogates survive


class Embeddings:
    """A file of vectors: `embeddings[i]` are sentence i's, `embeddings.tokens(i)` its tokens, `.metadata` how they were made."""

    def __init__(
        self,
        count: int,
        vectors: Callable[[int], NDArray],
        tokens: Callable[[int], list[str] | None],
        metadata: dict[str, Any],
    ) -> None:
        self._count = count
        self._vectors = vectors
        self._tokens = tokens
        self.metadata = metadata

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> NDArray: ...
    @overload
    def __getitem__(self, number: slice) -> list[NDArray]: ...

    def __getitem__(self, number: int | slice) -> NDArray | list[NDArray]:
        if isinstance(number, slice):
            return [self._vectors(place) for place in range(*number.indices(self._count))]
        return self._vectors(self._place(number))

    def __repr__(self) -> str:
        return f"Embeddings({self._count} sentences, layers={self.metadata.get('layers')!r}, model={self.metadata.get('model')!r})"

    def __iter__(self) -> Iterator[NDArray]:
        return map(self._vectors, range(self._count))

    def tokens(self, number: int) -> list[str] | None:
        """Sentence i's tokens; None where the file does not tell."""
        return self._tokens(self._place(number))

    def _place(self, number: int) -> int:
        number = operator.index(number)
        if not -self._count <= number < self._count:
            raise IndexError(f"sentence {number} of {self._count}")
        return number % self._count


def open_embeddings(path: str | Path) -> Embeddings:
    """Open a file that `elmofire embed` wrote, or an HDF5 file of AllenNLP's `elmo` command.

    >>> import tempfile
    >>> from elmofire import Embedder
    >>> from elmofire.embed.job import embed_to_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = embed_to_file(Embedder.load("random-small"), [["Why", "?"]], Path(folder) / "vectors.npz")
    ...     embeddings = open_embeddings(f"{folder}/vectors.npz")
    >>> len(embeddings), embeddings[0].shape, embeddings.tokens(0)
    (1, (2, 256), ['Why', '?'])
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return {"hdf5": _open_hdf5, "npz": _open_npz, "safetensors": _open_safetensors}[output_format(path)](path)


def _open_hdf5(path: Path) -> Embeddings:
    import h5py

    try:
        file: Any = h5py.File(path, "r")
    except OSError as error:
        raise InputError(f"{path}: is not a whole HDF5 file: {error}") from None
    metadata = json.loads(file.attrs["elmofire"]) if "elmofire" in file.attrs else {}
    if metadata.get("layout") == "sentences":
        return _named_by_sentences(file, metadata)
    count = sum(1 for key in file if key.isdigit())
    if str(count - 1) not in file and "elmofire" not in file.attrs:
        raise InputError(f"{path}: has no datasets numbered from 0, so it is no file of vectors")
    texts: dict[int, str] = {}
    if "sentence_to_index" in file:
        stored = file["sentence_to_index"][0]
        texts = {int(key): text for text, key in json.loads(stored).items()}

    def tokens(number: int) -> list[str] | None:
        listed = file[str(number)].attrs.get("tokens")
        if listed is not None:
            return json.loads(listed)
        return texts[number].split() if number in texts else None

    return Embeddings(count, lambda number: file[str(number)][()], tokens, metadata)


def _named_by_sentences(file: Any, metadata: dict[str, Any]) -> Embeddings:
    names: dict[int, str] = {}
    file.visititems(
        lambda name, found: names.update({int(found.attrs["number"]): name}) if "number" in found.attrs else None
    )

    def tokens(number: int) -> list[str] | None:
        listed = file[names[number]].attrs.get("tokens")
        return names[number].split() if listed is None else json.loads(listed)

    return Embeddings(len(names), lambda number: file[names[number]][()], tokens, metadata)


def _open_npz(path: Path) -> Embeddings:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: is not a whole npz file")
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in ("vectors", "offsets", "tokens", "metadata")}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: is not a whole file of vectors: {error}") from None
    return _in_one_array(
        path, arrays["vectors"], arrays["offsets"], arrays["tokens"], json.loads(arrays["metadata"].tobytes())
    )


def _open_safetensors(path: Path) -> Embeddings:
    from elmofire.formats.tensors import MappedTensors

    try:
        tensors = MappedTensors(path)
    except ModelError as error:
        raise InputError(str(error)) from None
    if not all(name in tensors for name in ("vectors", "offsets", "tokens")):
        raise InputError(f"{path}: lacks vectors, offsets or tokens, so it is no file of vectors")
    metadata = json.loads(tensors.metadata.get("elmofire", "{}"))
    return _in_one_array(path, tensors.view("vectors"), tensors.view("offsets"), tensors.view("tokens"), metadata)


def _in_one_array(
    path: Path, vectors: NDArray, offsets: NDArray, tokens: NDArray, metadata: dict[str, Any]
) -> Embeddings:
    if offsets.ndim != 1 or not len(offsets) or offsets[-1] != len(vectors) or (np.diff(offsets) < 0).any():
        raise InputError(f"{path}: its offsets do not fit its vectors")
    lines = tokens.tobytes().splitlines()

    def sentence(number: int) -> NDArray:
        return np.moveaxis(vectors[offsets[number] : offsets[number + 1]], 0, -2)

    return Embeddings(len(offsets) - 1, sentence, lambda number: json.loads(lines[number]), metadata)
