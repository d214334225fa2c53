"""`elmofire substitutes`: what could stand in a word's place."""

import json

import click

from elmofire.cli.options import (
    device_option,
    json_option,
    load_language_model,
    model_option,
    pretokenized_option,
    threads_option,
    vocab_option,
)
from elmofire.errors import InputError


@click.command(short_help="Words that could stand in a place.")
@click.argument("text", nargs=-1, required=True, metavar='"... *word* ..."')
@model_option
@vocab_option
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many words.")
@pretokenized_option
@device_option
@threads_option
@json_option
def substitutes(
    text: tuple[str, ...],
    model: str,
    vocab: str | None,
    top: int,
    pretokenized: bool,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """The words likeliest to stand where the *marked* word stands, with their natural log-probabilities.

    By the forward model, which sees what is left of it; by the backward model, which sees what is right of it; and by both together.
    """
    from elmofire.lm.substitutes import BOTH, find_marked
    from elmofire.text.tokenizers import TokenizerInfo, load_tokenizer

    sentence, *more = text
    if more:
        raise InputError(
            f"the text came as {len(text)} arguments, but should be one",
            hint=f'put quotes around it: elmofire substitutes "{" ".join(text)}"',
        )
    lm = load_language_model(model, vocab, device, threads)
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
