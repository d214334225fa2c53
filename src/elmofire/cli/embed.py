"""`elmofire embed`: text files to vectors."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmofire.cli.inputs import Inputs, note_truncated
from elmofire.cli.old_elmo import EPILOG, takes_old_flags
from elmofire.cli.options import (
    device_option,
    format_option,
    json_option,
    model_of,
    model_option,
    options_option,
    precision_option,
    pretokenized_option,
    quiet_option,
    threads_option,
)
from elmofire.cli.progress import Progress, counted
from elmofire.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elmofire.embed.embedder import Embedder
    from elmofire.formats.weights import Array

_NUMBERS_AT_ONCE = 1 << 16  # of a line of JSON


@click.command(epilog=EPILOG, short_help="Sentences to vectors.")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@model_option
@click.option("--output", "-o", help="OUT.hdf5, OUT.npz or OUT.safetensors; without it, JSON lines go to stdout.")
@click.option(
    "--layers",
    "-l",
    default="average",
    show_default=True,
    help="average, top, all, a layer's number, or mix weights as 0.1,0,2.",
)
@pretokenized_option
@format_option
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="Of the numbers written.",
)
@click.option("--boundaries", is_flag=True, help="Keep the vectors of the start and end markers.")
@options_option
@device_option
@precision_option
@threads_option
@json_option
@quiet_option
@takes_old_flags
def embed(
    files: tuple[str, ...],
    model: str,
    output: str | None,
    layers: str,
    pretokenized: bool,
    input_format: str,
    dtype: str,
    boundaries: bool,
    options: str | None,
    device: str,
    precision: str,
    threads: int | None,
    layout: str,
    batch_tokens: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Embed sentences, one a line, from FILEs (text, .conllu, .jsonl; also .gz, .xz, .bz2, .zst, .bz3) or stdin.

    An interrupted run that reads files and writes OUT goes on where it was when the same command is given again.
    """
    from elmofire.embed.embedder import Embedder
    from elmofire.formats import load_weights

    inputs = Inputs(files or ("-",), input_format, pretokenized)
    wanted = {"layers": _layers(layers), "boundaries": boundaries}
    if output is not None:
        from elmofire.embed.outputs import check_layout

        check_layout(Path(output), layout)
    weights = load_weights(model_of(model), options=options)
    elmo = Embedder(weights, device=device, precision=precision, threads=threads)
    elmo.batch_tokens = batch_tokens or elmo.batch_tokens
    progress = Progress(total=None if quiet else inputs.count(), quiet=quiet)
    resumed = 0
    try:
        if output is None:
            for tokens, vectors in elmo.stream(inputs.sentences(elmo, progress), **wanted, progress=progress):
                for part in _json_line(tokens, vectors, dtype):
                    click.echo(part, nl=False)
        else:
            from elmofire.embed.job import embed_to_file

            stamp = inputs.stamp()
            report = embed_to_file(
                elmo,
                inputs.sentences(elmo, progress),
                Path(output),
                **wanted,
                dtype=dtype,
                layout=layout,
                tokenizer=None if pretokenized else elmo.info()["tokenizer"],
                input_stamp=stamp,
                progress=progress,
            )
            resumed = report.resumed
    except KeyboardInterrupt:
        progress.clear()
        if output is not None and Path(f"{output}.parts").is_dir():
            click.echo(f"the same command goes on where it was: what is done lies in {output}.parts", err=True)
        raise
    finally:
        progress.clear()
    _tell(elmo, progress, inputs.read, resumed, output, as_json=as_json, quiet=quiet)


def _json_line(tokens: list[str], vectors: "Array", dtype: str) -> "Iterator[str]":
    """`{"tokens": [..], "vectors": [..]}`, a long one in parts: as Python's numbers, vectors take ten times their room."""
    if vectors.size <= _NUMBERS_AT_ONCE:
        yield json.dumps({"tokens": tokens, "vectors": vectors.astype(dtype).tolist()}) + "\n"
        return
    yield f'{{"tokens": {json.dumps(tokens)}, "vectors": '
    if vectors.ndim == 2:
        yield from _json_rows(vectors, dtype)
    else:
        for number, layer in enumerate(vectors):
            yield ", " if number else "["
            yield from _json_rows(layer, dtype)
        yield "]"
    yield "}\n"


def _json_rows(rows: "Array", dtype: str) -> "Iterator[str]":
    at_once = max(1, _NUMBERS_AT_ONCE // rows.shape[1])
    for first in range(0, len(rows), at_once):
        yield ", " if first else "["
        yield json.dumps(rows[first : first + at_once].astype(dtype).tolist())[1:-1]
    yield "]"


def _layers(text: str) -> str | int | list[float]:
    if text.isdigit():
        return int(text)
    if text in ("average", "top", "all"):
        return text
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"--layers is {text!r}, but should be average, top, all, a layer's number, or mix weights as 0.1,0,2"
        ) from None


def _tell(
    elmo: "Embedder",
    progress: Progress,
    read: list[int],
    resumed: int,
    output: str | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """What was done: for a person on stderr, for a program on stdout."""
    sentences, tokens = read
    if not quiet:
        earlier = f" ({resumed:,} of them from an earlier run)" if resumed else ""
        click.echo(
            f"{counted(sentences, 'sentence')}{earlier}, {counted(tokens, 'token')} in {progress.seconds:.1f} s "
            f"({progress.rate:,.0f} tokens/s)" + (f" -> {output}" if output else ""),
            err=True,
        )
        note_truncated(elmo)
    if as_json and output:
        summary = {
            "output": output,
            "sentences": sentences,
            "tokens": tokens,
            "resumed": resumed,
            "truncated": elmo.truncated,
        }
        click.echo(
            json.dumps({**summary, "seconds": round(progress.seconds, 3), "tokens_per_second": round(progress.rate, 1)})
        )
