"""What is tried for en-small: settings on top of the recipe `small`, or of another that they name first, and how a model may start.

The first stage changes one thing at a time. A batch of another size needs another rate, so some change both. `muon` lost, and is no
optimizer of this package any more: it is in commits cec0aac to 8091a54.
"""

from dataclasses import replace

from elmofire.formats.initial import initial_weights
from elmofire.formats.weights import Weights
from elmofire.text.vocabulary import Vocabulary
from elmofire.train.recipes import find_recipe
from elmofire.train.settings import Recipe

FIRST: dict[str, tuple[str, ...]] = {
    "base": (),
    "10k": ("batch_tokens=10240",),
    "2.5k": ("batch_tokens=2560",),
    "20k": ("batch_tokens=20480", "optimizer.rate=8e-3"),
    "10k, rate 8e-3": ("batch_tokens=10240", "optimizer.rate=8e-3"),
    "rate 2e-3": ("optimizer.rate=2e-3",),
    "rate 8e-3": ("optimizer.rate=8e-3",),
    "no dropout": ("dropout.input=0", "dropout.layers=0", "dropout.output=0"),
    "dropout at the output alone": ("dropout.input=0", "dropout.layers=0"),
    "muon": ("optimizer.name=muon",),
    "muon, rate 8e-3": ("optimizer.name=muon", "optimizer.rate=8e-3"),
    "full softmax": ("loss.softmax=full",),
    "16,384 negatives": ("loss.samples=16384",),
    "4,096 negatives": ("loss.samples=4096",),
    "lanes with resets": ("data.reading=lanes", "data.reset=true", "data.steps=20"),
    "lanes of 40 with resets": ("data.reading=lanes", "data.reset=true", "data.steps=40"),
    "lanes": ("data.reading=lanes", "data.steps=20"),
    "different text": ("data.text=different",),
    "betas 0.9, 0.98": ("optimizer.betas=[0.9, 0.98]",),
    "averaged": ("optimizer.average=0.9995",),
    "cosine": ("optimizer.schedule=cosine",),
    "clip 0.25": ("optimizer.clip=0.25",),
    "weight decay 0.05": ("optimizer.weight_decay=0.05",),
    "adagrad": ("optimizer.name=adagrad", "optimizer.rate=0.2", "loss.factor=20.0", "optimizer.clip=10.0"),
    "small head at the start": (),
    "wide gates at the start": (),
}
# The second changes the best of the first, put together, one thing at a time.
BEST = ("batch_tokens=10240", "optimizer.rate=8e-3", "dropout.input=0", "dropout.layers=0", "dropout.output=0")
SECOND: dict[str, tuple[str, ...]] = {
    "best": BEST,
    "muon": (*BEST, "optimizer.name=muon"),
    "lanes with resets": (*BEST, "data.reading=lanes", "data.reset=true", "data.steps=20"),
    "rate 12e-3": (*BEST, "optimizer.rate=12e-3"),
    "betas 0.9, 0.98": (*BEST, "optimizer.betas=[0.9, 0.98]"),
    "different text": (*BEST, "data.text=different"),
    "averaged": (*BEST, "optimizer.average=0.9995"),
    "lanes": (*BEST, "data.reading=lanes", "data.steps=20"),
    "clip 0.25": (*BEST, "optimizer.clip=0.25"),
    "small head at the start": BEST,
    "wide gates at the start": BEST,
}
# Larger batches gain with the minutes.
LONG: dict[str, tuple[str, ...]] = {
    "10k": BEST,
    "20k": ("batch_tokens=20480", "optimizer.rate=12e-3", *BEST[2:]),
}
# The third starts from what won the second, dense lanes whose state is zero at every sentence's start, with more minutes: the rate and the
# batch that are best depend on them.
DENSE = (*BEST, "data.reading=lanes", "data.reset=true", "data.steps=20")
THIRD: dict[str, tuple[str, ...]] = {
    "dense": DENSE,
    "20k": ("batch_tokens=20480", *DENSE[1:]),
    "rate 4e-3": (*DENSE, "optimizer.rate=4e-3"),
    "20k, lanes of 40": ("batch_tokens=20480", *DENSE[1:-1], "data.steps=40"),
    "different text": (*DENSE, "data.text=different"),
    "sentences": BEST,
    "16,384 negatives": (*DENSE, "loss.samples=16384"),
    "betas 0.9, 0.9997": (*DENSE, "optimizer.betas=[0.9, 0.9997]"),
}
# What en-small was trained by, carried over to the original size at that size's own rate, at en-small's, and with smaller batches.
CARRIED = (
    "recipe=large", "batch_tokens=20480", "dropout.input=0", "dropout.layers=0", "dropout.output=0",
    "data.reading=lanes", "data.reset=true", "data.steps=40", "optimizer.clip=0.5", "optimizer.warmup=1000",
)  # fmt: skip
ORIGINAL: dict[str, tuple[str, ...]] = {
    "carried over": CARRIED,
    "large": ("recipe=large",),
    "carried over, rate 3e-3": (*CARRIED, "optimizer.rate=3e-3"),
    "carried over, 10k": (*CARRIED, "batch_tokens=10240"),
}
STAGES = {"first": FIRST, "second": SECOND, "long": LONG, "third": THIRD, "original": ORIGINAL}
# Of arrays whose name ends so, how much larger they are at the start than the recipe's.
STARTS = {
    "small head at the start": {"head.weight": 0.1},
    "wide gates at the start": {"weight_ih": 2.0, "weight_hh": 2.0},
}


def recipe_of(settings: tuple[str, ...], *more: str) -> Recipe:
    """A variant's, with settings of the run."""
    named = [setting for setting in settings if setting.startswith("recipe=")]
    name = named[0].removeprefix("recipe=") if named else "small"
    return find_recipe(name, [*[setting for setting in settings if setting not in named], *more])


def starting(name: str, recipe: Recipe, vocabulary: Vocabulary) -> Weights | None:
    """The model that a variant starts from; None: as every recipe does."""
    if name not in STARTS:
        return None
    drawn = initial_weights(replace(recipe.model, head=len(vocabulary)), seed=recipe.train.seed, vocabulary=vocabulary)
    scales = {array: scale for array in drawn.arrays for end, scale in STARTS[name].items() if array.endswith(end)}
    return replace(drawn, arrays={array: drawn.arrays[array] * scales.get(array, 1) for array in drawn.arrays})
