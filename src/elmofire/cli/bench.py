"""`elmofire bench`: how fast this machine is, beside others, after seeing that the results are right."""

import json

import click

from elmofire.cli.options import json_option, model_of, pretokenized_option, quiet_option
from elmofire.errors import InputError

repeats_option = click.option(
    "--repeats", default=5, show_default=True, type=click.IntRange(min=5), help="Of each, in turn."
)


class Numbers(click.ParamType):
    """Whole numbers from 1, separated by commas."""

    name = "N,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        parts = str(value).split(",")
        if not all(part.isdecimal() and int(part) for part in parts):
            self.fail(f"{value!r} is no list of numbers from 1, such as 1,2", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


@click.group(short_help="Measure speed.")
def bench() -> None:
    """Measure speed: contenders take turns on the same weights and text, and what fails parity is not timed (exit code 1)."""


@bench.command(short_help="Text to vectors.")
@click.option("--model", "-m", help="A name, a folder, or OPTIONS,WEIGHTS; instead of --size.")
@click.option("--size", help="original or small (default): seeded random weights of a published size.")
@click.option(
    "--text", metavar="FILE", help="Sentences, as for `embed`; by default made-up ones that are like English."
)
@pretokenized_option
@click.option(
    "--sentences",
    default=320,
    show_default=True,
    type=click.IntRange(min=0),
    help="To embed in one call, from the text's start; 0: none.",
)
@click.option(
    "--singles", default=50, show_default=True, type=click.IntRange(min=0), help="To embed one at a time; 0: none."
)
@click.option("--device", default="cpu", show_default=True, help="cpu, or a torch device such as cuda.")
@click.option("--precision", default="float32", show_default=True, help="Some of float32, int16, int8, bfloat16.")
@click.option("--threads", default="1", show_default=True, type=Numbers(), help="Of the CPU, such as 1,2.")
@click.option("--engine", default="auto", show_default=True, help="Instruction sets, or numpy (float32 alone).")
@click.option("--peer", metavar="PYTHON", help="Of an environment that has AllenNLP, to run beside.")
@repeats_option
@json_option
@quiet_option
@click.pass_context
def embed(
    ctx: click.Context,
    model: str | None,
    size: str | None,
    text: str | None,
    pretokenized: bool,
    sentences: int,
    singles: int,
    device: str,
    precision: str,
    threads: tuple[int, ...],
    engine: str,
    peer: str | None,
    repeats: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """How fast text becomes vectors: one call for many sentences (tokens per second), and a call for each (milliseconds).

    Words are never looked up from an earlier call. A peer's ratios are for as many threads.
    """
    from elmofire.bench.contenders import Contender
    from elmofire.bench.embed import Plan, bench_embed
    from elmofire.bench.models import lively, sized
    from elmofire.bench.parity import BOUNDS
    from elmofire.bench.tables import aligned, corpus_rows, error_rows, single_rows
    from elmofire.bench.text import sample_sentences
    from elmofire.formats import load_weights

    if model and size:
        raise click.UsageError("--model and --size: give one of them")
    precisions = precision.split(",")
    if unknown := [name for name in precisions if name not in BOUNDS]:
        raise InputError(f"precision is {unknown[0]!r}, but should be one of {', '.join(BOUNDS)}")
    weights = load_weights(model_of(model)) if model else lively(sized(size or "small"), seed=0)
    count = max(sentences, singles)
    tokens = _read(text, count, pretokenized, weights.tokenizer) if text else sample_sentences(count)
    ours = [
        Contender(device=device, precision=name, threads=n, instruction_set=None if chosen == "auto" else chosen)
        for n in threads
        for chosen in engine.split(",")
        for name in precisions
        if chosen != "numpy" or name == "float32"
    ]
    if not ours:
        raise InputError("numpy has float32 only", hint="another --precision needs compiled kernels: --engine auto")
    if len(tokens) < count:
        click.echo(f"the text has {len(tokens)} sentences only", err=True)
    theirs = [Contender(library="allennlp", python=peer, threads=n) for n in threads] if peer else []
    plan = Plan(contenders=[*ours, *theirs], sentences=tokens[:sentences], singles=tokens[:singles], repeats=repeats)
    records = bench_embed(weights, plan, _said(quiet))
    if as_json:
        click.echo(json.dumps(records))
    else:
        parts = {"Errors against float64": error_rows, "One call": corpus_rows, "One sentence at a time": single_rows}
        for title, rows in parts.items():
            shown = rows(records)
            if len(shown) > 1:
                click.echo(f"{click.style(title, bold=True)}\n{aligned(shown)}\n")
    ctx.exit(int(any(record.get("refused") for record in records)))


@bench.command(short_help="The LSTM stacks in torch.")
@click.option("--device", default="cpu", show_default=True, help="cpu, or a torch device such as cuda.")
@click.option("--cells", type=click.IntRange(min=1), help="4096, or 1024 on a CPU.")
@click.option("--projection", type=click.IntRange(min=1), help="An eighth of the cells.")
@click.option("--layers", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--batch", type=Numbers(), help="Rows that run together: 128,512,1024, or 32 on a CPU.")
@click.option("--steps", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--precision", default="float32", show_default=True, help="float32, bfloat16, or both.")
@click.option("--mode", default="train", show_default=True, help="train or inference.")
@click.option(
    "--seconds", default=2.0, show_default=True, type=click.FloatRange(min=0, min_open=True), help="On a GPU."
)
@repeats_option
@json_option
@quiet_option
@click.pass_context
def lstmp(
    ctx: click.Context,
    device: str,
    cells: int | None,
    projection: int | None,
    layers: int,
    batch: tuple[int, ...] | None,
    steps: int,
    precision: str,
    mode: str,
    seconds: float,
    repeats: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """How fast the LSTM stacks of both directions run: every path of `lstmp`, torch.nn.LSTM and a plain loop.

    Training is forward, backward and all gradients. On a GPU, rates are those that hold for some seconds, with and without a CUDA
    graph, and as a share of what a large product reaches.
    """
    try:
        from elmofire.bench.lstmp import Setting, bench_lstmp
    except ImportError:
        from elmofire.errors import MissingExtra

        raise MissingExtra("bench lstmp", "torch") from None
    from elmofire.bench.stacks import Shape
    from elmofire.bench.tables import aligned, lstmp_notes, lstmp_rows

    cells = cells or (1024 if device == "cpu" else 4096)
    sizes = {"cells": cells, "projection": projection or max(1, cells // 8), "layers": layers, "steps": steps}
    if sizes["projection"] >= cells:
        raise InputError(f"a projection of {sizes['projection']} does not make {cells} cells fewer")
    shapes = [Shape(batch=rows, **sizes) for rows in batch or ((32,) if device == "cpu" else (128, 512, 1024))]
    records = []
    for name in precision.split(","):
        setting = Setting(device=device, precision=name, mode=mode, seconds=seconds, repeats=repeats)
        records += bench_lstmp(shapes, setting, say=_said(quiet))
    if as_json:
        click.echo(json.dumps(records))
    else:
        for note in lstmp_notes(records):
            click.echo(note)
        click.echo(f"\n{aligned(lstmp_rows(records))}")
    ctx.exit(int(any(record.get("refused") for record in records)))


def _said(quiet: bool):
    return (lambda line: None) if quiet else (lambda line: click.echo(line, err=True))


def _read(text: str, count: int, pretokenized: bool, tokenizer) -> list[list[str]]:
    """The first sentences of a file that have tokens."""
    from itertools import islice

    from elmofire.text.readers import read_sentences
    from elmofire.text.tokenizers import load_tokenizer

    split = load_tokenizer(tokenizer)
    lines = read_sentences(text, pretokenized=pretokenized)
    tokens = ([token.text for token in split(line)] if isinstance(line, str) else line for line in lines)
    return list(islice(filter(None, tokens), count))
