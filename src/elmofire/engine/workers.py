"""Threads that stay: kernels release the interpreter's lock, so threads of one process use all cores on one copy of the weights."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

A = TypeVar("A")
T = TypeVar("T")


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """So many threads, started when first needed, and anew in a process that was forked off."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = Lock()
        self._process = 0
        self._executor: ThreadPoolExecutor | None = None

    def start(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have a thread call the function."""
        return self._running().submit(function, *arguments)

    def map(self, function: Callable[[A], T], items: Iterable[A]) -> list[T]:
        """The function of every item, the first one's on the calling thread."""
        first, *others = items
        futures = [self.start(function, item) for item in others]
        return [function(first), *[future.result() for future in futures]]

    def _running(self) -> ThreadPoolExecutor:
        if self._executor is None or self._process != os.getpid():
            with self._lock:
                if self._executor is None or self._process != os.getpid():
                    self._executor = ThreadPoolExecutor(self._threads, "elmofire")
                    self._process = os.getpid()
        return self._executor
