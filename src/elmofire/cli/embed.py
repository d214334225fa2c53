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
    load_model,
    model_option,
    options_option,
    precision_option,
    pretokenized_option,
    quiet_option,
    sentences_option,
    threads_option,
)
from elmofire.cli.progress import Progress
from elmofire.errors import InputError
from elmofire.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elmofire.embed.embedder import Embedder
    from elmofire.formats.weights import Array

_NUMBERS_AT_ONCE = 1 << 16  # of a line of JSON


@click.command(epilog=EPILOG, short_help="Turn sentences into vectors.")
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
@sentences_option
@pretokenized_option
@format_option
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="The type of the numbers written.",
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
    sentences: str,
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

    Run the same command again to resume an interrupted run that reads files and writes OUT.
    """
    from elmofire.embed.embedder import Embedder

    inputs = Inputs(files or ("-",), input_format, pretokenized=pretokenized, sentences=sentences)
    wanted = {"layers": _layers(layers), "boundaries": boundaries}
    if output is not None:
        from elmofire.embed.outputs import check_layout, check_place

        if not output:
            raise InputError("--output is empty, but should be a name such as OUT.hdf5")
        output = str(Path(output).expanduser())  # shells leave the ~ of --output=~/out.hdf5 to the program
        check_layout(Path(output), layout)
        check_place(Path(output))
    weights = load_model(model, options=options, quiet=quiet)
    elmo = Embedder(weights, device=device, precision=precision, threads=threads)
    elmo.batch_tokens = batch_tokens or elmo.batch_tokens
    progress = Progress(total=inputs.expected, quiet=quiet, data_on_stdout=output is None)
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
        if output is not None and Path(f"{output}.parts").is_dir():
            progress.note(f"run the same command again to resume: what is done is kept in {output}.parts")
        raise
    finally:
        progress.clear()
    _tell(elmo, progress, inputs.read, resumed, output, as_json=as_json, quiet=quiet)


def _json_line(tokens: list[str], vectors: "Array", dtype: str) -> "Iterator[str]":
    """`{"tokens": [..], "vectors": [..]}`. A long line comes in parts, as Python's numbers take ten times the memory of an array."""
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
    if text in ("average", "top", "all"):
        return text
    try:
        return int(text) if text.removeprefix("-").isdecimal() else [float(part) for part in text.split(",")]
    except ValueError:  # also of a number with thousands of digits
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
