"""What the errors of the package have in common."""

import pickle

import pytest

from elmofire import DataError, ElmofireError, InputError, MissingExtra, ModelError, RecipeError


@pytest.mark.parametrize("hint", ["", "mend it"])
@pytest.mark.parametrize("kind", [ElmofireError, DataError, InputError, ModelError, RecipeError])
def test_an_error_says_what_is_wrong_and_what_to_do(kind, hint):
    error = kind("file.txt:3: is broken", hint=hint)
    assert (error.message, error.hint) == ("file.txt:3: is broken", hint)
    assert str(error) == ("file.txt:3: is broken\nhint: mend it" if hint else "file.txt:3: is broken")


@pytest.mark.parametrize(
    "error",
    [ModelError("m", hint="h"), ModelError.from_problems("file", ["one", "two"]), MissingExtra("that", "torch")],
)
def test_an_error_comes_out_of_another_process_as_it_was(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.message, again.hint) == (str(error), error.message, error.hint)
