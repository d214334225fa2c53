"""`elmofire perplexity`: how well the language model predicts a text."""

import json
from dataclasses import asdict

import click

from elmofire.cli.inputs import Inputs, note_truncated
from elmofire.cli.options import (
    device_option,
    format_option,
    json_option,
    load_language_model,
    model_option,
    pretokenized_option,
    quiet_option,
    threads_option,
    vocab_option,
)


@click.command(short_help="How well a text is predicted.")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@model_option
@vocab_option
@click.option(
    "--lanes", type=click.IntRange(min=1), help="As in 2018: so many streams with carried state, the last step dropped."
)
@pretokenized_option
@format_option
@device_option
@threads_option
@json_option
@quiet_option
def perplexity(
    files: tuple[str, ...],
    model: str,
    vocab: str | None,
    lanes: int | None,
    pretokenized: bool,
    input_format: str,
    device: str,
    threads: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Perplexity of FILEs, or of stdin, one sentence a line, blank lines left out: forward, backward and their geometric mean.

    Each sentence starts from a zero state, and every word and the end of the sentence (backward: its start) counts. Figures compare only
    where vocabulary, tokens and convention are the same.
    """
    from elmofire.cli.progress import Progress

    inputs = Inputs(files or ("-",), input_format, pretokenized, blank_lines=False)
    lm = load_language_model(model, vocab, device, threads)
    progress = Progress(total=None if quiet else inputs.count(), quiet=quiet)
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
