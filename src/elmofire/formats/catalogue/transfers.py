"""How far a download is, on stderr: a line that moves in a terminal, one now and then in a log."""

import time

from elmofire.terminal import MovingLine, clock_time


class TransferLine:
    """Megabytes of a file, megabytes per second, and the time left where the size is known; quiet if nothing is fetched."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._line = MovingLine(quiet=quiet)
        self._file = ""
        self._first = 0
        self._start = self._last = 0.0

    def __enter__(self) -> "TransferLine":
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()

    def __call__(self, file: str, done: int, total: int | None) -> None:
        """Hear that `done` bytes of a file are here."""
        now = time.monotonic()
        if file != self._file or done < self._first:  # another file, or the same from its beginning
            self._file, self._first, self._start, self._last = file, done, now, 0.0
        if now - self._last >= self._line.pause or done == total:
            self._last = now
            self._line.show(self.line(done, total))

    def line(self, done: int, total: int | None) -> str:
        """
        >>> line = TransferLine()
        >>> line.line(1_500_000, None)
        ': 1.5 MB'
        """
        seconds = time.monotonic() - self._start
        text = f"{self._file}: {done / 1e6:,.1f}" + (f" of {total / 1e6:,.1f} MB" if total else " MB")
        if self._file and (new := done - self._first) and seconds > 0:
            text += f", {new / 1e6 / seconds:,.1f} MB/s"
            if total:
                text += f", {100 * done / total:.0f}%, {clock_time((total - done) * seconds / new)} left"
        return text

    def note(self, text: str) -> None:
        """Say something on a line of its own."""
        self._line.say(text)
