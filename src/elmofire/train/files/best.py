"""The best model of a run, and run.json, which names it. A run folder loads wherever a model does, also while the run goes on.

RUN/run.json         {"format": 1, "best": "best-00000500" or null, ...what the loop says}
    best-00000500/   a model in the native format
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from elmofire.errors import ElmofireError
from elmofire.formats import BEST_MODEL, RUN_FILE, load_weights, save_weights
from elmofire.formats.files import read_json_object, written_aside
from elmofire.formats.weights import Weights, as_folder
from elmofire.train.files.checkpoints import remove_folder

FORMAT = 1


def read_run(run: str | os.PathLike[str]) -> dict[str, Any]:
    """What run.json says; of a run that has none yet, that there is no best model."""
    file = as_folder(run) / RUN_FILE
    return read_json_object(file) if file.exists() else {"format": FORMAT, "best": None}


def update_run(run: str | os.PathLike[str], **facts: Any) -> None:
    """Replace run.json by one in which `facts` stand, beside what stood there."""
    content = json.dumps({**read_run(run), **facts}, indent=1) + "\n"
    with written_aside(as_folder(run) / RUN_FILE) as aside:
        aside.write_text(content, encoding="utf-8")


def keep_best(run: str | os.PathLike[str], update: int, weights: Weights, **facts: Any) -> Path:
    """Put a model in the place of the best one, and `facts` into run.json. Killed at any moment, the run has the old or the new one."""
    folder, named = as_folder(run), read_run(run)["best"]
    _remove_others(folder, named)
    name = f"best-{update:08}"
    if named in (name, f"{name}-again"):  # a run that was killed has come here once more
        if _holds(folder / named, weights):
            update_run(run, update=update, **facts)
            return folder / named
        name = f"{name}-again" if named == name else name
    save_weights(weights, folder / name)
    update_run(run, best=name, update=update, **facts)
    _remove_others(folder, name)
    return folder / name


def _remove_others(folder: Path, named: str | None) -> None:
    """Remove what is not the best model any more, what was to become it, and what killed writers have left."""
    for stray in [*folder.glob(".best-*"), *folder.glob(f".{RUN_FILE}.*")]:
        shutil.rmtree(stray) if stray.is_dir() else stray.unlink()
    for other in list(folder.glob("best-*")):
        if BEST_MODEL.fullmatch(other.name) and other.name != named:
            remove_folder(other)


def _holds(folder: Path, weights: Weights) -> bool:
    """Whether a folder holds this very model."""
    try:
        kept = load_weights(folder)
    except ElmofireError:
        return False
    return kept.config == weights.config and all(
        np.array_equal(array, weights.arrays[name], equal_nan=True) for name, array in kept.arrays.items()
    )
