"""What can go wrong on the user's side, and nothing else.

    ElmofireError
    ├── ModelError     a model's files are missing, broken or contradict each other
    ├── InputError     the text, tokens or arguments given cannot be used
    ├── RecipeError    a recipe or configuration has an unknown key or a wrong value
    ├── DataError      a corpus or data set is broken
    └── MissingExtra   an optional package is needed and not installed

Each says what is wrong, where, and (as the hint) what to do. The command line prints them without a traceback and exits with 2.
"""

import operator
from collections.abc import Callable, Sequence


class ElmofireError(Exception):
    """A mistake that the user can mend: `message` says what and where, `hint` what to do; `str()` is both."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message, self.hint = message, hint

    def __reduce__(self) -> "tuple[Callable[..., ElmofireError], tuple[type[ElmofireError], str, str]]":
        """Out of a process of a pool as it was, also where a kind is made of something else than a message."""
        return _again, (type(self), self.message, self.hint)


def _again(kind: type[ElmofireError], message: str, hint: str) -> ElmofireError:
    error = kind.__new__(kind)
    ElmofireError.__init__(error, message, hint=hint)
    return error


class ModelError(ElmofireError):
    """A model's files are missing, broken, or contradict each other."""

    @classmethod
    def from_problems(cls, where: str, problems: Sequence[str], *, hint: str = "") -> "ModelError":
        """All that is wrong with the files at `where`, at once."""
        if len(problems) == 1:
            return cls(f"{where}: {problems[0]}", hint=hint)
        listed = "\n".join(f"  - {problem}" for problem in problems)
        return cls(f"{where}: {len(problems)} problems\n{listed}", hint=hint)


class InputError(ElmofireError):
    """The text, tokens or arguments given cannot be used."""


def require_count(given: object, name: str) -> None:
    """An error if an argument is no whole number from 1 on."""
    try:
        number = 0 if isinstance(given, bool) else operator.index(given)  # pyright: ignore[reportArgumentType]
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(f"{name} is {given!r:.80}, but should be a whole number, at least 1")


class RecipeError(ElmofireError):
    """A recipe or configuration has an unknown key or a wrong value."""


class DataError(ElmofireError):
    """A corpus or data set is broken."""


class MissingExtra(ElmofireError):
    """An optional package is needed and not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs an extra that is not installed",
            hint=f'pip install ".[{extra}]" in a checkout of elmofire',
        )
