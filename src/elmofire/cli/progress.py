"""How far a long command is, on stderr: a line that moves in a terminal, one now and then in a log."""

import os
import sys
import time

import click


class MovingLine:
    """A line on stderr that is written over, where there is a terminal."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self._width = 0

    def show(self, text: str) -> None:
        """Write over the last one; without a terminal, a line of its own."""
        if not self.terminal:
            click.echo(text, err=True)
            return
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # some terminals do not know
        text = text[: max(width - 1, 1)]
        filled = text.ljust(self._width)
        self._width = len(text)  # before it is there: Ctrl-C may come in between, and what is there must be known
        click.echo("\r" + filled, err=True, nl=False)

    def clear(self) -> None:
        """Leave no moving line behind."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)
            self._width = 0


class Progress:
    """Sentences and tokens done, tokens per second, and the time left where the total is known."""

    def __init__(self, *, total: int | None, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._line = MovingLine()
        self._pause = 0.2 if self._line.terminal else 10.0
        self._start = self._shown = time.monotonic()
        self.sentences = self.tokens = self._made = 0

    def __call__(self, sentences: int, tokens: int) -> None:
        """Count what a batch added."""
        self.sentences += sentences
        self.tokens += tokens
        self._made += (
            sentences if tokens else 0
        )  # sentences without tokens cost nothing, those of an earlier run neither
        now = time.monotonic()
        if not self._quiet and now - self._shown >= self._pause:
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
        if self._total and self._made:
            left = max(self._total - self.sentences, 0) * self.seconds / self._made
            text += f", {100 * self.sentences / self._total:.0f}%, {clock_time(left)} left"
        return text

    def note(self, text: str) -> None:
        """Say something on a line of its own."""
        self._line.clear()
        if not self._quiet:
            click.echo(text, err=True)

    def clear(self) -> None:
        """Leave no moving line behind."""
        self._line.clear()


def counted(number: int, thing: str) -> str:
    """
    >>> counted(1, "sentence"), counted(2000, "sentence")
    ('1 sentence', '2,000 sentences')
    """
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def clock_time(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
