"""Packed weights on disk: made once, then mapped, so that loading takes no time and processes share the memory.

A file is the arrays, each on a multiple of 64 bytes, then an index as JSON, then the index's size and digest. It is named by what
its content depends on. Whatever is not as it was written (cut short, changed, another's) is made anew; where nothing can be written,
the arrays are in memory.
"""

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.compiled import Kernels
from elmofire.engine.compiled.calls import ALIGNMENT
from elmofire.engine.compiled.packing import LAYOUT, Arrays, Forms, forms, pack
from elmofire.errors import ModelError
from elmofire.formats.catalogue import cache_folder
from elmofire.formats.weights import FileArrays, Source, Weights

MOST_BYTES = 8 << 30  # of all files together; those not used for longest go
_LEAST_PARAMETERS = 2_000_000  # a smaller model is packed in no time
_SUFFIX = ".packed"
_DIGEST = hashlib.sha256().digest_size
_SAMPLES, _SAMPLE = 16, 4096  # of each file of a model: how many places are looked at, and how many bytes there


def packed_arrays(weights: Weights, kernels: Kernels, precision: str) -> Arrays:
    """The model's arrays in the kernels' layout: mapped from disk if they are there, or else made, and kept there."""
    file = _file_for(weights, kernels, precision)
    arrays = None if file is None else _mapped(file, forms(weights.config, kernels, precision))
    if arrays is None:
        arrays = dict(pack(weights, kernels, precision))
        # Some formats read their files only now: what was packed is kept only if they have not changed meanwhile.
        if file is not None and file == _file_for(weights, kernels, precision):
            _in_the_background(_written, file, arrays.items())
    return arrays


def _in_the_background(function: Callable[..., object], *arguments: object) -> None:
    """Writing takes longer than packing; only the end of the process waits for it."""
    with contextlib.suppress(RuntimeError):  # where the system gives no more threads, the file is not written
        Thread(target=function, args=arguments, name="elmofire-packed").start()


def _file_for(weights: Weights, kernels: Kernels, precision: str) -> Path | None:
    """Where a model's packed weights belong. None: they are not kept, being small, or not those of the model's files."""
    source = weights.source
    if source is None or not source.files or not isinstance(weights.arrays, FileArrays):
        return None
    if weights.config.parameters < _LEAST_PARAMETERS:
        return None
    config = asdict(replace(weights.config, head=0))
    layout = {"layout": LAYOUT, "lanes": kernels.lanes, "int8_group": kernels.int8_group, "precision": precision}
    try:
        if source.stamp != source.stamp_when_loaded:  # saved anew since: the files are another model's
            return None
        identity = json.dumps([_fingerprint(source), config, layout], sort_keys=True)
        return cache_folder() / "packed" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}{_SUFFIX}"
    except (OSError, ModelError):
        return None


def _fingerprint(source: Source) -> str:
    """The files' stamp, and bytes from all over them: sizes and times alone can be the same for different weights.

    Those bytes can be the same too, where two models differ in a bias alone. So the time of the last change of any kind (ctime) is
    included, which no program can set.
    """
    digest = hashlib.sha256(source.stamp.encode())
    for path in source.files:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            digest.update(str(status.st_ctime_ns).encode())
            for place in np.linspace(0, max(size - _SAMPLE, 0), _SAMPLES, dtype=np.int64).tolist():
                file.seek(place)
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def _mapped(file: Path, expected: Forms) -> Arrays | None:
    """The arrays of a file that is whole, and has those that are expected: C would read past the end of smaller ones."""
    try:
        data = np.memmap(file, dtype=np.uint8, mode="r")
    except (OSError, ValueError):  # not there, or empty
        return None
    with contextlib.suppress(OSError):  # it may be another user's
        os.utime(file)  # used just now: others go first
    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError, RecursionError):
        size = int.from_bytes(data[-8:].tobytes(), "little")
        end = len(data) - 8 - _DIGEST
        index = data[end - size : end].tobytes()
        if not 0 < size <= end or _digest(file, index) != data[end : end + _DIGEST].tobytes():
            return None
        arrays, listed = {}, json.loads(index)
        for name, (dtype, shape) in expected.items():
            found_dtype, found_shape, offset, checksum = listed[name]
            whole = data[offset : offset + math.prod(shape) * dtype.itemsize]
            if (found_dtype, tuple(found_shape)) != (dtype.str, shape) or _checksum(whole) != checksum:
                return None
            arrays[name] = np.asarray(whole).view(dtype).reshape(shape)
        return arrays
    return None


def _digest(file: Path, index: bytes) -> bytes:
    """Of the index and of the file's name, so that a file under another's name is noticed."""
    return hashlib.sha256(file.name.encode() + index).digest()


def _checksum(data: NDArray) -> int:
    """The sum of all 64-bit words: one pass at the speed of memory."""
    data = data.reshape(-1).view(np.uint8)
    whole = len(data) // 8 * 8
    with np.errstate(over="ignore"):
        words = np.add.reduce(data[:whole].view(np.uint64), dtype=np.uint64)
    return (int(words) + int.from_bytes(data[whole:].tobytes(), "little") + len(data)) % (1 << 64)


def _written(file: Path, arrays: Iterable[tuple[str, NDArray]]) -> bool:
    """Write the file aside and rename it. False: it cannot be written here."""
    # Not synced: what a crash leaves behind has another checksum, and waiting for the disk would be most of a first load.
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=_SUFFIX)
    except OSError:
        return False
    try:
        with os.fdopen(handle, "wb") as aside:
            index = {}
            for key, array in arrays:
                aside.write(bytes(-aside.tell() % ALIGNMENT))
                array = np.ascontiguousarray(array)
                index[key] = [array.dtype.str, array.shape, aside.tell(), _checksum(array)]
                aside.write(array.data)
            encoded = json.dumps(index).encode()
            aside.write(encoded + _digest(file, encoded) + len(encoded).to_bytes(8, "little"))
        Path(name).chmod(0o644)  # mkstemp's files are private, but a cache may be several users'
        Path(name).replace(file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        return False
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _make_room(file)
    return True


def _make_room(newest: Path) -> None:
    """Remove what has not been used for longest while the files are too large together, and what was never finished."""
    with contextlib.suppress(OSError):
        found = [(path, path.stat()) for path in newest.parent.glob(f"*{_SUFFIX}")]
        total = sum(status.st_size for _, status in found)
        for path, status in sorted(found, key=lambda each: each[1].st_mtime):
            unfinished = path.name.startswith(".") and time.time() - status.st_mtime > 3600
            if unfinished or (total > MOST_BYTES and path != newest and not path.name.startswith(".")):
                path.unlink(missing_ok=True)
                total -= status.st_size
