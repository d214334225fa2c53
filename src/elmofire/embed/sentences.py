"""What callers may hand in as sentences: token lists, or strings, but not a mixture, and not one bare string."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from elmofire.errors import InputError

Sentences = Iterable[Sequence[str]] | Iterable[str]


def token_lists(sentences: Sentences, tokenize: Callable[[str], list[str]]) -> Iterator[Sequence[str]]:
    """Token lists as they are; strings through `tokenize`."""
    if isinstance(sentences, str | bytes):
        raise InputError(
            "one string was given where a list of sentences belongs", hint='put it in a list: ["A sentence."]'
        )
    try:
        items = iter(sentences)
    except TypeError:
        raise InputError(
            f"sentences should be a list of token lists or of strings, not {type(sentences).__name__}"
        ) from None
    return _checked(items, tokenize)


def _checked(items: Iterator[Sequence[str] | str], tokenize: Callable[[str], list[str]]) -> Iterator[Sequence[str]]:
    kind: type | None = None
    for number, sentence in enumerate(items):
        found = str if isinstance(sentence, str) else list
        kind = kind or found
        if found is not kind:
            names = {str: "a string", list: "a list of tokens"}
            raise InputError(
                f"sentence {number} is {names[found]}, but those before it are each {names[kind]}: do not mix them"
            )
        if isinstance(sentence, str):
            yield tokenize(sentence)
            continue
        tokens = _as_list(sentence, number)
        for place, token in enumerate(tokens):
            if not isinstance(token, str):
                raise InputError(
                    f"token {place} of sentence {number} is {type(token).__name__} {token!r:.40}, but should be a string"
                )
        yield tokens


def _as_list(sentence: Sequence[str], number: int) -> list[str]:
    if isinstance(sentence, bytes | dict) or not hasattr(sentence, "__iter__"):
        raise InputError(f"sentence {number} is {type(sentence).__name__}, but should be a list of tokens or a string")
    return list(sentence)
