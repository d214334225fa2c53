"""Two calls of a kernel at once, for what is too short to be handed to another thread by way of Python."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Thread

from numpy.typing import NDArray

from elmofire.engine.compiled import Kernels
from elmofire.engine.compiled.calls import Call, address, aligned_bytes
from elmofire.formats.weights import Array


class Companion:
    """A thread inside the library, which never needs the interpreter's lock, makes every second call.

    If it is busy with another caller's, or does not wake in time, the caller makes both. It is started when first needed, again after a
    fork, and ends with this object.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._memories: dict[int, NDArray] = {}  # by process

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
        self._kernels.both(address(self._memory()), first.kernel.number, first.address, second.address)

    def _memory(self) -> NDArray:
        """Where the thread looks for calls."""
        process = os.getpid()
        if (memory := self._memories.get(process)) is None:
            new = aligned_bytes(self._kernels.companion_bytes())
            self._kernels.companion_ready(address(new))
            memory = self._memories.setdefault(process, new)
            if memory is new:  # and not one that another thread was first with
                thread = Thread(target=_wait, args=(self._kernels, new), name="elmofire_companion", daemon=True)
                with suppress(
                    RuntimeError
                ):  # the system gives no more: no call is taken then, and the caller makes all
                    thread.start()
        return memory

    def __del__(self, process: Callable[[], int] = os.getpid) -> None:
        memory = self._memories.get(process())  # not a copy of what a process had from which this one was forked
        if memory is not None:
            self._kernels.companion_end(address(memory))


def _wait(kernels: Kernels, memory: NDArray) -> None:
    kernels.companion_wait(address(memory))  # the memory is this thread's too, as long as it is there
