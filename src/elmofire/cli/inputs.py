"""What commands read: files one after the other, or stdin."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from elmofire.cli.options import LINES, SPLIT
from elmofire.errors import InputError
from elmofire.terminal import is_terminal

if TYPE_CHECKING:
    from elmofire.cli.progress import Progress
    from elmofire.embed.embedder import Embedder

# Lines are said to hold several sentences where a quarter of the first seem to. Of twenty lines of a treebank hardly ever so many do, of
# twenty paragraphs of Wikipedia or a novel nearly always.
_LINES_LOOKED_AT = 20
_CHARACTERS_LOOKED_AT = 10_000  # of each, as lines may be long


class Inputs:
    """The files to read, or stdin as `-`."""

    def __init__(
        self,
        files: tuple[str, ...],
        input_format: str,
        *,
        pretokenized: bool,
        sentences: str = LINES,
        blank_lines: bool = True,
    ) -> None:
        """`sentences` says whether each line is one, or is split into its own. Without `blank_lines`, those without tokens are left out."""
        for file in files:
            if file.lower().endswith((".hdf5", ".h5", ".npz", ".safetensors")):
                raise InputError(f"{file}: is not text", hint=f"to write vectors to it: --output {file}")
        _check_they_open(files)
        self._files = files
        self._format = input_format
        self._pretokenized = pretokenized
        self._split = sentences == SPLIT
        self._blank_lines = blank_lines
        self._all_there = all(Path(file).is_file() for file in files)
        self._sizes = [Path(file).stat().st_size for file in files] if self._all_there else []
        self._files_read = 0
        self._being_read: BinaryIO | None = None
        self.read = [0, 0]  # sentences and tokens so far

    def sentences(self, elmo: "Embedder", progress: "Progress") -> Iterator[list[str]]:
        """One file after the other, as token lists: files may mix text and tokens. Files without any sentence are an error."""
        if "-" in self._files and is_terminal(sys.stdin):
            each = "" if self._split else ", one sentence a line"
            progress.note(f"reading from the terminal{each}; end with Ctrl-D")
        looked_at: list[bool] = []  # whether a line seems to hold several sentences
        language = elmo.tokenizer_info.language
        for line in self._lines():
            if len(looked_at) < _LINES_LOOKED_AT and self._may_hold_several(line):
                looked_at.append(_seems_several(line, language))
                if len(looked_at) == _LINES_LOOKED_AT:
                    _note_paragraphs(looked_at, progress)
            for tokens in self._tokens(line, elmo):
                if tokens or self._blank_lines:
                    self.read = [self.read[0] + 1, self.read[1] + len(tokens)]
                    yield tokens
        if 0 < len(looked_at) < _LINES_LOOKED_AT:
            _note_paragraphs(looked_at, progress)
        if not self.read[0]:
            named = ", ".join("<stdin>" if file == "-" else file for file in self._files)
            raise InputError(f"{named}: there are no sentences in it")
        if not self.read[1]:
            progress.note("note: all lines are blank")

    def expected(self) -> int | None:
        """How many sentences there are, judged by those so far and the share of bytes they took; None while nothing tells."""
        if not self._sizes:
            return None
        file = self._being_read
        done = sum(self._sizes[: self._files_read]) + (file.tell() if file and not file.closed else 0)
        return round(self.read[0] * sum(self._sizes) / done) if done else None

    def stamp(self) -> str | None:
        """What tells this input apart from another; None for what cannot be read twice."""
        from elmofire.text.sentences import VERSION

        if not self._all_there:
            return None
        stats = [(str(Path(file).absolute()), Path(file).stat()) for file in self._files]
        found = [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
        return json.dumps([self._format, self._pretokenized, VERSION if self._split else None, found])

    def _lines(self) -> Iterator[str | list[str]]:
        """Lines of text, or sentences where files or `pretokenized` give tokens."""
        from elmofire.text.readers import read_sentences

        pretokenized = self._pretokenized and not self._split  # what is split has to be text
        for file in self._files:
            yield from read_sentences(file, format=self._format, pretokenized=pretokenized, opened=self._begin)
            self._files_read += 1

    def _begin(self, file: BinaryIO) -> None:
        self._being_read = file

    def _tokens(self, line: str | list[str], elmo: "Embedder") -> Iterator[list[str]]:
        """The sentences of a line."""
        if isinstance(line, list):
            yield line
        elif not self._split:
            yield elmo.words(line)
        else:
            from elmofire.text.sentences import split_sentences

            for sentence in split_sentences(line, elmo.tokenizer_info.language):
                yield sentence.split() if self._pretokenized else elmo.words(sentence)

    def _may_hold_several(self, line: str | list[str]) -> bool:
        """Whoever made lists of tokens knew what a sentence is, and what is empty holds none."""
        return not self._split and bool(line) and (self._pretokenized or isinstance(line, str))


def _check_they_open(files: tuple[str, ...]) -> None:
    """Checked before anything is done. A pipe can be opened only once, so it is left to the reader."""
    for file in files:
        path = Path(file)
        if file == "-" or path.is_fifo():
            continue
        try:
            path.open("rb").close()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            hint = ""
            if path.is_dir():
                hint = "name the files in it"
            elif isinstance(error, FileNotFoundError) and (" " in file or not path.suffix):
                command = click.get_current_context().info_name
                hint = f"arguments are names of files; text comes through a pipe: echo {shlex.quote(' '.join(files))} | elmofire {command}"
            raise InputError(f"{file}: cannot be opened: {reason}", hint=hint) from None


def _seems_several(line: str | list[str], language: str) -> bool:
    from elmofire.text.sentences import split_sentences

    text = line if isinstance(line, str) else " ".join(line[:_CHARACTERS_LOOKED_AT])
    return len(split_sentences(text[:_CHARACTERS_LOOKED_AT], language)) > 1


def _note_paragraphs(looked_at: list[bool], progress: "Progress") -> None:
    if 4 * sum(looked_at) < len(looked_at):
        return
    lines = f"{sum(looked_at)} of the first {len(looked_at)} lines seem" if len(looked_at) > 1 else "the line seems"
    progress.note(
        f"note: {lines} to hold several sentences, but each line is read as one; "
        "--sentences split finds the sentences, which makes vectors and figures better"
    )


def note_truncated(elmo: "Embedder") -> None:
    """Say on stderr how many tokens were too long for the model."""
    if elmo.truncated:
        limit = elmo.config.encoder.max_characters - 2
        were = "token was" if elmo.truncated == 1 else "tokens were"
        click.echo(
            f"note: {elmo.truncated:,} {were} longer than {limit} bytes; the model reads the beginning", err=True
        )
