"""`elmofire.pretrain`: a recipe by name, file or value, with settings changed, is trained on a prepared corpus."""

import os
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmofire.errors import MissingExtra, RecipeError
from elmofire.formats.weights import as_folder
from elmofire.recipe import text_of
from elmofire.train.recipes import as_changes, find_recipe
from elmofire.train.settings import Recipe

if TYPE_CHECKING:
    from elmofire.formats.weights import Weights

FINETUNE = "finetune"  # the recipe that has no sizes of its own


def pretrain(
    recipe: str | os.PathLike[str] | Recipe,
    *,
    data: str | os.PathLike[str],
    output: str | os.PathLike[str],
    device: str = "auto",
    show: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Path:
    """Train a model on a prepared corpus; the folder of the run, which loads as a model. The same call again goes on with it.

    `recipe` is a name, a file or a `Recipe`; `settings` change it, as `key=value` does on the command line: `updates=100`, or in full
    `**{"train.updates": 100}`. `show` is called with every record of the run's log.

    >>> import tempfile
    >>> from elmofire import Embedder, prepare
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "text.txt").write_text("The cat sat.\\nThe dog sat.\\nThe cat ran.\\n")
    >>> corpus = prepare([folder / "text.txt"], folder / "corpus", sentences="lines", processes=1)
    >>> sizes = {"cells": 8, "model.projection": 4, "encoder.width": 4, "filters": [[1, 4], [2, 4]]}
    >>> run = pretrain("tiny", data=corpus.folder, output=folder / "run", device="cpu", updates=2, **sizes)
    >>> Embedder.load(run).embed([["The", "cat"]])[0].shape
    (2, 8)
    """
    chosen = chosen_recipe(recipe, as_changes(settings))
    return run_recipe(chosen, data=data, output=output, device=device, show=show)


def chosen_recipe(recipe: str | os.PathLike[str] | Recipe, changes: Sequence[str]) -> Recipe:
    """The recipe that is meant, with `key=value` changed.

    >>> chosen_recipe(chosen_recipe("tiny", ["updates=20"]), ["train.epochs=3", "clip=none"]).train.updates is None
    True
    """
    if recipe == FINETUNE:
        raise RecipeError(
            f"the recipe {FINETUNE} has no sizes: it goes on with a model that is there",
            hint="elmofire.finetune (elmofire finetune MODEL --text FILE... --output RUN)",
        )
    if not isinstance(recipe, Recipe):
        return find_recipe(recipe, changes)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recipe.toml"
        file.write_text(text_of(recipe), encoding="utf-8")
        return find_recipe(file, changes)


def run_recipe(
    recipe: Recipe,
    *,
    data: str | os.PathLike[str],
    output: str | os.PathLike[str],
    device: str,
    show: Callable[[dict[str, Any]], None] | None,
    start: "Weights | None" = None,
) -> Path:
    """The loop itself, if torch is there."""
    require_torch()
    from elmofire.train.run.loop import train

    folders = {"data": as_folder(data), "output": as_folder(output)}
    return train(recipe, **folders, device=device, start=start, show=show or (lambda record: None))


def require_torch() -> None:
    """Say which extra is missing before anything is done; importing torch itself takes seconds."""
    if find_spec("torch") is None:
        raise MissingExtra("training", "torch,train")
