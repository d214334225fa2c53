"""What a recipe costs, computed from its sizes: parameters, floating-point operations, and time on one GPU.

A weight that is multiplied with a vector costs 6 operations in training: a product and a sum for the output, for the gradient of the
input, and for that of the weight. What is done number by number (gates, dropout, the optimizer) is not counted.

- stacks: every weight, once a token and direction;
- encoder: every weight once a *distinct* word of an update, those of convolutions at each of their places in the word;
- softmax: the target's row and those of the words drawn, or all rows of the head, once a token and direction.

A token counts once for both directions. Time on a GPU is `SECONDS_AN_UPDATE`, `SECONDS_A_CELL` for every token and cell, and the
operations at `SUSTAINED` a second.
"""

from math import prod
from typing import NamedTuple

from elmofire.formats.config import BilmConfig, tensor_shapes
from elmofire.train.settings import LossSettings, Recipe

# An H200. The first is what a large product of bfloat16 holds there, the others were fitted to whole steps of the small and the original
# size at 5k to 20k tokens an update (benchmarks/results/pretrain.jsonl, en_small_rates.jsonl): all are within 15%.
SUSTAINED = 670e12  # operations a second
SECONDS_A_CELL = 40e-12  # for every cell of every layer and direction, and every token: what is done number by number
SECONDS_AN_UPDATE = 0.0025  # what there is besides: steps wait for each other, the optimizer walks over all parameters

CPU_SHARE = 0.4  # of a large product's rate that training reaches there: tiny 0.36, small 0.42, medium 0.55 on one core


class Flops(NamedTuple):
    """Operations of training for one token."""

    encoder: float
    stacks: float
    softmax: float

    @property
    def total(self) -> float:
        return sum(self)


class Text(NamedTuple):
    """A text to train on."""

    about: str
    tokens: int  # to predict in one epoch
    vocabulary: int


class Cost(NamedTuple):
    """What a whole run takes."""

    parameters: int  # without the head
    parameters_with_head: int
    flops_per_token: Flops
    updates: int
    tokens: float
    flops: float
    hours: float  # on an H200


MEANT_FOR = {  # the recipes of the package
    "tiny": Text("5 MB of English", 1_000_000, 20_000),
    "small": Text("500 MB of English", 100_000_000, 100_000),
    "en-small": Text("a part of the English Wikipedia, and books", 96_566_591, 100_000),
    "medium": Text("500 MB of English", 100_000_000, 100_000),
    "large": Text("500 MB of English", 100_000_000, 100_000),
    "original": Text("One Billion Word Benchmark", 768_648_884, 793_471),
    "finetune": Text("a domain's 5 MB; the original model", 1_000_000, 793_471),
    "kim2016": Text("Penn Treebank", 929_589, 10_000),
    "cnn-big-lstm": Text("One Billion Word Benchmark", 768_648_884, 793_471),
}


def distinct_words(tokens: float) -> float:
    """How many words there are among so many tokens of shuffled English sentences: within 10% from 600 tokens to 40,000.

    >>> round(distinct_words(20_480))
    5220
    """
    return min(tokens, 2.5 * tokens**0.77)


def flops_per_token(config: BilmConfig, loss: LossSettings, *, vocabulary: int, distinct: float) -> Flops:
    """Operations of training for one token; `distinct` is how many words are encoded for each token of an update."""
    encoder = stacks = 0
    for name, shape in tensor_shapes(config).items():
        part, *_, last = name.split(".")
        if part == "head" or last in ("bias", "characters", "words"):
            continue
        if part == "encoder":
            places = config.encoder.max_characters - shape[2] + 1 if len(shape) == 3 else 1
            encoder += places * prod(shape)
        else:
            stacks += prod(shape)
    rows = vocabulary if loss.softmax == "full" else min(loss.samples + 1, vocabulary)
    softmax = len(config.directions) * rows * config.projection
    return Flops(6 * distinct * encoder, 6 * stacks, 6 * softmax)


def cost_of(recipe: Recipe, text: Text) -> Cost:
    """What a recipe takes on a text, all of it on one H200."""
    model, batch, each = recipe.model, recipe.train.batch_tokens, _flops(recipe, text)
    cells = len(model.directions) * model.layers * model.cells
    seconds = SECONDS_AN_UPDATE + batch * (cells * SECONDS_A_CELL + each.total / SUSTAINED)
    updates = _updates(recipe, text.tokens, seconds)
    return Cost(
        parameters=model.parameters,
        parameters_with_head=model.parameters + text.vocabulary * (model.projection + 1),
        flops_per_token=each,
        updates=updates,
        tokens=updates * batch,
        flops=updates * batch * each.total,
        hours=updates * seconds / 3600,
    )


def hours_on_cpu(recipe: Recipe, text: Text, rate: float) -> float:
    """How long a recipe takes on processors that make so many operations a second in one large product.

    >>> from elmofire.train.recipes import find_recipe
    >>> [round(hours_on_cpu(find_recipe(name), MEANT_FOR[name], 100e9)) for name in ("tiny", "small")]
    [0, 539]
    """
    seconds = recipe.train.batch_tokens * _flops(recipe, text).total / (CPU_SHARE * rate)
    hours = _updates(recipe, text.tokens, seconds) * seconds / 3600
    return hours if recipe.train.minutes is None else min(hours, recipe.train.minutes / 60)


def _flops(recipe: Recipe, text: Text) -> Flops:
    """For one token of the recipe's updates."""
    model, batch = recipe.model, recipe.train.batch_tokens
    readings = len(model.directions) if recipe.data.text == "different" else 1
    return flops_per_token(
        model, recipe.loss, vocabulary=text.vocabulary, distinct=distinct_words(readings * batch) / batch
    )


def _updates(recipe: Recipe, tokens: int, seconds: float) -> int:
    train = recipe.train
    if train.updates is not None:
        return train.updates
    if train.epochs is not None:
        return round(train.epochs * tokens / train.batch_tokens)
    assert train.minutes is not None  # a recipe says when it ends
    return round(train.minutes * 60 / seconds)
