"""Vectors of tokens already seen: without context they never change, and most of a text is words seen before."""

import os
import sys
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from weakref import WeakSet

import numpy as np

from elmofire.formats.weights import Array

# Bytes of dictionary, links and number: 126 on CPython 3.11, more where the dictionary has just grown.
_ENTRY_OVERHEAD = 150
_SMALLEST_TOKEN = sys.getsizeof("")


class VectorCache:
    """Token -> its layer-0 vector, a row of one table; the least recently used go when `limit` bytes are full."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._start()
        _caches.add(self)

    def _start(self) -> None:
        self.used = 0
        self._rows: OrderedDict[str, int] = OrderedDict()
        self._free: list[int] = []  # rows that tokens have left
        self._table: Array | None = None
        self._lock = Lock()

    def forked(self) -> None:
        """In a forked process: if another thread held the lock at that moment, the cache starts empty, since the lock stays locked here."""
        if self._lock.locked():
            self._start()

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, tokens: Sequence[str], vectors: Array) -> list[int]:
        """Fill in the vectors (tokens, E) that are known -> the places of the others, whose rows are left with any content."""
        with self._lock:
            if self._table is None:
                return list(range(len(tokens)))
            rows = [self._rows.get(token, -1) for token in tokens]
            missing = [place for place, row in enumerate(rows) if row < 0]
            if len(missing) < len(tokens):
                # What clipping makes of -1 is written over later; other modes would make a copy first.
                np.take(self._table, rows, axis=0, out=vectors, mode="clip")
                for token, row in zip(tokens, rows, strict=True):
                    if row >= 0:
                        self._rows.move_to_end(token)
        return missing

    def add(self, tokens: Sequence[str], vectors: Array) -> None:
        row_bytes = vectors.shape[1] * vectors.itemsize + _ENTRY_OVERHEAD
        with self._lock:
            if self._table is None:
                # As large as it can ever get: the system gives memory to the rows that are written, not before.
                most = self.limit // (row_bytes + _SMALLEST_TOKEN)
                self._table = np.empty((most, vectors.shape[1]), dtype=np.float32)
            sources: list[int] = []
            rows: list[int] = []
            for source, token in enumerate(tokens):
                size = row_bytes + _token_bytes(token)
                if token in self._rows or size > self.limit:
                    continue
                while self.used + size > self.limit:
                    gone, row = self._rows.popitem(last=False)
                    self._free.append(row)
                    self.used -= row_bytes + _token_bytes(gone)
                self._rows[token] = row = self._free.pop() if self._free else len(self._rows)
                self.used += size
                sources.append(source)
                rows.append(row)
            # A row may be here twice, if tokens of this very call threw out others of it: the last one stays.
            self._table[rows] = vectors[sources]


_caches: WeakSet[VectorCache] = WeakSet()


def _forked() -> None:
    for cache in list(_caches):
        cache.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _token_bytes(token: str) -> int:
    """About what a token takes. Not `getsizeof`, which grows once a string's utf-8 is cached: a token that leaves would then count for
    more than when it came, and in the end there would be more tokens than rows."""
    return _SMALLEST_TOKEN + len(token) * (1 if token.isascii() else 4)
