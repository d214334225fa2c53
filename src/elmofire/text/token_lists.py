"""Sentences as lists of tokens, whoever takes them: the embedder, or the layer of other models."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from elmofire.errors import InputError
from elmofire.text.tokenizers import Token

LONG = 10_000  # tokens of a sentence, from where on their memory is worth some time

Sentence = TypeVar("Sentence")
Sentences = Iterable[Sequence[str] | Sequence[Token]]  # a string is a sequence of strings, too


def each_sentence(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """The sentences one by one; an error for what holds none, or gives keys or no order instead."""
    kind = type(sentences).__name__
    if isinstance(sentences, str | bytes):
        raise InputError(
            "one string was given where a list of sentences belongs", hint='put it in a list: ["A sentence."]'
        )
    try:
        if not isinstance(sentences, dict | set | frozenset):
            return iter(sentences)
    except TypeError:
        pass
    raise InputError(f"sentences should be a list of token lists or of strings, not {kind}")


def tokens_of(sentence: Sequence[str] | Sequence[Token], number: int) -> list[str]:
    """A sentence's tokens; an error for what is no list of them."""
    if isinstance(sentence, bytes | dict | set | frozenset) or not hasattr(sentence, "__iter__"):
        raise InputError(f"sentence {number} is {type(sentence).__name__}, but should be a list of tokens or a string")
    # A long one is soon written elsewhere, and needs no copy on the way.
    tokens: list[Any] = sentence if isinstance(sentence, list) and len(sentence) >= LONG else list(sentence)
    kinds = {*map(type, tokens)}
    if kinds == {Token}:  # as `Embedder.tokenize` gives them
        return [token.text for token in tokens]
    if not kinds <= {str}:
        _check_tokens(tokens, number)
    return tokens


def _check_tokens(tokens: list[Any], number: int) -> None:
    for place, token in enumerate(tokens):
        if not isinstance(token, str):
            raise InputError(
                f"token {place} of sentence {number} is {type(token).__name__} {token!r:.40}, but should be a string"
            )
