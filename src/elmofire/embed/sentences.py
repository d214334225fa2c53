"""What callers may hand in as sentences: token lists, or strings, but not a mixture, and not one bare string."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from elmofire.errors import InputError

_LONG = 10_000  # tokens of a sentence, from where on their memory is worth some time

Sentences = Iterable[Sequence[str]] | Iterable[str]


def token_lists(sentences: Sentences, tokenize: Callable[[str], list[str]]) -> Iterator[list[str]]:
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


def _checked(items: Iterator[Sequence[str] | str], tokenize: Callable[[str], list[str]]) -> Iterator[list[str]]:
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
            tokens = tokenize(sentence)
        else:
            tokens = _as_list(sentence, number)
            if not {*map(type, tokens)} <= {str}:
                _check_tokens(tokens, number)
        yield tokens if len(tokens) < _LONG else interned(tokens)


def _check_tokens(tokens: list[str], number: int) -> None:
    for place, token in enumerate(tokens):
        if not isinstance(token, str):
            raise InputError(
                f"token {place} of sentence {number} is {type(token).__name__} {token!r:.40}, but should be a string"
            )


def interned(tokens: Iterable[str]) -> list[str]:
    """The same tokens, each distinct one there once only: a million of them are 8 MB then, not 60.

    >>> one, other = interned(["".join(["w", "1"]), "".join(["w", "1"])])
    >>> one is other
    True
    """
    seen: dict[str, str] = {}
    return [seen.get(token) or seen.setdefault(token, _copied(token)) for token in tokens]


def _copied(token: str) -> str:
    """Elsewhere in memory: a rare word that stays would keep the page full of words that go."""
    return token.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")


def _as_list(sentence: Sequence[str], number: int) -> list[str]:
    if isinstance(sentence, bytes | dict) or not hasattr(sentence, "__iter__"):
        raise InputError(f"sentence {number} is {type(sentence).__name__}, but should be a list of tokens or a string")
    return list(sentence)
