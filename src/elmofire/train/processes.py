"""Functions called in other processes, in order, with few calls under way at a time.

Plain child processes on pipes, not multiprocessing: they need no `if __name__ == "__main__"` in the caller's script, and end by
themselves when the parent is killed.
"""

import contextlib
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import IO, Any, TypeVar

from elmofire.engine.workers import usable_cores

Result = TypeVar("Result")

_PROGRAM = "import sys; sys.path[:] = {path!r}; from elmofire.train.processes import serve; serve()"


class Processes:
    """So many processes, by default one a core; with one, everything runs right here.

    >>> with Processes(1) as processes:
    ...     list(processes.map(len, [("ab",), ("c",)]))
    [2, 1]
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count or usable_cores()
        self._idle: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()
        self._started: list[subprocess.Popen[bytes]] = []
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> "Processes":
        if self.count > 1:
            self._threads = ThreadPoolExecutor(self.count, initializer=_survive_closed_pipes)
            command = [sys.executable, "-c", _PROGRAM.format(path=sys.path)]
            for _ in range(self.count):
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
                self._started.append(process)
                self._idle.put(process)
        return self

    def map(self, function: Callable[..., Result], calls: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """The results, in the calls' order; a call is taken from the iterable when a process will soon be free for it."""
        if self._threads is None:
            for call in calls:
                yield function(*call)
            return
        waiting: deque[Future[Result]] = deque()
        for call in calls:
            waiting.append(self._threads.submit(self._call, function, call))
            if len(waiting) > 2 * self.count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _call(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        process = self._idle.get()
        assert process.stdin is not None  # both are pipes
        assert process.stdout is not None
        try:
            request = memoryview(pickle.dumps((function, arguments), protocol=5))
            while request:
                request = request[process.stdin.write(request) :]
            size = int.from_bytes(_read(process.stdout, 8), "little")
            failed, result = pickle.loads(_read(process.stdout, size))  # of our own child
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise ChildProcessError("a worker process ended: was it killed, or is memory short?") from None
        finally:
            self._idle.put(process)
        if failed:
            raise result
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started if kind else []:
            process.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for process in self._started:
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(OSError):
                    pipe.close()
            process.wait()


def _read(pipe: IO[bytes], size: int) -> bytes:
    """So many bytes of an unbuffered pipe: a buffered one would write to a dead child once more when it is closed."""
    data = bytearray()
    while len(data) < size:
        chunk = pipe.read(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def _survive_closed_pipes() -> None:
    """Writing to a dead child is an error here, though the command ends quietly when its own reader goes away."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])


def serve() -> None:
    """A child's life: calls from stdin, results to stdout, until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends its children
    calls, results = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            function, arguments = pickle.load(calls)
        except EOFError:
            return
        try:
            answer = (False, function(*arguments))
        except Exception as error:
            answer = (True, error)
        data = pickle.dumps(answer, protocol=5)
        with contextlib.suppress(BrokenPipeError):
            results.write(len(data).to_bytes(8, "little") + data)
            results.flush()
