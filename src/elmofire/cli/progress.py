"""How far a long command is, on stderr: a line that moves in a terminal, one now and then in a log."""

import sys
import time
from collections.abc import Callable

from elmofire.terminal import MovingLine, clock_time, counted, is_terminal


class Progress:
    """Sentences and tokens done, tokens per second, and the time left where the total is known.

    `total` is asked for it whenever a line is shown: it may still be an estimate. With `data_on_stdout`, a terminal that shows the data
    as they come gets no moving line in the middle of them.
    """

    def __init__(self, *, total: Callable[[], int | None] | None, quiet: bool, data_on_stdout: bool = False) -> None:
        self._total = total
        self._shows = not (data_on_stdout and is_terminal(sys.stdout))
        self._line = MovingLine(quiet=quiet)
        self._start = self._shown = time.monotonic()
        self.sentences = self.tokens = self._made = 0

    def __call__(self, sentences: int, tokens: int) -> None:
        """Count what a batch added."""
        self.sentences += sentences
        self.tokens += tokens
        if tokens:  # sentences without tokens cost nothing, those of an earlier run neither
            self._made += sentences
        now = time.monotonic()
        if self._shows and now - self._shown >= self._line.pause:
            self._shown = now
            self._line.show(self.line())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / max(self.seconds, 1e-9)

    def line(self) -> str:
        text = f"{counted(self.sentences, 'sentence')}, {counted(self.tokens, 'token')}, {self.rate:,.0f} tokens/s"
        total = self._total() if self._total and self._made else None
        if total:
            left = max(total - self.sentences, 0) * self.seconds / self._made
            text += f", {100 * min(self.sentences / total, 1):.0f}%, {clock_time(left)} left"
        return text

    def note(self, text: str) -> None:
        """Say something on a line of its own."""
        self._line.say(text)

    def clear(self) -> None:
        """Leave no moving line behind."""
        self._line.clear()
