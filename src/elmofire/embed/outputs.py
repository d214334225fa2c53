"""Files of vectors, what they look like and how they are read: HDF5 as AllenNLP laid it out, npz, safetensors.

HDF5 has one dataset per sentence, named by its number, and `sentence_to_index`; or the numbers alone, or the sentence as the name. The
other two hold `vectors` of all tokens one after the other, `offsets` (sentence i is rows offsets[i] to offsets[i+1]), and `tokens` (JSON,
one line a sentence, as bytes).
"""

import json
import operator
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import InputError, ModelError
from elmofire.formats.weights import as_folder

# How HDF5 names sentences: by number with an index of the text, by number alone, or by the text itself.
LAYOUTS = ("index", "numbers", "sentences")
SUFFIXES = {".hdf5": "hdf5", ".h5": "hdf5", ".npz": "npz", ".safetensors": "safetensors"}

_ADDED_TO_NAMES = 20  # characters, of the files that are written aside; a name may have 255


def output_format(path: Path) -> str:
    """By the name's ending."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: the output's name should end in {', '.join(SUFFIXES)}")
    return SUFFIXES[path.suffix.lower()]


def check_layout(path: Path, layout: str) -> None:
    """Does the name tell a format, and does the format have the layout? Only AllenNLP's HDF5 has several."""
    if layout not in LAYOUTS:
        raise InputError(f"layout is {layout!r}, but should be one of {', '.join(LAYOUTS)}")
    if output_format(path) != "hdf5" and layout != "index":
        raise InputError(
            f"{path}: datasets named by sentence, or without sentence_to_index, are for HDF5 files",
            hint="name the output OUT.hdf5",
        )


def check_place(path: Path) -> None:
    """Can there be a file of that name, and those beside it that are there meanwhile?"""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder", hint="choose another name for the output, or one in that folder")
        path.with_name(path.name + "-" * _ADDED_TO_NAMES).lstat()
    except FileNotFoundError:
        pass  # as it should be
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


class Embeddings:
    """A file of vectors: `embeddings[i]` are sentence i's, `embeddings.tokens(i)` its tokens, `.metadata` how they were made.

    It can be used in a `with`, which closes the file.
    """

    def __init__(
        self,
        count: int,
        vectors: Callable[[int], NDArray],
        tokens: Callable[[int], list[str] | None],
        metadata: dict[str, Any],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._count = count
        self._vectors = vectors
        self._tokens = tokens
        self.metadata = metadata
        self.close = close  # the file, where it is read as it is asked for

    def __enter__(self) -> "Embeddings":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        return f"Embeddings(sentences={self._count}, layers={self.metadata.get('layers')!r}, model={self.metadata.get('model')!r})"

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


def open_embeddings(path: str | os.PathLike[str]) -> Embeddings:
    """Open a file that `elmofire embed` wrote, or an HDF5 file of AllenNLP's `elmo` command.

    >>> import tempfile
    >>> from elmofire import Embedder, embed_to_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = embed_to_file(Embedder.load("en-small"), [["Why", "?"]], f"{folder}/vectors.npz")
    ...     embeddings = open_embeddings(f"{folder}/vectors.npz")
    >>> len(embeddings), embeddings[0].shape, embeddings.tokens(0)
    (1, (2, 256), ['Why', '?'])
    """
    path = as_folder(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: is no file of vectors, whose names end in {', '.join(SUFFIXES)}")
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

    return Embeddings(count, lambda number: file[str(number)][()], tokens, metadata, file.close)


def _named_by_sentences(file: Any, metadata: dict[str, Any]) -> Embeddings:
    names: dict[int, str] = {}
    file.visititems(
        lambda name, found: names.update({int(found.attrs["number"]): name}) if "number" in found.attrs else None
    )

    def tokens(number: int) -> list[str] | None:
        listed = file[names[number]].attrs.get("tokens")
        return names[number].split() if listed is None else json.loads(listed)

    return Embeddings(len(names), lambda number: file[names[number]][()], tokens, metadata, file.close)


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
    ends = offsets[[0, -1]].tolist() if offsets.ndim == 1 and len(offsets) else None
    if ends != [0, len(vectors)] or (np.diff(offsets) < 0).any():
        raise InputError(f"{path}: its offsets do not fit its vectors")
    lines = tokens.tobytes().splitlines()
    if len(lines) != len(offsets) - 1:
        raise InputError(f"{path}: has vectors of {len(offsets) - 1} sentences, but tokens of {len(lines)}")

    def sentence(number: int) -> NDArray:
        return np.moveaxis(vectors[offsets[number] : offsets[number + 1]], 0, -2)

    return Embeddings(len(offsets) - 1, sentence, lambda number: json.loads(lines[number]), metadata)
