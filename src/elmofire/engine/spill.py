"""Room for arrays: memory, or a temporary file mapped in its place where they have too many rows.

A sentence of a million tokens has gigabytes of vectors, and they are written once and read once. On disk the system keeps what fits and
writes out the rest, while memory stays what a batch needs.
"""

import errno
import math
import mmap
import os
import shutil
import tempfile

import numpy as np
from numpy.typing import DTypeLike, NDArray

from elmofire.errors import InputError

# Two pools of the usual size: an array with more rows grows with the text, not with the batch.
LIMIT_ROWS = 8192

_ROWS_AT_ONCE = 1 << 16


def allocate(shape: tuple[int, ...], dtype: DTypeLike = np.float32, *, rows: int | None = None) -> NDArray:
    """An array of any content. With more than `LIMIT_ROWS` rows it lies in a file that has no name and goes with the array.

    Its rows are the first axis, or what `rows` says. The file is in `tempfile`'s folder, so `TMPDIR` says where.

    >>> allocate((2, 3)).shape
    (2, 3)
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if (shape[0] if rows is None else rows) <= LIMIT_ROWS or not size:
        return np.empty(shape, dtype=dtype)
    try:
        with tempfile.TemporaryFile(prefix="elmofire-") as file:
            _reserve(file.fileno(), size)
            mapped = mmap.mmap(file.fileno(), size)  # which keeps the file alive
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise InputError(
            f"{tempfile.gettempdir()}: no room for {size / 1e9:.1f} GB of vectors: {error.strerror}",
            hint="set TMPDIR to a folder with more, or cut the text into shorter sentences",
        ) from None
    return np.frombuffer(mapped, dtype=dtype).reshape(shape)


def long_arange(start: int, stop: int, step: int) -> NDArray[np.int64]:
    """`np.arange`, in a file where it is long.

    >>> long_arange(3, -1, -1)
    array([3, 2, 1, 0])
    """
    numbers = range(start, stop, step)
    if len(numbers) <= LIMIT_ROWS:
        return np.arange(start, stop, step, dtype=np.int64)
    array = allocate((len(numbers),), np.int64)
    for first in range(0, len(numbers), _ROWS_AT_ONCE):
        some = numbers[first : first + _ROWS_AT_ONCE]
        array[first : first + len(some)] = np.arange(some.start, some.stop, step)
    return array


def _reserve(file: int, size: int) -> None:
    """Make the file so large, now: a mapped file that finds the disk full later kills the process."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
        else:
            return
    if shutil.disk_usage(tempfile.gettempdir()).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.truncate(file, size)
