"""Word ids as bytes, frequent words in fewer, for a compressor to go on with; no loop over words in either direction.

A shard becomes one row of symbols: its ids as they are, with 1 (`</S>`) after each sentence and 0 (`<S>`) before each document; the
text itself never has these two. A symbol takes 7 bits a byte, high bits first; all its bytes but the last have the eighth bit set.
"""

import lzma

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import DataError

_DOCUMENT, _SENTENCE_END = 0, 1
_LONGEST = 5  # bytes of a 32-bit number
AGAIN = "copy the pieces again; if that does not help, pack the corpus again"
# Long matches in a large window, four bits of the byte before as context, and no alignment: symbols have any length.
_FILTERS = [
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 32 << 20, "lc": 4, "lp": 0, "pb": 0}
]


def compressed(data: bytes) -> bytes:
    return lzma.compress(data, format=lzma.FORMAT_XZ, filters=_FILTERS)


def decompressed(data: bytes, limit: int) -> bytes:
    """What was compressed; more than `limit` bytes are an error."""
    try:
        decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=256 << 20)
        found = decompressor.decompress(data, max_length=limit + 1)
        whole = decompressor.eof and not decompressor.unused_data
    except lzma.LZMAError as error:
        raise DataError(f"cannot be unpacked: {error}", hint=AGAIN) from None
    if len(found) > limit or not whole:
        raise DataError("cannot be unpacked: it is not as long as it should be", hint=AGAIN)
    return found


def symbols(ids: NDArray[np.uint32], ends: NDArray[np.uint32], documents: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The row of symbols of a shard.

    >>> symbols(np.array([7, 8, 9], np.uint32), np.array([2, 3], np.uint32), np.array([0], np.uint32)).tolist()
    [0, 7, 8, 1, 9, 1]
    """
    row = np.empty(len(ids) + len(ends) + len(documents), dtype=np.uint32)
    sentences = np.arange(len(ends))
    before = sentences + np.searchsorted(documents, sentences, side="right")  # boundaries before a sentence's words
    is_word = np.ones(len(row), dtype=bool)
    at_end = ends.astype(np.int64) + before
    lengths = np.diff(ends.astype(np.int64), prepend=0)
    at_document = (at_end - lengths)[documents.astype(np.int64)] - 1
    row[at_end], row[at_document] = _SENTENCE_END, _DOCUMENT
    is_word[at_end] = is_word[at_document] = False
    row[is_word] = ids
    return row


def shard_of(row: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
    """Ids, ends and documents again."""
    is_word, is_end = row > _SENTENCE_END, row == _SENTENCE_END
    ends = np.cumsum(is_word, dtype=np.uint32)[is_end]
    documents = np.cumsum(is_end, dtype=np.uint32)[row == _DOCUMENT]
    return row[is_word], ends, documents


def encoded(row: NDArray[np.uint32]) -> bytes:
    """Symbols as bytes.

    >>> encoded(np.array([5, 300], np.uint32)).hex(" ")
    '05 82 2c'
    """
    sizes = np.ones(len(row), dtype=np.int64)
    for size in range(1, _LONGEST):
        sizes += row >= (1 << 7 * size)
    ends = np.cumsum(sizes)
    data = np.zeros(int(ends[-1]) if len(row) else 0, dtype=np.uint8)
    for back in range(int(sizes.max(initial=1))):  # the last byte of each symbol, the one before it, ...
        has = sizes > back
        data[ends[has] - 1 - back] = (row[has] >> np.uint32(7 * back)) & np.uint32(127) | (128 if back else 0)
    return data.tobytes()


def decoded(data: bytes) -> NDArray[np.uint32]:
    """Symbols again.

    >>> decoded(bytes.fromhex("05 82 2c")).tolist()
    [5, 300]
    """
    row = np.frombuffer(data, dtype=np.uint8)
    last = np.flatnonzero(row < 128)
    sizes = np.diff(last, prepend=-1)
    if len(row) and (not len(last) or last[-1] != len(row) - 1 or sizes.max() > _LONGEST):
        raise DataError("cannot be unpacked: its bytes are no symbols", hint=AGAIN)
    found = row[last].astype(np.uint32)
    for back in range(1, int(sizes.max(initial=1))):
        has = sizes > back
        found[has] |= (row[last[has] - back] & np.uint8(127)).astype(np.uint32) << np.uint32(7 * back)
    return found
