"""What callers may hand in as sentences: token lists, or strings, but not a mixture, and not one bare string."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Places
from elmofire.engine.spill import allocate
from elmofire.errors import InputError
from elmofire.text.token_lists import LONG, Sentences, each_sentence, tokens_of
from elmofire.text.tokenizers import Token

_AT_ONCE = 8192  # of a long sentence's tokens


def token_lists(sentences: Sentences, tokenize: Callable[[str], list[str]], *, skip: int = 0) -> "Iterator[Tokens]":
    """Token lists as they are, unless they are long; strings through `tokenize`. The first `skip` sentences are left out."""
    return _checked(islice(each_sentence(sentences), skip, None), tokenize, skip)


def _checked(
    items: Iterator[Sequence[str] | Sequence[Token] | str], tokenize: Callable[[str], list[str]], number: int
) -> "Iterator[Tokens]":
    kind: type | None = None
    for sentence in items:
        found = str if isinstance(sentence, str) else list
        kind = kind or found
        if found is not kind:
            names = {str: "a string", list: "a list of tokens"}
            raise InputError(
                f"sentence {number} is {names[found]}, but those before it are each {names[kind]}: do not mix them"
            )
        tokens: Tokens = tokenize(sentence) if isinstance(sentence, str) else tokens_of(sentence, number)
        if len(tokens) >= LONG:
            tokens = LongSentence(tokens)
        del sentence  # a long one would stay in memory until the next is asked for
        yield tokens
        number += 1  # by hand, since `enumerate` would keep the sentence too


class Numbered(dict[str, int]):
    """Distinct tokens in the order of their first look-up, each with its number.

    >>> words = Numbered.of("<S>", "</S>")
    >>> [words[token] for token in ["a", "b", "a", "</S>"]], list(words)
    ([2, 3, 2, 1], ['<S>', '</S>', 'a', 'b'])
    """

    @classmethod
    def of(cls, *tokens: str) -> "Numbered":
        return cls(zip(tokens, range(len(tokens)), strict=True))

    def __missing__(self, token: str) -> int:
        self[token] = number = len(self)
        return number


class LongSentence:
    """A sentence that is too long for a list: its distinct tokens, and which of them stands where. Both lie in files where they are large.

    >>> sentence = LongSentence(["so", "so", "what"])
    >>> list(sentence.distinct()), sentence.places, sentence.as_list()
    (['so', 'what'], array([0, 0, 1], dtype=int32), ['so', 'so', 'what'])
    """

    def __init__(self, tokens: list[str]) -> None:
        numbers = Numbered()
        self.places = allocate((len(tokens),), np.int32)
        for here in _slices(len(tokens)):
            self.places[here] = [numbers[token] for token in tokens[here]]
        self._ends = allocate((len(numbers) + 1,), np.int64)  # of the distinct tokens in the text, and before the first
        self._ends[0] = 0
        encoded = [token.encode("utf-8", "surrogatepass") for token in numbers]
        np.cumsum([*map(len, encoded)], out=self._ends[1:])
        self._text = allocate((int(self._ends[-1]),), np.uint8)
        for here in _slices(len(encoded)):
            self._text[self._ends[here.start] : self._ends[here.stop]] = bytearray().join(encoded[here])

    def __len__(self) -> int:
        return len(self.places)

    def distinct(self) -> Iterator[str]:
        """Each token once, in the order of their first places; `places` are their numbers."""
        return map(self._token, range(len(self._ends) - 1))

    def parts(self) -> Iterator[list[str]]:
        """The tokens, some at a time."""
        for here in _slices(len(self)):
            distinct, which = np.unique(self.places[here], return_inverse=True)
            tokens = [*map(self._token, distinct.tolist())]
            yield [tokens[number] for number in which.tolist()]

    def as_list(self) -> list[str]:
        """The tokens, each distinct one there once only: a million of them are 8 MB then, not 60."""
        distinct = [*self.distinct()]
        return [distinct[number] for here in _slices(len(self)) for number in self.places[here].tolist()]

    def _token(self, number: int) -> str:
        return self._text[self._ends[number] : self._ends[number + 1]].tobytes().decode("utf-8", "surrogatepass")


def _slices(length: int) -> Iterator[slice]:
    return (slice(first, min(first + _AT_ONCE, length)) for first in range(0, length, _AT_ONCE))


Tokens = list[str] | LongSentence


def as_list(tokens: Tokens) -> list[str]:
    return tokens.as_list() if isinstance(tokens, LongSentence) else tokens


def numbered(sentences: Iterable[Tokens], start: str, end: str) -> tuple[list[str], list[Places]]:
    """The distinct tokens of sentences, `start` and `end` first, and each sentence as their numbers, between these two.

    >>> numbered([["so", "so"], ["what"]], "<S>", "</S>")
    (['<S>', '</S>', 'so', 'what'], [array([0, 2, 2, 1]), array([0, 3, 1])])
    """
    words = Numbered.of(start, end)
    sequences: list[Places] = []
    for tokens in sentences:
        if isinstance(tokens, LongSentence):
            sequences.append(_long_sequence(tokens, words))
        else:
            numbers = map(words.__getitem__, chain((start,), tokens, (end,)))
            sequences.append(np.fromiter(numbers, np.int64, len(tokens) + 2))
    return list(words), sequences


def _long_sequence(sentence: LongSentence, words: Numbered) -> NDArray[np.int32]:
    numbers = np.array([words[token] for token in sentence.distinct()], dtype=np.int32)
    sequence = allocate((len(sentence) + 2,), np.int32)
    sequence[0], sequence[-1] = 0, 1
    inside = sequence[1:-1]
    for here in _slices(len(sentence)):
        inside[here] = numbers[sentence.places[here]]
    return sequence
