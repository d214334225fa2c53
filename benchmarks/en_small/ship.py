"""The model folder of the package, from a trained model: int8, with vocabulary and card, and no larger than it may be.

Run, in benchmarks: python -m en_small.ship MODEL [FOLDER], MODEL a folder or a run, FOLDER the package's own where none is given

The card tells what is recorded. Of the folder itself that is nothing yet: en_small.evaluate FOLDER, then en_small.card FOLDER.
"""

import sys
import tempfile
import time
import tomllib
from pathlib import Path

from records import errors_in_one_line

from elmofire.errors import ModelError
from elmofire.formats import load_weights, native
from elmofire.formats.native import storage_of
from elmofire.formats.weights import Weights
from elmofire.lm.language_model import LanguageModel
from elmofire.recipe import build
from elmofire.train.recipes import find_recipe
from elmofire.train.settings import Recipe
from en_small.card import PACKAGED, card
from en_small.evaluate import layer_errors

RECIPE = "en-small"
MOST_BYTES = 29_000_000
ROOM = 20_000  # bytes for the card, which grows with the records
TEXT = [
    "The Romans built a bridge over the river in the first century.",
    "She was appointed professor of chemistry at the University of Edinburgh in 1908.",
    '"I don\'t know what you mean," said the old man, and shut the door.',
]


def checked(model: str) -> Weights:
    """A model that can be shipped: it predicts words, is what the package's recipe makes, to its end, and has lost nothing yet."""
    weights = load_weights(model)
    if (stored := storage_of(weights)) != "float32":
        raise ModelError(
            f"{model}: is stored as {stored}, but should be as float32, which int8 is held against",
            hint="give the model as training has written it",
        )
    lacking = [fact for fact in ("recipe", "corpus", "update", "tokens_read") if fact not in weights.training]
    if lacking:
        raise ModelError(f"{model}: its config does not say {', '.join(lacking)} of its training")
    recipe = build(Recipe, tomllib.loads(weights.training["recipe"]))
    if recipe != find_recipe(RECIPE, []):
        raise ModelError(f"{model}: was trained by another recipe than the package's {RECIPE}")
    if (made := weights.training["update"]) != recipe.train.updates:
        raise ModelError(f"{model}: is of update {made} of {recipe.train.updates}")
    LanguageModel(weights, device="cpu")  # says what is missing
    return weights


def write(weights: Weights, folder: Path) -> None:
    """Nothing is replaced by a model that is too large."""
    with tempfile.TemporaryDirectory() as made:
        trial = Path(made) / "model"
        native.write(weights, trial, storage="int8", card=" " * ROOM)
        if (size := size_of(trial)) > MOST_BYTES:
            raise ModelError(f"would take {size:,} bytes, but may take {MOST_BYTES:,}")
    native.write(weights, folder, storage="int8", card=card(weights))


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def main(model: str, folder: Path = PACKAGED) -> None:
    weights = checked(model)
    write(weights, folder)
    began = time.perf_counter()
    made = LanguageModel.load(folder, device="cpu")
    seconds = time.perf_counter() - began
    trained = LanguageModel(weights, device="cpu")
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size:>12,}  {file.name}")
    print(f"{size_of(folder):>12,}  bytes in {folder}, which may have {MOST_BYTES:,}; loaded in {seconds:.2f} s")
    print("three sentences, in float32 and as int8:")
    before, after = (lm.perplexity(TEXT).mean for lm in (trained, made))
    print(f"perplexity {before:.3f} and {after:.3f} ({100 * (after / before - 1):+.3f}%)")
    errors = ", ".join(f"{100 * error:.2f}%" for error in layer_errors(made, trained, TEXT))
    print(f"layers differ by {errors} of their length")
    words = [item.word for item in made.substitutes("The old *man* shut the door.", top=5)]
    print(f"The old *man* shut the door: {', '.join(words)}")


if __name__ == "__main__":
    with errors_in_one_line():
        main(sys.argv[1], *map(Path, sys.argv[2:3]))
