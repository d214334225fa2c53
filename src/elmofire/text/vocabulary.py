"""The words a model knows by name: one a line in `vocab.txt`, the line's number is the word's id."""

import gzip
import warnings
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from elmofire.errors import InputError, ModelError
from elmofire.text.characters import END, START

UNKNOWN = "<UNK>"
_NOT_A_WORD = "!!!MAXTERMID"  # old files hold this line; it takes no id


class Vocabulary:
    """Words and their ids. The order is the file's; a word that stands twice has its last id, as it did in 2018.

    >>> words = Vocabulary(["<S>", "</S>", "<UNK>", "cat"])
    >>> words.ids(["cat", "dog"])
    [3, 2]
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words: list[str] = list(words)
        self._ids = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def id(self, word: str) -> int:
        """The word's id, or that of `<UNK>`."""
        number = self._ids.get(word)
        if number is None:
            number = self._ids.get(UNKNOWN)
        if number is None:
            raise InputError(
                f"the word {word!r} is not in the model's vocabulary, which has no {UNKNOWN}",
                hint=f"add a line {UNKNOWN} to vocab.txt if the model was trained with one",
            )
        return number

    def ids(self, words: Sequence[str]) -> list[int]:
        return [self.id(word) for word in words]

    @property
    def repeated(self) -> int:
        """How many lines repeat a word that stands elsewhere too."""
        return len(self.words) - len(self._ids)

    def missing_specials(self) -> list[str]:
        """Which of the three special words the file lacks."""
        return [special for special in (START, END, UNKNOWN) if special not in self._ids]


def read_vocabulary(path: Path) -> Vocabulary:
    """Read `vocab.txt` or `vocab.txt.gz`."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ModelError(f"{path}:{line}: the vocabulary is not utf-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ModelError(f"{path}: the vocabulary cannot be unpacked: {error}") from None
    except OSError as error:
        raise ModelError(f"{path}: the vocabulary cannot be read: {error.strerror}") from None
    if lines and not lines[-1].strip():
        lines.pop()
    vocabulary = Vocabulary(word for line in lines if (word := line.strip()) != _NOT_A_WORD)
    if not any(vocabulary.words):
        raise ModelError(f"{path}: the vocabulary is empty", hint="one word a line, as the model was trained with")
    if vocabulary.repeated:
        warnings.warn(
            f"{path}: {vocabulary.repeated} repeated lines; a repeated word has the id of its last line, as in 2018",
            stacklevel=2,
        )
    return vocabulary
