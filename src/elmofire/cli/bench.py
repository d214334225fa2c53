"""`elmofire bench`: how fast this machine is, after a check that the results are right."""

import json

import click

from elmofire.cli.options import json_option, load_model, options_option, pretokenized_option, quiet_option
from elmofire.errors import InputError
from elmofire.terminal import counted

repeats_option = click.option(
    "--repeats", default=5, show_default=True, type=click.IntRange(min=5), help="How often each contender runs."
)


class Numbers(click.ParamType):
    """Whole numbers from 1, separated by commas."""

    name = "N,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        parts = str(value).split(",")
        if not all(part.isdecimal() and int(part) for part in parts):
            self.fail(f"{value!r} is not a list of numbers from 1, such as 1,2", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


@click.group(short_help="Measure speed.")
def bench() -> None:
    """Measure speed. Contenders take turns on the same weights and text; those with wrong results are not timed (exit code 1)."""


@bench.command(short_help="Text to vectors.")
@click.option("--model", "-m", help="A name, a folder, or OPTIONS,WEIGHTS; instead of --size.")
@click.option("--size", help="small (default) or original: random weights of a published size.")
@options_option
@click.option("--text", metavar="FILE", help="Sentences, as for `embed`; by default made-up ones much like English.")
@pretokenized_option
@click.option(
    "--sentences",
    default=320,
    show_default=True,
    type=click.IntRange(min=0),
    help="How many to embed in one call; 0 for none.",
)
@click.option(
    "--singles",
    default=50,
    show_default=True,
    type=click.IntRange(min=0),
    help="How many to embed one at a time; 0 for none.",
)
@click.option("--device", default="cpu", show_default=True, help="cpu, or a torch device such as cuda.")
@click.option("--precision", default="float32", show_default=True, help="One or more of float32,int16,int8,bfloat16.")
@click.option("--threads", default="1", show_default=True, type=Numbers(), help="CPU threads; 1,2 measures both.")
@click.option(
    "--engine",
    default="auto",
    show_default=True,
    help="auto, numpy (float32 only), or instruction sets such as avx512,avx2.",
)
@click.option("--peer", metavar="PYTHON", help="The Python of an environment with AllenNLP, to compare with.")
@repeats_option
@json_option
@quiet_option
@click.pass_context
def embed(
    ctx: click.Context,
    model: str | None,
    size: str | None,
    options: str | None,
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

    Every call computes all its words anew. A peer is compared at the same number of threads.
    """
    from elmofire.bench.contenders import Contender
    from elmofire.bench.embed import Plan, bench_embed
    from elmofire.bench.models import lively, sized
    from elmofire.bench.parity import BOUNDS
    from elmofire.bench.tables import aligned, corpus_rows, error_rows, single_rows
    from elmofire.bench.text import sample_sentences

    if model and size:
        raise click.UsageError("--model and --size: give one of them")
    if options and not model:
        raise click.UsageError("--options belongs to a --model")
    say = _said(quiet)
    precisions = precision.split(",")
    if unknown := [name for name in precisions if name not in BOUNDS]:
        raise InputError(f"precision is {unknown[0]!r}, but should be one of {', '.join(BOUNDS)}")
    weights = load_model(model, options=options, quiet=quiet) if model else lively(sized(size or "small"), seed=0)
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
        say(f"note: the text has only {counted(len(tokens), 'sentence')}")
    theirs = [Contender(library="allennlp", python=peer, threads=n) for n in threads] if peer else []
    plan = Plan(contenders=[*ours, *theirs], sentences=tokens[:sentences], singles=tokens[:singles], repeats=repeats)
    records = bench_embed(weights, plan, say)
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
@click.option("--cells", type=click.IntRange(min=1), help="4096 by default, on a CPU 1024.")
@click.option("--projection", type=click.IntRange(min=1), help="An eighth of the cells by default.")
@click.option("--layers", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--batch", type=Numbers(), help="Rows that run together; 128,512,1024 by default, on a CPU 32.")
@click.option("--steps", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--precision", default="float32", show_default=True, help="float32, bfloat16, or both.")
@click.option("--mode", default="train", show_default=True, help="train or inference.")
@click.option(
    "--seconds",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="How long each runs on a GPU.",
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

    Training is forward, backward and all gradients. On a GPU each runs for some seconds, with and without a CUDA graph, and rates are
    also shown as a share of what a large matrix product reaches.
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
        raise InputError(f"--projection is {sizes['projection']}, but should be less than the {cells} cells")
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
