"""What is worked out once for each epoch, the next one while this one is read."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Epochs(Generic[T]):
    """`make(epoch)`, remembered for the epoch last asked for and made ahead for the one after it."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._made: dict[int, Future[T]] = {}
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="epochs")

    def get(self, epoch: int) -> T:
        with self._lock:
            for number in (epoch, epoch + 1):
                if number not in self._made:
                    self._made[number] = self._thread.submit(self._make, number)
            self._made = {number: self._made[number] for number in (epoch, epoch + 1)}
            future = self._made[epoch]
        return future.result()
