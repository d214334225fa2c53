"""What a recipe says about training: plain data, checked when it is read."""

import math
from dataclasses import dataclass, field

from elmofire.errors import RecipeError
from elmofire.formats.config import FORWARD, BilmConfig

_LONGEST = 10_000  # steps of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """How the text is read."""

    # Whole sentences from a zero state; or "lanes": endless streams whose state is carried, as in 2018.
    reading: str = "sentences"
    # That a batch's sentences may have, in steps.
    lengths: tuple[int, ...] = (*range(4, 42, 2), 44, 48, 52, 56, 60, 64, 72, 80)
    steps: int = 20  # of a lane in one update; its gradients end there
    reset: bool = False  # lanes: zero state at every sentence's start
    text: str = "same"  # for both directions; or "different", as in 2018
    order: str = "shuffled"  # anew in every epoch; or "text", as the corpus has it

    def __post_init__(self) -> None:
        problems = [
            *_one_of("reading", self.reading, "sentences", "lanes"),
            *_one_of("text", self.text, "same", "different"),
            *_one_of("order", self.order, "shuffled", "text"),
            *_at_least("steps", self.steps, 1),
        ]
        if not self.lengths or min(self.lengths) < 1 or list(self.lengths) != sorted(set(self.lengths)):
            problems.append(f"lengths are {list(self.lengths)}, but should be positive and rise")
        elif max(self.lengths) > _LONGEST or self.steps > _LONGEST:
            problems.append(f"lengths and steps should be at most {_LONGEST}")
        if self.order == "text" and self.text == "different":
            problems.append("text is 'different', so order cannot be 'text'")
        if self.reset and self.reading == "sentences":
            problems.append("reset is true, but sentences always start with a zero state: it is for reading 'lanes'")
        _raise(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """What is made small."""

    softmax: str = "sampled"  # or "full"
    samples: int = 8192  # words drawn for each direction and update
    factor: float = 1.0  # on the loss before its gradients are taken; 2018: the steps of a lane

    def __post_init__(self) -> None:
        problems = [*_one_of("softmax", self.softmax, "sampled", "full"), *_at_least("samples", self.samples, 1)]
        if not 0 < self.factor < math.inf:
            problems.append(f"factor is {self.factor:g}, but should be positive")
        _raise(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """How parameters follow gradients."""

    name: str = "adamw"  # or "adagrad", "sgd"
    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)  # adamw
    epsilon: float = 1e-8  # adamw
    weight_decay: float = 0.0  # adamw, on everything but biases
    initial_accumulator: float = 1.0  # adagrad
    clip: float | None = 1.0  # of the gradient's norm over all parameters
    warmup: int = 0  # updates in which the rate rises from zero
    # To zero at the end; or "cosine", "constant", "plateau": halved where an evaluation gains little.
    schedule: str = "linear"
    plateau_gain: float = 1.0  # in perplexity; less than this is little
    average: float | None = None  # decay of a running mean of the weights, which is what is evaluated and kept

    def __post_init__(self) -> None:
        problems = [
            *_one_of("name", self.name, "adamw", "adagrad", "sgd"),
            *_one_of("schedule", self.schedule, "linear", "cosine", "constant", "plateau"),
            *_at_least("warmup", self.warmup, 0),
        ]
        for name, value in (
            ("rate", self.rate),
            ("epsilon", self.epsilon),
            ("clip", self.clip),
            ("initial_accumulator", self.initial_accumulator),
        ):
            if value is not None and not 0 < value < math.inf:
                problems.append(f"{name} is {value:g}, but should be positive")
        if not self.weight_decay >= 0:
            problems.append(f"weight_decay is {self.weight_decay:g}, but should not be negative")
        elif self.weight_decay and self.name != "adamw":
            problems.append(f"weight_decay is {self.weight_decay:g}, but {self.name} has none: it is for adamw")
        for name, value in (("betas", self.betas[0]), ("betas", self.betas[1]), ("average", self.average)):
            if value is not None and not 0 <= value < 1:
                problems.append(f"{name} is {value:g}, but should be from 0 to below 1")
        _raise(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutSettings:
    """Shares of numbers that are set to zero, drawn anew for every step; 2018: 0.1 everywhere."""

    input: float = 0.1  # of the first layer
    layers: float = 0.1  # inputs of the layers above
    output: float = 0.1  # of the last layer, before the softmax

    def __post_init__(self) -> None:
        values = {"input": self.input, "layers": self.layers, "output": self.output}
        _raise([f"{name} is {value:g}, but should be from 0 to below 1" for name, value in values.items() if not 0 <= value < 1])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How long, how much at a time, and how exactly."""

    updates: int | None = None
    minutes: float | None = None  # whichever comes first ends the run
    epochs: float | None = None  # another way to give the updates
    seed: int = 1
    batch_tokens: int = 10240  # of an update, counted once for both directions
    accumulate: int | None = None  # parts into which an update is split; null: as few as fit the memory
    memory_gb: float | None = None  # to live in; null: what the device has
    precision: str = "auto"  # of products: bfloat16 on a GPU, float32 elsewhere; or one of these by name
    deterministic: bool = False  # on a GPU: the same bits every time, a little slower
    log_every: int = 100  # updates
    evaluate_every: int | None = None  # updates; null: ten times in the run
    evaluate_on: str | None = None  # a held-out split by name; null: that cut from the training text, else the first
    checkpoint_minutes: float = 5.0
    checkpoint_every: int | None = None  # updates, beside the minutes

    def __post_init__(self) -> None:
        problems = [
            *_one_of("precision", self.precision, "auto", "float32", "bfloat16"),
            *_at_least("batch_tokens", self.batch_tokens, 1),
            *_at_least("log_every", self.log_every, 1),
            *_at_least("seed", self.seed, 0),
        ]
        for name, value in (
            ("updates", self.updates),
            ("accumulate", self.accumulate),
            ("evaluate_every", self.evaluate_every),
            ("checkpoint_every", self.checkpoint_every),
        ):
            if value is not None:
                problems += _at_least(name, value, 1)
        for name, value in (
            ("minutes", self.minutes),
            ("epochs", self.epochs),
            ("memory_gb", self.memory_gb),
            ("checkpoint_minutes", self.checkpoint_minutes),
        ):
            if value is not None and not 0 < value < math.inf:
                problems.append(f"{name} is {value:g}, but should be positive")
        if self.updates is None and self.minutes is None and self.epochs is None:
            problems.append("one of updates, minutes and epochs should say when to end")
        if self.updates is not None and self.epochs is not None:
            problems.append("updates and epochs are two ways to say the same; give one")
        _raise(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is made. The head's size comes from the corpus's vocabulary, and `model.head` is not given."""

    description: str = ""
    model: BilmConfig = field(default_factory=BilmConfig)
    data: DataSettings = field(default_factory=DataSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    dropout: DropoutSettings = field(default_factory=DropoutSettings)
    train: TrainSettings

    def __post_init__(self) -> None:
        problems: list[str] = []
        if self.model.head:
            problems.append("`model.head` is given, but comes from the corpus's vocabulary")
        if FORWARD not in self.model.directions:
            problems.append("`model.directions` is the backward one alone; both are trained, or the forward one")
        if self.model.encoder.words:
            problems.append("`model.encoder.words` is given, but only models that read characters are trained")
        _raise(problems)


def _one_of(name: str, value: str, *allowed: str) -> list[str]:
    return [] if value in allowed else [f"{name} is {value!r}, but should be one of {', '.join(allowed)}"]


def _at_least(name: str, value: int, least: int) -> list[str]:
    return [] if value >= least else [f"{name} is {value}, but should be at least {least}"]


def _raise(problems: list[str]) -> None:
    if problems:
        raise RecipeError("; ".join(problems))
