"""Updates made ahead of their use, by threads, in exact order."""

import threading
import time
from collections.abc import Iterator
from typing import Any

from elmofire.train.stream.batch import Update
from elmofire.train.stream.stream import Stream


class Feed(Iterator[Update]):
    """The updates of a stream, up to `ahead` of them ready before they are asked for; plans are made in order, updates in parallel.

    `waited` are the seconds for which updates were asked for and not ready. An error comes where its update would. Close it, or use
    it as a context, so that its threads end.
    """

    def __init__(
        self, stream: Stream, position: dict[str, Any] | None = None, ahead: int = 8, threads: int = 2
    ) -> None:
        self.waited = 0.0
        self._stream = stream
        self._plans = stream.plans(position)
        self._ahead = ahead
        self._planning = threading.Lock()
        self._changed = threading.Condition()
        self._ready: dict[int, Update | Exception] = {}
        self._planned = self._taken = 0
        self._closed = self._failed = False
        self._threads = [threading.Thread(target=self._work, name=f"feed-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Update:
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._taken in self._ready)
            if self._closed:
                raise StopIteration
            update = self._ready.pop(self._taken)
            self._taken += 1
            self._changed.notify_all()
        self.waited += time.perf_counter() - began
        if isinstance(update, Exception):
            self.close()
            raise update
        return update

    def close(self) -> None:
        """End the threads; what they have made is given up."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def _ended(self) -> bool:
        return self._closed or self._failed

    def _work(self) -> None:
        while True:
            with self._planning:
                with self._changed:
                    self._changed.wait_for(lambda: self._ended or self._planned - self._taken < self._ahead)
                    if self._ended:
                        return
                    number = self._planned
                try:
                    plan = next(self._plans)
                except Exception as error:
                    self._failed = True
                    self._put(number, error)
                    return
                with self._changed:
                    self._planned += 1
            try:
                update = self._stream.build(plan)
            except Exception as error:
                update = error
            self._put(number, update)

    def _put(self, number: int, update: Update | Exception) -> None:
        with self._changed:
            self._ready[number] = update
            self._changed.notify_all()
