"""Tokens become rows of character ids: the utf-8 bytes of a token between two markers, as the 2018 models read them.

Ids: 0 no token here, 1..256 the bytes 0..255, then five markers. The id table that models store has no row for 0.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

START, END = "<S>", "</S>"  # the sentence boundaries: these two strings stand for rows of their own

ALPHABET = 261  # ids 1..261: rows of a model's character table
_SENTENCE_START, _SENTENCE_END, _WORD_START, _WORD_END, PADDING = range(257, 262)


def token_bytes(token: str) -> bytes:
    """The bytes a model sees; lone surrogates have none and disappear."""
    return token.encode("utf-8", "ignore")


def is_truncated(token: str, max_characters: int = 50) -> bool:
    """Does the token have more bytes than fit beside its two markers?

    >>> is_truncated("a" * 48), is_truncated("a" * 49)
    (False, True)
    """
    # A character has at most four bytes, so most tokens need not be encoded to be answered.
    return len(token) * 4 > max_characters - 2 and len(token_bytes(token)) > max_characters - 2


def character_ids(tokens: Sequence[str], max_characters: int = 50) -> NDArray[np.int16]:
    """One row of `max_characters` ids per token; bytes beyond `max_characters - 2` are cut, even inside a character.

    >>> character_ids(["cat", "</S>"], max_characters=6).tolist()
    [[259, 100, 98, 117, 260, 261], [259, 258, 260, 261, 261, 261]]
    """
    room = max_characters - 2
    spelled = [token_bytes(token)[:room] for token in tokens]
    lengths = np.fromiter(map(len, spelled), dtype=np.int64, count=len(spelled))
    ids = np.full((len(tokens), max_characters), PADDING, dtype=np.int16)
    ids[:, 0] = _WORD_START
    ids[:, 1:-1][np.arange(room) < lengths[:, None]] = (
        np.frombuffer(b"".join(spelled), dtype=np.uint8).astype(np.int16) + 1
    )
    ids[np.arange(len(tokens)), lengths + 1] = _WORD_END
    for row, token in enumerate(tokens):
        if token in (START, END):
            ids[row, 1:4] = (_SENTENCE_START if token == START else _SENTENCE_END, _WORD_END, PADDING)[
                : max_characters - 1
            ]
            ids[row, 4:] = PADDING
    return ids
