"""Models that load by name: those inside the package, and the seeded one that needs no file."""

import difflib
from pathlib import Path

from elmofire.errors import ModelError
from elmofire.formats import config, initial
from elmofire.formats.weights import Source, Weights

DEFAULT_MODEL = "en-small"
RANDOM_SMALL = "random-small"

_PACKAGED = Path(__file__).parent.parent / "models"


def packaged_models() -> list[str]:
    """The trained models that came with the package."""
    return sorted(folder.name for folder in _PACKAGED.iterdir() if folder.is_dir()) if _PACKAGED.is_dir() else []


def packaged_folder(name: str) -> Path | None:
    return _PACKAGED / name if name in packaged_models() else None


def random_small() -> Weights:
    """The `small` size with seeded random weights: for trying things out. Its vectors carry no meaning."""
    drawn = initial.initial_weights(config.small(), seed=2018)
    return Weights(
        config=drawn.config,
        arrays=drawn.arrays,
        training={"note": "seeded random weights, never trained"},
        source=Source(RANDOM_SMALL, "seeded"),
    )


def unknown_model(what: str) -> ModelError:
    """No such name, and no such folder."""
    known = [*packaged_models(), RANDOM_SMALL]
    hint = f"name a folder with a model, an options and a weight file, or one of: {', '.join(known)}"
    if what == DEFAULT_MODEL:
        return ModelError(f"the default model {DEFAULT_MODEL} is not in this package", hint=hint)
    near = difflib.get_close_matches(what, known, n=1)
    return ModelError(
        f"{what}: no such folder, and no model of that name" + (f"; did you mean {near[0]}?" if near else ""), hint=hint
    )
