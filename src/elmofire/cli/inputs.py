"""What commands read: files one after the other, or stdin."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmofire.errors import InputError

if TYPE_CHECKING:
    from elmofire.embed.embedder import Embedder


class Inputs:
    """The files to read, or stdin as `-`."""

    def __init__(self, files: tuple[str, ...], input_format: str, pretokenized: bool) -> None:
        for file in files:
            if file.endswith((".hdf5", ".h5", ".npz", ".safetensors")):
                raise InputError(f"{file}: is no text", hint=f"is it where vectors should go? then --output {file}")
        self._files = files
        self._format = input_format
        self._pretokenized = pretokenized
        self._all_there = all(Path(file).is_file() for file in files)
        self.read = [0, 0]  # sentences and tokens so far

    def sentences(self, elmo: "Embedder") -> Iterator[list[str]]:
        """One file after the other, as token lists: files may mix text and tokens."""
        from elmofire.text.readers import read_sentences

        for file in self._files:
            for sentence in read_sentences(file, format=self._format, pretokenized=self._pretokenized):
                tokens = elmo.words(sentence) if isinstance(sentence, str) else sentence
                self.read = [self.read[0] + 1, self.read[1] + len(tokens)]
                yield tokens

    def count(self) -> int | None:
        """How many sentences there are, where that can be known before reading them."""
        from elmofire.text.readers import read_sentences

        if not self._all_there:
            return None
        return sum(1 for file in self._files for _ in read_sentences(file, format=self._format, pretokenized=True))

    def stamp(self) -> str | None:
        """What tells this input apart from another; None for what cannot be read twice."""
        if not self._all_there:
            return None
        stats = [(str(Path(file).absolute()), Path(file).stat()) for file in self._files]
        return json.dumps(
            [self._format, self._pretokenized, [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]]
        )


def note_truncated(elmo: "Embedder") -> None:
    """Say on stderr how many tokens the model has read the beginning of only."""
    if elmo.truncated:
        limit = elmo.config.encoder.max_characters - 2
        click.echo(
            f"note: {elmo.truncated:,} tokens were longer than {limit} bytes; the model reads their beginning", err=True
        )
