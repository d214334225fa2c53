"""The words a model knows by name: one a line in `vocab.txt`, the line's number is the word's id."""

import gzip
import warnings
import zlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from elmofire.errors import InputError, ModelError

UNKNOWN = ("<UNK>", "<oov>")  # of 2018's models, of ELMoForManyLangs'
BLANK = "\u3000"  # the one word of white space alone, of ELMoForManyLangs: an empty line means it there
_NOT_A_WORD = "!!!MAXTERMID"  # old files hold this line; it takes no id
_MAX_BYTES = 128 << 20  # unpacked; the 800,000 words of the published models take 8 MB


class Vocabulary:
    """Words and their ids. The order is the file's; a word that stands twice has its last id, as it did in 2018.

    >>> words = Vocabulary(["<S>", "</S>", "<UNK>", "cat"])
    >>> words.ids(["cat", "dog"])
    [3, 2]
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words: list[str] = list(words)
        self._ids = {word: number for number, word in enumerate(self.words)}
        # The id that stands for all words not listed.
        self.unknown: int | None = next((self._ids[name] for name in UNKNOWN if name in self._ids), None)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def id(self, word: str) -> int:
        """The word's id, or that of the unknown word."""
        number = self._ids.get(word, self.unknown)
        if number is None:
            raise InputError(
                f"the word {word!r} is not in the model's vocabulary, which has no {UNKNOWN[0]}",
                hint=f"add a line {UNKNOWN[0]} to vocab.txt if the model was trained with one",
            )
        return number

    def ids(self, words: Sequence[str]) -> list[int]:
        return [self.id(word) for word in words]

    @property
    def repeated(self) -> int:
        """How many lines repeat a word that stands elsewhere too."""
        return len(self.words) - len(self._ids)


def read_vocabulary(path: Path) -> Vocabulary:
    """Read `vocab.txt` or `vocab.txt.gz`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ModelError(f"{path}: more than {_MAX_BYTES:,} bytes are too many for a vocabulary")
        vocabulary = Vocabulary(_words(data))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ModelError(f"{path}:{line}: the vocabulary is not utf-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ModelError(f"{path}: the vocabulary cannot be unpacked: {error}") from None
    except OSError as error:
        raise ModelError(f"{path}: the vocabulary cannot be read: {error.strerror}") from None
    if not any(vocabulary.words):
        raise ModelError(f"{path}: the vocabulary is empty", hint="one word a line, as the model was trained with")
    if vocabulary.repeated:
        warnings.warn(
            f"{path}: {vocabulary.repeated} repeated lines; a repeated word has the id of its last line, as in 2018",
            stacklevel=2,
        )
    return vocabulary


def write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Write `vocab.txt`; what would not be read back as it is, such as a word with a line break in it, is an error."""
    data = "".join(f"{word}\n" for word in vocabulary.words).encode(errors="replace")
    back = _words(data)
    if BLANK in vocabulary.words and "" not in vocabulary.words:
        back = [word or BLANK for word in back]
    if back != vocabulary.words or not any(back):
        wrong = next((word for word, read in zip_longest(vocabulary.words, back) if word != read), "")
        raise ModelError(
            f"{path.name}: the word {wrong!r} cannot stand there",
            hint="one word a line, in utf-8, without space around it",
        )
    path.write_bytes(data)


def _words(data: bytes) -> list[str]:
    text = data.decode("utf-8-sig")
    if "\r" in text:  # all kinds of line ends, as in 2018
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.removesuffix("\n").split("\n") if text else []
    return [word for line in lines if (word := line.strip()) != _NOT_A_WORD]
