"""The recipes inside the package, and how one is found, changed and read."""

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elmofire.errors import RecipeError
from elmofire.formats.weights import as_folder
from elmofire.recipe import build, override, read_table
from elmofire.train.settings import Recipe

_FOLDER = Path(__file__).parents[1] / "recipes"


def recipe_names() -> list[str]:
    """The recipes inside the package.

    >>> "tiny" in recipe_names()
    True
    """
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def recipe_file(name: str) -> Path:
    """The file of a recipe inside the package."""
    names = recipe_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise RecipeError(
            f"there is no recipe {name!r}" + (f", did you mean {near[0]}?" if near else ""),
            hint=f"there are {', '.join(names)}; a recipe of your own is given as FILE.toml",
        )
    return _FOLDER / f"{name}.toml"


def as_changes(settings: Mapping[str, Any]) -> list[str]:
    """Settings by name as `key=value`, the way `find_recipe` takes them.

    >>> as_changes({"updates": 100, "clip": None, "name": "sgd"})
    ['updates=100', 'clip=null', 'name=sgd']
    """
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]


def find_recipe(what: str | os.PathLike[str], settings: Sequence[str] = ()) -> Recipe:
    """The recipe of that name, or of that file, with `settings` changed as `override` reads them.

    Where a recipe says how long with `epochs`, `updates=...` takes their place, and the other way round. A recipe's
    `reset` or `weight_decay` does not stay where `reading=sentences` or another optimizer leaves it without effect.

    >>> find_recipe("original").optimizer.rate
    0.2
    >>> find_recipe("tiny", ["rate=0.01", "train.updates=20"]).train.updates
    20
    >>> find_recipe("en-small").data.reset, find_recipe("en-small", ["reading=sentences"]).data.reset
    (True, False)
    """
    file = _own_file(what) or recipe_file(str(what))
    table = read_table(file)
    changed = _changed(table, settings)
    try:
        return build(Recipe, changed)
    except RecipeError as error:
        where = ", ".join(_to_blame(table, settings, str(error)))
        raise RecipeError(f"{where or (file.name if file.parent == _FOLDER else file)}: {error}") from None


def _changed(table: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    changed = _with_one_length(table, override(table, Recipe, settings))
    return _without_what_is_void(changed, override({}, Recipe, settings))


def _to_blame(table: dict[str, Any], settings: Sequence[str], said: str) -> Iterator[str]:
    """The settings without which something of what is said would not be; none: the file itself is wrong."""
    for number, setting in enumerate(settings):
        others = [*settings[:number], *settings[number + 1 :]]
        try:
            build(Recipe, _changed(table, others))
        except RecipeError as error:
            if set(said.split("; ")) <= set(str(error).split("; ")):
                continue
        yield setting


def _own_file(what: str | os.PathLike[str]) -> Path | None:
    """The user's file, if it is one: a name of the package alone never is."""
    path = as_folder(what)
    if isinstance(what, str) and path.suffix != ".toml" and len(path.parts) == 1:
        return None
    if not path.is_file():
        raise RecipeError(f"{path}: no such file", hint=f"recipes by name: {', '.join(recipe_names())}")
    return path


def _with_one_length(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """`updates` and `epochs` say the same: the one that a setting gave stays."""
    old, new = before.get("train"), after.get("train")
    if isinstance(old, dict) and isinstance(new, dict):
        for mine, other in (("updates", "epochs"), ("epochs", "updates")):
            given = new.get(mine) is not None and old.get(mine) is None
            if given and other in old and new[other] == old[other]:
                del new[other]
    return after


def _without_what_is_void(changed: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The recipe's own `reset` and `weight_decay` go with the reading and the optimizer whose place a setting has taken."""
    data, optimizer = given.get("data", {}), given.get("optimizer", {})
    if data.get("reading") == "sentences" and "reset" not in data:
        changed["data"].pop("reset", None)
    if optimizer.get("name", "adamw") != "adamw" and "weight_decay" not in optimizer:
        changed["optimizer"].pop("weight_decay", None)
    return changed
