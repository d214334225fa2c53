"""`elmofire score`: log-probabilities of tokens and sentences."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from elmofire.cli.inputs import Inputs, note_truncated
from elmofire.cli.options import (
    format_option,
    pretokenized_option,
    quiet_option,
    sentences_option,
    takes_language_model,
)

if TYPE_CHECKING:
    from elmofire.lm.language_model import LanguageModel
    from elmofire.lm.scoring import SentenceScore

COLUMNS = ("sentence", "token", "word", "forward", "backward", "unknown")
_SPACES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})  # tokens of JSON files may hold any


@click.command(short_help="Print log-probabilities of tokens.")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@takes_language_model
@sentences_option
@pretokenized_option
@format_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a sentence, for programs.")
@quiet_option
def score(
    files: tuple[str, ...],
    load: "Callable[..., LanguageModel]",
    sentences: str,
    pretokenized: bool,
    input_format: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Natural log-probabilities of every token of FILEs or stdin, one sentence a line: given what is left of it, and given what is right.

    Tab-separated columns under a header: sentence, token, word, forward, backward, unknown. Tokens count from 1. Token 0 is the start of
    the sentence, which only the backward model predicts; the token after the last is its end, which only the forward model predicts. The
    sentence's sums follow in a row `total`. Where unknown is 1, the vocabulary lacks the word and <UNK> was scored.

    A blank line is a sentence without words; `perplexity` leaves it out.
    """
    from elmofire.cli.progress import Progress

    inputs = Inputs(files or ("-",), input_format, pretokenized=pretokenized, sentences=sentences)
    lm = load(quiet=quiet)
    progress = Progress(total=inputs.expected, quiet=quiet, data_on_stdout=True)
    try:
        for number, found in enumerate(lm.stream(inputs.sentences(lm.embedder, progress), progress=progress), 1):
            if number == 1 and not as_json:
                click.echo("\t".join(COLUMNS))
            if as_json:
                totals = {"forward_total": found.forward_total, "backward_total": found.backward_total}
                click.echo(json.dumps(asdict(found) | totals))
            else:
                rows = _rows(number, found, lm.boundaries)
                text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
                click.echo(text.encode(errors="backslashreplace"), nl=False)  # half a surrogate pair has no utf-8
    finally:
        progress.clear()
    if not quiet:
        note_truncated(lm.embedder)


def _rows(number: int, found: "SentenceScore", boundaries: tuple[str, str]) -> list[tuple[object, ...]]:
    """The rows of a sentence."""
    words = [boundaries[0], *found.tokens, boundaries[1]]
    forward = ["", *map(_shown, found.forward or [None] * (len(words) - 1))]
    backward = [*map(_shown, found.backward or [None] * (len(words) - 1)), ""]
    unknown = [0, *map(int, found.unknown), 0]
    tokens = [
        (number, place, word.translate(_SPACES), forward[place], backward[place], unknown[place])
        for place, word in enumerate(words)
    ]
    return [*tokens, (number, "total", "", _shown(found.forward_total), _shown(found.backward_total), sum(unknown))]


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
