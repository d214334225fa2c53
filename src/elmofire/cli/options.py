"""Options of several commands, and the models that they name."""

import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from elmofire.formats.weights import Weights
    from elmofire.lm.language_model import LanguageModel

LINES, SPLIT = "lines", "split"  # how sentences stand in a file

model_option = click.option(
    "--model", "-m", default="en-small", show_default=True, help="A name, a folder, or OPTIONS,WEIGHTS."
)
options_option = click.option("--options", metavar="FILE", help="options.json, for a model that comes without one.")
vocab_option = click.option("--vocab", metavar="FILE", help="The words of the head, for a model without a vocabulary.")
pretokenized_option = click.option(
    "--pretokenized", is_flag=True, help="The text is tokenized: spaces separate the tokens."
)
sentences_option = click.option(
    "--sentences",
    type=click.Choice([LINES, SPLIT]),
    default=LINES,
    show_default=True,
    help="lines: each line is a sentence. split: find the sentences in each line, a paragraph or less.",
)
format_option = click.option(
    "--format",
    "input_format",
    default="auto",
    show_default=True,
    help="text, conllu or jsonl; auto goes by the file's name.",
)


def _checked_device(context: click.Context, _parameter: click.Parameter, device: str) -> str:
    if not context.resilient_parsing:  # a shell that completes a word should not wait for numpy
        from elmofire.embed.device import check_device_name

        check_device_name(device)
    return device


device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    callback=_checked_device,
    help="auto, cpu, or a torch device such as cuda.",
)
precision_option = click.option(
    "--precision",
    type=click.Choice(["float32", "int16", "int8", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Of the arithmetic: int16 and int8 are for CPUs, bfloat16 is for GPUs.",
)
threads_option = click.option("--threads", type=click.IntRange(min=1), help="CPU threads, by default all.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="No progress and no notes.")


def model_of(text: str) -> str | tuple[str, str]:
    """`OPTIONS.json,WEIGHTS.hdf5` is a pair; anything else a name or a folder."""
    options, comma, weights = text.partition(",")
    return (options, weights) if comma and (options.endswith(".json") or weights.endswith(".json")) else text


def share_of(text: str) -> float | int | None:
    """`5%` or `0.05` is a share, `200` is how many, anything else is None.

    >>> share_of("5%"), share_of("0.05"), share_of("200"), share_of("held.txt")
    (0.05, 0.05, 200, None)
    """
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    number = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)(%?)", text)
    return None if number is None else float(number[1]) / (100 if number[2] else 1)


def load_model(model: str, *, options: str | None = None, vocab: str | None = None, quiet: bool = False) -> "Weights":
    """The model that the options of a command name."""
    from elmofire.formats import load_weights

    return load_weights(model_of(model), options=options, vocab=vocab, quiet=quiet)


def takes_language_model(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a language model and what runs it. The command gets `load`, which takes `quiet` and loads it."""

    @wraps(command)
    def with_load(
        model: str,
        options: str | None,
        vocab: str | None,
        device: str,
        precision: str,
        threads: int | None,
        **others: Any,
    ) -> None:
        def load(*, quiet: bool = False) -> "LanguageModel":
            from elmofire.lm.language_model import LanguageModel

            weights = load_model(model, options=options, vocab=vocab, quiet=quiet)
            return LanguageModel(weights, device=device, precision=precision, threads=threads)

        command(load=load, **others)

    added = (model_option, options_option, vocab_option, device_option, precision_option, threads_option)
    for option in reversed(added):
        with_load = option(with_load)
    return with_load
