"""Room for vectors: memory, or a temporary file mapped in its place where there are too many of them.

A sentence of a million tokens has gigabytes of vectors, and they are written once and read once. On disk the system keeps what fits and
writes out the rest, while memory stays what a batch needs.
"""

import errno
import mmap
import os
import shutil
import tempfile

import numpy as np

from elmofire.errors import InputError
from elmofire.formats.weights import Array

LIMIT_BYTES = 32 << 20  # a pool of 8,192 tokens in the original size; no array of a usual pool is larger


def room(shape: tuple[int, ...]) -> Array:
    """A float32 array of any content; beyond `LIMIT_BYTES` it lies in a file that has no name and goes with the array.

    The file is in `tempfile`'s folder, so `TMPDIR` says where.

    >>> room((2, 3)).shape
    (2, 3)
    """
    size = 4
    for length in shape:
        size *= length
    if size <= LIMIT_BYTES:
        return np.empty(shape, dtype=np.float32)
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
    return np.frombuffer(mapped, dtype=np.float32).reshape(shape)


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
