"""What several commands take."""

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from elmofire.lm.language_model import LanguageModel

model_option = click.option(
    "--model", "-m", default="en-small", show_default=True, help="A name, a folder, or OPTIONS,WEIGHTS."
)
options_option = click.option("--options", metavar="FILE", help="An options.json for a model that comes without.")
vocab_option = click.option("--vocab", metavar="FILE", help="The head's words, for a model without a vocabulary.")
pretokenized_option = click.option("--pretokenized", is_flag=True, help="Tokens are separated by spaces already.")
format_option = click.option(
    "--format", "input_format", default="auto", help="text, conllu or jsonl, where the file's name does not tell."
)
device_option = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, or a torch device such as cuda."
)
precision_option = click.option(
    "--precision",
    type=click.Choice(["float32", "int16", "int8", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Of the arithmetic; int16 and int8 are the CPU's, bfloat16 a GPU's.",
)
threads_option = click.option("--threads", type=click.IntRange(min=1), help="Of the CPU.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="No progress and no notes.")


def model_of(text: str) -> str | tuple[str, str]:
    """`OPTIONS.json,WEIGHTS.hdf5` is a pair; anything else a name or a folder."""
    options, comma, weights = text.partition(",")
    return (options, weights) if comma and (options.endswith(".json") or weights.endswith(".json")) else text


def share_of(text: str) -> float | int | None:
    """`5%` or `0.05` is a share, `200` is how many; None is neither.

    >>> share_of("5%"), share_of("0.05"), share_of("200"), share_of("held.txt")
    (0.05, 0.05, 200, None)
    """
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    number = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)(%?)", text)
    return None if number is None else float(number[1]) / (100 if number[2] else 1)


def load_language_model(model: str, vocab: str | None, device: str, threads: int | None) -> "LanguageModel":
    from elmofire.lm.language_model import LanguageModel

    return LanguageModel.load(model_of(model), vocab=vocab, device=device, threads=threads)
