"""Models in zips, as NLPL's repository publishes them: HDF5 files are read from the archive, not unpacked beside it.

No member is opened before all of them have been looked at: a zip that tries anything is refused whole.
"""

import io
import posixpath
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from elmofire.errors import ModelError
from elmofire.formats import native
from elmofire.formats.files import most_unpacked, read_json_object
from elmofire.formats.published.datasets import DatasetFile
from elmofire.formats.published.hdf5_2018 import OPTIONS, VOCABULARY, weights_of
from elmofire.formats.published.options_2018 import Options
from elmofire.formats.weights import Source, Weights
from elmofire.recipe import named

_WEIGHTS = "model.hdf5"
_NATIVE_FILES = (native.CONFIG, native.TENSORS, native.VOCABULARY, native.CHARACTERS)
_MOST_MEMBERS = 1000
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


def read(file: Path) -> Weights:
    """Read the model in a zip: 2018's files, a native folder, or one of ELMoForManyLangs."""
    from elmofire.formats.published.from_torch import manylangs

    archive = Archive(file)
    names = archive.names
    if {native.CONFIG, native.TENSORS} <= set(names):
        return _read_native(archive)
    if manylangs.recognizes_names(names):
        weights = manylangs.read_members(names, archive.open, str(file))
        return replace(weights, source=Source(str(file), weights.source.format if weights.source else "", (file,)))
    hdf5 = [name for name in names if name.endswith((".hdf5", ".h5")) and "/" not in name]
    if hdf5 and OPTIONS in names:
        return _read_2018(archive, hdf5)
    found = ", ".join(map(named, names[:12])) or "nothing"
    raise ModelError(
        f"{file}: holds no model that is known here; it holds {found}",
        hint=f"{OPTIONS} + {_WEIGHTS}, {native.CONFIG} + {native.TENSORS}, or ELMoForManyLangs' encoder.pkl and its companions",
    )


class Archive:
    """The files of a zip by name, without the folder that all of them may be in."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self._zip = zipfile.ZipFile(file)
            members = self._zip.infolist()
            size = file.stat().st_size
        except _DAMAGE as error:
            raise ModelError(
                f"{file}: is not a whole zip: {error}",
                hint="a broken download? compare its size with the published one",
            ) from None
        if problems := _dangers(members, size):
            raise ModelError.from_problems(str(file), problems, hint="it was not read")
        # Archives made on a Mac hold a second file beside each, in a folder of its own.
        files = [each for each in members if not each.is_dir() and not each.filename.startswith("__MACOSX/")]
        folder = posixpath.commonpath([posixpath.dirname(each.filename) for each in files]) if files else ""
        self._members = {posixpath.relpath(each.filename, folder or "."): each for each in files}

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def open(self, name: str) -> io.BytesIO:
        """A member in memory: what reads models jumps about in them, which compressed data does not allow."""
        data = io.BytesIO()
        self._copy(name, data)
        data.seek(0)
        return data

    def unpack(self, name: str, folder: Path) -> Path:
        with (folder / name).open("wb") as out:
            self._copy(name, out)
        return folder / name

    def _copy(self, name: str, out: BinaryIO) -> None:
        member = self._members[name]
        try:
            with self._zip.open(member) as opened:
                shutil.copyfileobj(opened, out, 1 << 20)  # ends after the claimed size, whatever follows there
        except _DAMAGE as error:
            raise ModelError(f"{self.file}: {named(name)} cannot be unpacked: {error}") from None
        if out.tell() != member.file_size:
            raise ModelError(f"{self.file}: {named(name)} claims {member.file_size:,} bytes, but has {out.tell():,}")


def _dangers(members: list[zipfile.ZipInfo], size: int) -> list[str]:
    """What no archive of a model has."""
    if len(members) > _MOST_MEMBERS:
        return [f"{len(members):,} files are too many for a model"]
    problems: list[str] = []
    seen: set[str] = set()
    for member in members:
        name = named(member.filename)
        if member.filename.startswith("/") or "\\" in member.filename or member.filename[1:2] == ":":
            problems.append(f"{name} is not a path inside the archive")
        elif {"", ".", ".."} & set(member.filename.removesuffix("/").split("/")):
            problems.append(f"{name} leads out of the archive, or around in it")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            problems.append(f"{name} is a link or something else that is no file")
        if member.filename in seen:
            problems.append(f"{name} stands there twice")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            problems.append(f"{name} is compressed in the way {member.compress_type}, which is not supported")
        if member.flag_bits & 1:
            problems.append(f"{name} is encrypted")
        if member.file_size > most_unpacked(member.compress_size):
            problems.append(f"{name} claims {member.file_size:,} bytes out of {member.compress_size:,}")
        seen.add(member.filename)
    claimed = sum(member.file_size for member in members)
    if claimed > most_unpacked(size):
        problems.append(f"the files claim {claimed:,} bytes together, but the archive has {size:,}")
    return problems


def _read_2018(archive: Archive, hdf5: list[str]) -> Weights:
    heads = [name for name in hdf5 if "softmax" in name]
    candidates = [_WEIGHTS] if _WEIGHTS in hdf5 else [name for name in hdf5 if name not in heads] or heads
    if len(candidates) > 1:
        listed = ", ".join(map(named, candidates))
        raise ModelError(f"{archive.file}: several weight files: {listed}", hint=f"call the right one {_WEIGHTS}")

    def opened(name: str) -> DatasetFile:
        return DatasetFile(archive.file / name, archive.open(name))

    def read_beside(folder: Path) -> Weights:
        options = Options(archive.file / OPTIONS, read_json_object(archive.unpack(OPTIONS, folder)))
        if options.problems:
            raise ModelError.from_problems(str(options.path), options.problems)
        words = [name for name in (VOCABULARY, f"{VOCABULARY}.gz") if name in archive.names]
        weights = opened(candidates[0])
        head = weights if weights.has("softmax") or not heads else opened(heads[0])
        vocabulary_file = archive.unpack(words[0], folder) if words else None
        source = Source(str(archive.file), "hdf5", (archive.file,))
        return weights_of(options, weights, head, vocabulary_file=vocabulary_file, source=source)

    return _with_folder(archive.file, read_beside)


def _read_native(archive: Archive) -> Weights:
    """From a temporary folder: its files are mapped, and need no name once they are."""

    def read_from(folder: Path) -> Weights:
        for name in _NATIVE_FILES:
            if name in archive.names:
                archive.unpack(name, folder)
        return native.read(folder)

    weights = _with_folder(archive.file, read_from)
    return replace(weights, source=Source(str(archive.file), "native", (archive.file,)))


def _with_folder(file: Path, read: Callable[[Path], Weights]) -> Weights:
    """Run with a temporary folder for small files; errors call it by the archive's name."""
    # A mapped file keeps its folder from going on some systems.
    with tempfile.TemporaryDirectory(prefix="elmofire-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary, file.name)
        folder.mkdir()
        try:
            return read(folder)
        except ModelError as error:
            raise ModelError(str(error).replace(str(folder), str(file))) from None
