"""The one line on stderr that says how far something is: of commands, and of models that are downloaded."""

import os
import sys
from typing import TextIO


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody may look at a stream, or type into it; None is one that was closed before the program began."""
    return stream is not None and stream.isatty()


class MovingLine:
    """A line on stderr that is written over; where stderr is no terminal, each text is a line of its own."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.terminal = is_terminal(sys.stderr)
        self.pause = 0.2 if self.terminal else 10.0  # seconds between two texts
        self._quiet = quiet
        self._width = 0

    def show(self, text: str) -> None:
        """Write over the text that stands there."""
        if not self.terminal:
            self.say(text)
        elif not self._quiet:
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # some terminals do not know
            text = text[: max(width - 1, 1)]
            filled = text.ljust(self._width)
            self._width = len(text)  # before it is there: Ctrl-C may come in between, and what is there must be known
            _write("\r" + filled)

    def say(self, *lines: str) -> None:
        """Lines that stay."""
        self.clear()
        if not self._quiet:
            _write("".join(f"{line}\n" for line in lines))

    def clear(self) -> None:
        """Leave no moving line behind."""
        if self._width:
            _write("\r" + " " * self._width + "\r")
            self._width = 0


def counted(number: int, thing: str) -> str:
    """How many there are, in words.

    >>> counted(1, "sentence"), counted(2000, "sentence")
    ('1 sentence', '2,000 sentences')
    """
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def clock_time(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any.

    >>> clock_time(65.4), clock_time(7325)
    ('1:05', '2:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
