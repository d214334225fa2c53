"""`elmofire perplexity`: how well the language model predicts a text."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from elmofire.cli.inputs import Inputs, note_truncated
from elmofire.cli.options import (
    format_option,
    json_option,
    pretokenized_option,
    quiet_option,
    sentences_option,
    takes_language_model,
)

if TYPE_CHECKING:
    from elmofire.lm.language_model import LanguageModel


@click.command(short_help="Measure how well a text is predicted.")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@takes_language_model
@click.option(
    "--lanes",
    type=click.IntRange(min=1),
    help="Compute as in 2018: so many streams that carry their state, without the incomplete last step.",
)
@sentences_option
@pretokenized_option
@format_option
@json_option
@quiet_option
def perplexity(
    files: tuple[str, ...],
    load: "Callable[..., LanguageModel]",
    lanes: int | None,
    sentences: str,
    pretokenized: bool,
    input_format: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Perplexity of FILEs or stdin, one sentence a line: forward, backward and their geometric mean. Blank lines are left out.

    Each sentence starts from a zero state, and every word and the end of the sentence (backward: its start) counts. Figures compare only
    where vocabulary, tokens and convention are the same.
    """
    from elmofire.cli.progress import Progress

    inputs = Inputs(files or ("-",), input_format, pretokenized=pretokenized, sentences=sentences, blank_lines=False)
    lm = load(quiet=quiet)
    progress = Progress(total=inputs.expected, quiet=quiet)
    try:
        found = lm.perplexity(inputs.sentences(lm.embedder, progress), lanes=lanes, progress=progress)
    finally:
        progress.clear()
    if not quiet:
        note_truncated(lm.embedder)
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    click.echo(f"forward     {_shown(found.forward)}")
    click.echo(f"backward    {_shown(found.backward)}")
    click.echo(f"mean        {_shown(found.mean)} (geometric)")
    click.echo(f"events      {found.events:,} in each direction")
    click.echo(f"unknown     {100 * found.unknown:.2f}% of the words")
    click.echo(f"convention  {found.convention}")


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
