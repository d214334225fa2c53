"""Work in a thread of its own, while its results are used and what comes next is read.

What is read stays in the caller's thread: a generator over a database or a socket may belong to it. So does what is done with the results.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Queue, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

_WAITING = 2  # results that may lie about until they are taken; more would only be memory


class _Failure(NamedTuple):
    error: BaseException


class _End:
    """Of what was made of one thing, or of everything."""


_END = _End()


class Background(Generic[Given, Made]):
    """A thread that makes results out of what it is given, one after the other."""

    def __init__(self, make: Callable[[Given], Iterable[Made]]) -> None:
        self._make = make
        self._given: SimpleQueue[Given | _End] = SimpleQueue()
        self._made: Queue[Made | _Failure | _End] = Queue(_WAITING)
        self._stopped = False
        # A daemon: what it is in the middle of cannot be broken off, and an interrupted program should not wait for it.
        Thread(target=self._work, name="elmofire", daemon=True).start()

    def __enter__(self) -> "Background[Given, Made]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The thread ends with the result that it is at; nobody waits for it."""
        self._stopped = True
        self._given.put(_END)
        while not self._made.empty():  # it may be waiting to get one in
            self._made.get()

    def give(self, given: Given) -> None:
        self._given.put(given)

    def made(self) -> Iterator[Made]:
        """The results of the oldest thing given whose results were not asked for yet. An error that came up in between is raised here."""
        while not isinstance(made := self._made.get(), _End):
            if isinstance(made, _Failure):
                raise made.error
            yield made
            del made  # a pool of vectors, which should not outlive its use

    def _work(self) -> None:
        try:
            while not isinstance(given := self._given.get(), _End):
                for made in self._make(given):
                    self._made.put(made)
                    del made
                    if self._stopped:
                        return
                del given
                self._made.put(_END)
        except BaseException as error:  # it belongs to the caller, KeyboardInterrupt and all
            self._made.put(_Failure(error))


def overlapped(
    make: Callable[[Given], Iterable[Made]], things: Iterable[tuple[Given, bool]]
) -> Iterator[tuple[Given, Iterator[Made]]]:
    """Each thing with what is made of it, in order; the next one is read, and in work, before the results are handed out.

    `things` yields each with whether it is known to be the last: a single one needs no thread. Results that were not taken when the next
    thing is asked for are dropped.

    >>> [(number, list(made)) for number, made in overlapped(range, [(2, False), (3, True)])]
    [(2, [0, 1]), (3, [0, 1, 2])]
    """
    things = iter(things)
    first, last = next(things, (None, True))
    if first is None:
        return
    if last:
        yield first, iter(make(first))
        return
    with Background(make) as background:
        background.give(first)
        for thing, _ in things:
            background.give(thing)
            yield first, (made := background.made())
            deque(made, maxlen=0)
            first = thing
        yield first, background.made()
