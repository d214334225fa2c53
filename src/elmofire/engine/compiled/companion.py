"""Two calls of a kernel at once, for what is too short to be handed to another thread by way of Python."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock, Thread
from typing import NamedTuple

from numpy.typing import NDArray

from elmofire.engine.compiled import Kernels
from elmofire.engine.compiled.calls import Call, address, room
from elmofire.formats.weights import Array


class _Waiting(NamedTuple):
    """A thread inside the library, which needs the interpreter's lock for nothing, and where it looks for calls."""

    memory: NDArray
    caller: Lock  # held by the one that it serves


class Companion:
    """A thread that makes every second call; whoever finds it taken, or not awake in time, makes both.

    It is started when first needed, and anew in a process that was forked off, and ends with this object.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._waiting: dict[int, _Waiting] = {}  # by process

    def __call__(self, calls: Iterable[Callable[[], Array]]) -> list[Array]:
        """The results of all calls, two at once where two that follow each other are of one kernel."""
        results: list[Array] = []
        left = list(calls)
        while left:
            first = left.pop(0)
            second = left[0] if left else None
            if isinstance(first, Call) and isinstance(second, Call) and first.kernel is second.kernel:
                self._both(first, second)
                results += [first.result, second.result]
                del left[0]
            else:
                results.append(first())
        return results

    def _both(self, first: Call, second: Call) -> None:
        memory, caller = self._here()
        if not caller.acquire(blocking=False):
            first()
            second()
            return
        try:
            self._kernels.both(address(memory), first.kernel.number, first.address, second.address)
        finally:
            caller.release()

    def _here(self) -> _Waiting:
        process = os.getpid()
        if (waiting := self._waiting.get(process)) is None:
            new = _Waiting(room(self._kernels.companion_bytes()), Lock())
            self._kernels.companion_ready(address(new.memory))
            waiting = self._waiting.setdefault(process, new)
            if waiting is new:  # and not one that another thread was first with
                thread = Thread(target=_wait, args=(self._kernels, new.memory), name="elmofire_companion", daemon=True)
                with suppress(
                    RuntimeError
                ):  # the system gives no more: no call is taken then, and the caller makes all
                    thread.start()
        return waiting

    def __del__(self, process: Callable[[], int] = os.getpid) -> None:
        if waiting := self._waiting.get(process()):  # not a copy of what a process had from which this one was forked
            self._kernels.companion_end(address(waiting.memory))


def _wait(kernels: Kernels, memory: NDArray) -> None:
    kernels.companion_wait(address(memory))  # the memory is this thread's too, as long as it is there
