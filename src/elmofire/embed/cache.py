"""Vectors of tokens already seen: without context they never change, and most of a text is words seen before."""

import sys
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from elmofire.formats.weights import Array

_ENTRY_OVERHEAD = 250  # bytes of dictionary, links and array header per entry, measured on CPython 3.11


class VectorCache:
    """Token -> its layer-0 vector; the least recently used go when `limit` bytes are full."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._vectors: OrderedDict[str, Array] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._vectors)

    def find(self, tokens: Sequence[str]) -> list[Array | None]:
        with self._lock:
            found = [self._vectors.get(token) for token in tokens]
            for token, vector in zip(tokens, found, strict=True):
                if vector is not None:
                    self._vectors.move_to_end(token)
        return found

    def add(self, tokens: Sequence[str], vectors: Array) -> None:
        with self._lock:
            for token, vector in zip(tokens, vectors, strict=True):
                if token not in self._vectors:
                    self._vectors[token] = vector.copy()  # a row of its own, or the whole table would stay alive
                    self.used += self._size(token, vector)
            while self.used > self.limit and self._vectors:
                token, vector = self._vectors.popitem(last=False)
                self.used -= self._size(token, vector)

    @staticmethod
    def _size(token: str, vector: Array) -> int:
        return vector.nbytes + sys.getsizeof(token) + _ENTRY_OVERHEAD
