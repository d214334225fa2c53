"""`elmofire substitutes`: what could stand in a word's place."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from elmofire.cli.options import json_option, pretokenized_option, quiet_option, takes_language_model
from elmofire.errors import InputError

if TYPE_CHECKING:
    from elmofire.lm.language_model import LanguageModel


@click.command(short_help="Suggest words for a place in a sentence.")
@click.argument("text", nargs=-1, required=True, metavar='"... *word* ..."')
@takes_language_model
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many words.")
@pretokenized_option
@json_option
@quiet_option
def substitutes(
    text: tuple[str, ...],
    load: "Callable[..., LanguageModel]",
    top: int,
    pretokenized: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """The words likeliest to stand where the *marked* word stands, with their natural log-probabilities.

    One list by the forward model, which sees what is left of it, one by the backward model, which sees what is right, one by both together.
    """
    from elmofire.lm.substitutes import BOTH, find_marked
    from elmofire.text.tokenizers import TokenizerInfo, load_tokenizer

    sentence, *more = text
    if more:
        raise InputError(
            f"the text came as {len(text)} arguments, but should be one",
            hint=f'put quotes around it: elmofire substitutes "{" ".join(text)}"',
        )
    lm = load(quiet=quiet)
    tokenize = load_tokenizer(TokenizerInfo("whitespace", "", 1)) if pretokenized else lm.tokenize
    tokens, position = find_marked(sentence, tokenize)
    directions = lm.config.directions if len(lm.config.directions) == 1 else (*lm.config.directions, BOTH)
    found = {direction: lm.substitutes(tokens, position, top=top, direction=direction) for direction in directions}
    if as_json:
        lists = {
            direction: [substitute._asdict() for substitute in found[direction]] if direction in found else None
            for direction in ("forward", "backward", BOTH)
        }
        click.echo(json.dumps({"tokens": tokens, "position": position, **lists}))
        return
    columns = [
        _column(direction, [(item.word, item.log_probability) for item in found[direction]]) for direction in found
    ]
    for row in zip(*columns, strict=True):
        click.echo("   ".join(row).rstrip())


def _column(title: str, entries: list[tuple[str, float]]) -> list[str]:
    """A title and words with their figures, all of one width."""
    lines = [f"{'':10}{title}", *[f"{log:8.3f}  {word}" for word, log in entries]]
    width = max(map(len, lines))
    return [line.ljust(width) for line in lines]
