"""What commands read: files one after the other, or stdin."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmofire.errors import InputError

if TYPE_CHECKING:
    from elmofire.cli.progress import Progress
    from elmofire.embed.embedder import Embedder

# Whether lines hold several sentences is told by a quarter of the first: of twenty lines of a treebank it never or hardly ever is so, of
# twenty paragraphs of Wikipedia or a novel nearly always.
_LINES_LOOKED_AT = 20
_CHARACTERS_LOOKED_AT = 10_000  # of each, as lines may be long


class Inputs:
    """The files to read, or stdin as `-`."""

    def __init__(
        self, files: tuple[str, ...], input_format: str, pretokenized: bool, *, blank_lines: bool = True
    ) -> None:
        """Without `blank_lines`, sentences that have no tokens are left out."""
        for file in files:
            if file.endswith((".hdf5", ".h5", ".npz", ".safetensors")):
                raise InputError(f"{file}: is no text", hint=f"is it where vectors should go? then --output {file}")
        _check_they_open(files)
        self._files = files
        self._format = input_format
        self._pretokenized = pretokenized
        self._blank_lines = blank_lines
        self._all_there = all(Path(file).is_file() for file in files)
        self.read = [0, 0]  # sentences and tokens so far

    def sentences(self, elmo: "Embedder", progress: "Progress") -> Iterator[list[str]]:
        """One file after the other, as token lists: files may mix text and tokens. Files without any sentence are an error."""
        from elmofire.text.readers import read_sentences

        language = elmo.tokenizer_info.language
        looked_at: list[bool] = []  # whether a line seems to hold several sentences
        for file in self._files:
            for sentence in read_sentences(file, format=self._format, pretokenized=self._pretokenized):
                if len(looked_at) < _LINES_LOOKED_AT and sentence and (self._pretokenized or isinstance(sentence, str)):
                    looked_at.append(_seems_several(sentence, language))
                    if len(looked_at) == _LINES_LOOKED_AT:
                        _note_paragraphs(looked_at, language, progress)
                tokens = elmo.words(sentence) if isinstance(sentence, str) else sentence
                if not (tokens or self._blank_lines):
                    continue
                self.read = [self.read[0] + 1, self.read[1] + len(tokens)]
                yield tokens
        if 0 < len(looked_at) < _LINES_LOOKED_AT:
            _note_paragraphs(looked_at, language, progress)
        if not self.read[0]:
            named = ", ".join("<stdin>" if file == "-" else file for file in self._files)
            raise InputError(f"{named}: there are no sentences in it")

    def count(self) -> int | None:
        """How many sentences there are, where that can be known before reading them."""
        from elmofire.text.readers import read_sentences

        if not self._all_there:
            return None
        return sum(
            bool(tokens) or self._blank_lines
            for file in self._files
            for tokens in read_sentences(file, format=self._format, pretokenized=True)
        )

    def stamp(self) -> str | None:
        """What tells this input apart from another; None for what cannot be read twice."""
        if not self._all_there:
            return None
        stats = [(str(Path(file).absolute()), Path(file).stat()) for file in self._files]
        return json.dumps(
            [self._format, self._pretokenized, [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]]
        )


def _check_they_open(files: tuple[str, ...]) -> None:
    """Before anything is done. A pipe can be opened once only, so it is left to who reads it."""
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
                hint = f"files are read; a text itself comes by a pipe: echo {shlex.quote(' '.join(files))} | elmofire {command}"
            raise InputError(f"{file}: cannot be opened: {reason}", hint=hint) from None


def _seems_several(line: str | list[str], language: str) -> bool:
    from elmofire.text.sentences import split_sentences

    text = line if isinstance(line, str) else " ".join(line[:_CHARACTERS_LOOKED_AT])
    return len(split_sentences(text[:_CHARACTERS_LOOKED_AT], language)) > 1


def _note_paragraphs(looked_at: list[bool], language: str, progress: "Progress") -> None:
    if 4 * sum(looked_at) < len(looked_at):
        return
    lines = f"{sum(looked_at)} of the first {len(looked_at)} lines seem" if len(looked_at) > 1 else "the line seems"
    progress.note(
        f"note: {lines} to hold several sentences, and each line is read as one: vectors and figures are better with a line for "
        'each sentence, which this writes:\n  python -c "import sys, elmofire.text.sentences as s; '
        f"[print(one) for line in sys.stdin for one in s.split_sentences(line, '{language}')]\" < TEXT > SENTENCES"
    )


def note_truncated(elmo: "Embedder") -> None:
    """Say on stderr how many tokens the model has read the beginning of only."""
    if elmo.truncated:
        limit = elmo.config.encoder.max_characters - 2
        were = "token was" if elmo.truncated == 1 else "tokens were"
        click.echo(
            f"note: {elmo.truncated:,} {were} longer than {limit} bytes; the model reads the beginning", err=True
        )
