"""`elmofire embed`: text files to vectors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmofire.cli.options import json_option, model_of, model_option, quiet_option
from elmofire.errors import InputError

if TYPE_CHECKING:
    from elmofire.cli.progress import Progress
    from elmofire.embed.embedder import Embedder


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@model_option
@click.option("--output", "-o", help="OUT.hdf5, OUT.npz or OUT.safetensors; without it, JSON lines go to stdout.")
@click.option("--layers", "-l", default="average", show_default=True, help="average, top, all, a layer's number, or mix weights as 0.1,0,2.")
@click.option("--pretokenized", is_flag=True, help="Tokens are separated by spaces already.")
@click.option("--format", "input_format", default="auto", help="text, conllu or jsonl, where the file's name does not tell.")
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True, help="Of the numbers written.")
@click.option("--boundaries", is_flag=True, help="Keep the vectors of the start and end markers.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, or a torch device such as cuda.")
@click.option("--threads", type=click.IntRange(min=1), help="Of the CPU.")
@json_option
@quiet_option
def embed(
    files: tuple[str, ...],
    model: str,
    output: str | None,
    layers: str,
    pretokenized: bool,
    input_format: str,
    dtype: str,
    boundaries: bool,
    device: str,
    threads: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Embed sentences, one a line, from FILEs (text, .conllu, .jsonl; also .gz, .bz2, .xz) or stdin.

    An interrupted run that reads files and writes OUT goes on where it was when the same command is given again.
    """
    from elmofire.cli.progress import Progress
    from elmofire.embed.embedder import Embedder

    inputs = files or ("-",)
    choice = _layers(layers)
    if output is not None:
        from elmofire.embed.outputs import output_format

        output_format(Path(output))
    elmo = Embedder.load(model_of(model), device=device, threads=threads)
    sentences = _tokenized(elmo, inputs, input_format, pretokenized)
    progress = Progress(total=None if quiet else _total(inputs, input_format), quiet=quiet)
    try:
        if output is None:
            _to_stdout(elmo, sentences, choice, boundaries, dtype, progress)
            summary = {"sentences": progress.sentences, "tokens": progress.tokens}
        else:
            summary = _to_file(elmo, sentences, Path(output), choice, boundaries, dtype, inputs, input_format, pretokenized, progress)
    finally:
        progress.clear()
    summary |= {"seconds": round(progress.seconds, 3), "tokens_per_second": round(progress.rate, 1), "truncated": elmo.truncated}
    if not quiet:
        _tell(summary, elmo, to_file=output)
    if as_json and output is not None:
        click.echo(json.dumps(summary))


def _layers(text: str) -> str | int | list[float]:
    if text.isdigit():
        return int(text)
    if text in ("average", "top", "all"):
        return text
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--layers is {text!r}, but should be average, top, all, a layer's number, or mix weights as 0.1,0,2") from None


def _tokenized(elmo: "Embedder", inputs: tuple[str, ...], input_format: str, pretokenized: bool) -> Iterator[list[str]]:
    """All inputs one after the other, as token lists: files may mix text and tokens."""
    from elmofire.text.readers import read_sentences

    for path in inputs:
        for sentence in read_sentences(path, format=input_format, pretokenized=pretokenized):
            yield [token.text for token in elmo.tokenize(sentence)] if isinstance(sentence, str) else sentence


def _total(inputs: tuple[str, ...], input_format: str) -> int | None:
    """How many sentences there are, where that can be counted before reading them."""
    from elmofire.text.readers import read_sentences

    if not all(Path(path).is_file() for path in inputs):
        return None
    return sum(1 for path in inputs for _ in read_sentences(path, format=input_format, pretokenized=True))


def _to_stdout(elmo: "Embedder", sentences: Iterator[list[str]], layers, boundaries: bool, dtype: str, progress: "Progress") -> None:
    for tokens, vectors in elmo.stream(sentences, layers, boundaries=boundaries, progress=progress):
        click.echo(json.dumps({"tokens": tokens, "vectors": vectors.astype(dtype).tolist()}))


def _to_file(
    elmo: "Embedder",
    sentences: Iterator[list[str]],
    output: Path,
    layers,
    boundaries: bool,
    dtype: str,
    inputs: tuple[str, ...],
    input_format: str,
    pretokenized: bool,
    progress: "Progress",
) -> dict:
    from elmofire.embed.job import embed_to_file

    stamp = None
    if all(Path(path).is_file() for path in inputs):
        stats = [(str(Path(path).absolute()), Path(path).stat()) for path in inputs]
        stamp = json.dumps([input_format, pretokenized, [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]])
    report = embed_to_file(
        elmo, sentences, output, layers=layers, dtype=dtype, boundaries=boundaries, input_stamp=stamp, progress=progress
    )
    return {"output": str(output), "sentences": report.sentences, "tokens": report.tokens, "resumed": report.resumed}


def _tell(summary: dict, elmo: "Embedder", *, to_file: str | None) -> None:
    resumed = f" ({summary['resumed']:,} of them from an earlier run)" if summary.get("resumed") else ""
    click.echo(
        f"{summary['sentences']:,} sentences{resumed}, {summary['tokens']:,} tokens in {summary['seconds']:.1f} s"
        f" ({summary['tokens_per_second']:,.0f} tokens/s){f' -> {to_file}' if to_file else ''}",
        err=True,
    )
    if elmo.truncated:
        limit = elmo.config.encoder.max_characters - 2
        click.echo(f"note: {elmo.truncated:,} tokens were longer than {limit} bytes; the model reads their beginning", err=True)
