"""Threads that stay: kernels release the interpreter's lock, so threads of one process use all cores on one copy of the weights."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from elmofire.formats.weights import Array

A = TypeVar("A")
T = TypeVar("T")

# Runs independent calls, perhaps in parallel, and returns their results in order.
AtOnce = Callable[[Iterable[Callable[[], Array]]], list[Array]]

_Tasks = SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]  # None: no more


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def one_by_one(calls: Iterable[Callable[[], Array]]) -> list[Array]:
    """Calls that could be made at once, made on the calling thread alone."""
    return [call() for call in calls]


class Workers:
    """So many threads, started when first needed, and anew in a process that was forked off; they end with this object.

    They are daemons, which an executor's are not: a direction of a million tokens takes minutes, and an interrupted program should
    not wait for it.

    >>> Workers(2).map(abs, [-1, 2, -3])
    [1, 2, 3]
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._tasks: dict[
            int, _Tasks
        ] = {}  # by process: no lock, which could be held for ever where a process was forked

    def start(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have a thread call the function."""
        future: Future[T] = Future()
        self._running().put((future, function, arguments))
        return future

    def map(self, function: Callable[[A], T], items: Iterable[A]) -> list[T]:
        """The function of every item, the first one's on the calling thread."""
        first, *others = items
        futures = [self.start(function, item) for item in others]
        return [function(first), *[future.result() for future in futures]]

    def _running(self) -> _Tasks:
        process = os.getpid()
        if (tasks := self._tasks.get(process)) is None:
            new: _Tasks = SimpleQueue()
            tasks = self._tasks.setdefault(process, new)
            if tasks is new:  # and not one that another thread was first with
                self._start_threads(new)
        return tasks

    def _start_threads(self, tasks: _Tasks) -> None:
        for number in range(self._threads):
            try:
                Thread(target=_work, args=(tasks,), name=f"elmofire_{number}", daemon=True).start()
            except RuntimeError:  # the system gives no more; fewer do the same
                if number == 0:
                    del self._tasks[os.getpid()]  # or tasks would wait there for nobody
                    raise
                return

    def __del__(self) -> None:
        for tasks in self._tasks.values():
            for _ in range(self._threads):
                tasks.put(None)


def _work(tasks: _Tasks) -> None:
    while task := tasks.get():
        future, function, arguments = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # it belongs to whoever asks for the result
                future.set_exception(error)
        del task, future, function, arguments  # which should not outlive their use while this thread waits
