"""Tokens become rows of character ids, between two markers that say where the token starts and ends.

2018's models spell a token in its utf-8 bytes; ELMoForManyLangs' in code points, out of an alphabet of their own. In both, id 0 means
that there is no token here; the tables that models store have no row for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

START, END = "<S>", "</S>"  # the sentence boundaries of 2018's models: these two strings stand for rows of their own

BYTES = 261  # rows of the byte alphabet's table: ids 1..261
_SENTENCE_START, _SENTENCE_END, _WORD_START, _WORD_END, _PADDING = range(257, 262)


def token_bytes(token: str) -> bytes:
    """The bytes a model sees; lone surrogates have none and disappear."""
    return token.encode("utf-8", "ignore")


def character_ids(tokens: Sequence[str], max_characters: int = 50) -> NDArray[np.int32]:
    """One row of `max_characters` ids per token; bytes beyond `max_characters - 2` are cut, even inside a character.

    >>> character_ids(["cat", "</S>"], max_characters=6).tolist()
    [[259, 100, 98, 117, 260, 261], [259, 258, 260, 261, 261, 261]]
    """
    spelled = [token_bytes(token)[: max_characters - 2] for token in tokens]
    lengths = np.fromiter(map(len, spelled), dtype=np.int64, count=len(spelled))
    ids = spelled_ids(np.frombuffer(b"".join(spelled), dtype=np.uint8), lengths, max_characters)
    for row, token in enumerate(tokens):
        if token in (START, END):
            ids[row] = boundary_ids(token, max_characters)
    return ids


def spelled_ids(spelled: NDArray[np.uint8], lengths: NDArray[np.int64], max_characters: int) -> NDArray[np.int32]:
    """Rows for tokens whose bytes, `max_characters - 2` each at most, follow one another in `spelled`."""
    ids = np.full((len(lengths), max_characters), _PADDING, dtype=np.int32)
    ids[:, 0] = _WORD_START
    ids[:, 1:-1][np.arange(max_characters - 2) < lengths[:, None]] = spelled.astype(np.int32) + 1
    ids[np.arange(len(lengths)), lengths + 1] = _WORD_END
    return ids


def boundary_ids(boundary: str, max_characters: int) -> NDArray[np.int32]:
    """The row of `<S>` or `</S>`."""
    ids = np.full(max_characters, _PADDING, dtype=np.int32)
    ids[:3] = (_WORD_START, _SENTENCE_START if boundary == START else _SENTENCE_END, _WORD_END)
    return ids


@dataclass(frozen=True)
class ByteAlphabet:
    """Tokens as the 2018 models read them."""

    start = START
    end = END

    def ids(self, tokens: Sequence[str], max_characters: int) -> NDArray[np.int32]:
        return character_ids(tokens, max_characters)

    def is_truncated(self, token: str, max_characters: int) -> bool:
        """Does the token have more bytes than fit beside its two markers?

        >>> ByteAlphabet().is_truncated("a" * 48, 50), ByteAlphabet().is_truncated("a" * 49, 50)
        (False, True)
        """
        # A character has at most four bytes, so most tokens need not be encoded to be answered.
        return len(token) * 4 > max_characters - 2 and len(token_bytes(token)) > max_characters - 2

    def read_part(self, token: str, max_characters: int) -> str:
        """What a word table is asked for: 2018's took the whole token."""
        return token


class CodePointAlphabet:
    """Tokens as ELMoForManyLangs reads them: characters that the training text had, and six markers.

    The markers around a token are swapped, in training as in use: the row starts with the end marker's id.

    >>> alphabet = CodePointAlphabet(["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>", "a"])
    >>> alphabet.ids(["aé", "<bos>"], 5).tolist()
    [[6, 7, 3, 5, 4], [6, 1, 5, 4, 4]]
    """

    start = "<bos>"
    end = "<eos>"
    markers = ("<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>")

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = list(symbols)
        self._ids = {symbol: number + 1 for number, symbol in enumerate(self.symbols)}

    def missing_markers(self) -> list[str]:
        return [marker for marker in self.markers if marker not in self._ids]

    def ids(self, tokens: Sequence[str], max_characters: int) -> NDArray[np.int32]:
        first, last, unknown = self._ids["<eow>"], self._ids["<bow>"], self._ids["<oov>"]
        ids = np.full((len(tokens), max_characters), self._ids["<pad>"], dtype=np.int32)
        for row, token in enumerate(tokens):
            if token in (self.start, self.end):
                spelled = [self._ids[token]]
            else:
                spelled = [self._ids.get(character, unknown) for character in token[: max_characters - 2]]
            ids[row, : len(spelled) + 2] = [first, *spelled, last]
        return ids

    def is_truncated(self, token: str, max_characters: int) -> bool:
        return len(token) > max_characters - 2

    def read_part(self, token: str, max_characters: int) -> str:
        """What the word table is asked for: the token as far as its characters are read."""
        return token if token in (self.start, self.end) else token[: max_characters - 2]


Alphabet = ByteAlphabet | CodePointAlphabet
