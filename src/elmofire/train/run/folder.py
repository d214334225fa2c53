"""The folder of a run: for one run of one recipe alone, whichever processes come."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from elmofire.errors import DataError, ElmofireError
from elmofire.formats.files import held_alone, written_aside
from elmofire.recipe import text_of
from elmofire.train.files.best import update_run
from elmofire.train.files.checkpoints import Checkpoint
from elmofire.train.run.ranks import Ranks
from elmofire.train.run.records import PLOT, writing
from elmofire.train.settings import Recipe

RECIPE_FILE, LOCK = "recipe.toml", ".lock"


@contextlib.contextmanager
def claimed(folder: Path, text: str, ranks: Ranks) -> Iterator[None]:
    """The run's folder, for this run alone. Of many ranks the first one holds it; what it finds wrong, all say."""
    with contextlib.ExitStack() as held:
        problem = None
        if ranks.first:
            try:
                with writing(folder):
                    refuse_others(folder, text)
                    held.enter_context(held_alone(folder / LOCK, _taken(folder)))
                    refuse_others(folder, text)  # which may have come meanwhile
            except ElmofireError as error:
                problem = error
        if problem := ranks.agree(problem):
            raise problem
        yield


def _taken(folder: Path) -> DataError:
    return DataError(
        f"{folder}: another process is training there",
        hint="wait until it has ended, or choose another name for the run",
    )


def refuse_others(folder: Path, text: str) -> None:
    """A folder with anything but a run of this recipe."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file", hint="choose another name for the run")
    if (folder / RECIPE_FILE).is_file():
        there = (folder / RECIPE_FILE).read_text(encoding="utf-8", errors="backslashreplace")  # damaged: another one
        if changes := _changes(_settings(there), _settings(text)):
            raise DataError(
                f"{folder}: holds a run of another recipe: {', '.join(changes[:6])}",
                hint="choose another name for the run, or give the recipe and settings it was started with",
            )
    elif folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise DataError(f"{folder}: exists and holds no training run", hint="choose another name for the run")


def _settings(text: str) -> dict[str, str]:
    """The lines of a recipe by the names of their settings, and any others as they are."""
    found: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif line:
            name, equals, value = line.partition(" = ")
            found[f"{section}{name}" if equals else line] = value
    return found


def _changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What was changed that a run's results depend on. With a number of updates, minutes only end it, and may be more or fewer."""
    by_updates = bool({"train.updates", "train.epochs"} & before.keys())
    return [
        f"{name} is {now.get(name, 'not given')} now and was {before.get(name, 'not given')}"
        for name in dict.fromkeys([*now, *before])
        if now.get(name) != before.get(name) and not (by_updates and name == "train.minutes")
    ]


def refuse_to_go_apart(folder: Path, checkpoint: Checkpoint | None, ranks: Ranks) -> None:
    found = checkpoint and checkpoint.update
    first = ranks.agree(found)
    if found != first:
        raise DataError(
            f"{folder}: rank {ranks.rank} finds a checkpoint of update {found} there, and the first rank one of {first}",
            hint="the folder must be the same for all machines",
        )


def write_recipe(folder: Path, recipe: Recipe, ranks: Ranks) -> None:
    """The sign that the folder holds a run; then all ranks have read its checkpoint, whose place the next ones take."""
    ranks.wait()
    if ranks.first:
        for stray in [*folder.glob(f".{RECIPE_FILE}.*"), *folder.glob(f".{PLOT}.*")]:
            stray.unlink()
        text, begins = text_of(recipe), not (folder / RECIPE_FILE).is_file()
        if begins or (folder / RECIPE_FILE).read_text(encoding="utf-8") != text:  # its minutes may be others
            with writing(folder), written_aside(folder / RECIPE_FILE) as aside:
                aside.write_text(text, encoding="utf-8")
        if begins:
            with writing(folder):
                update_run(folder)  # a run without a model yet
