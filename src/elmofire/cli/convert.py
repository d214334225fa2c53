"""`elmofire convert`: a model of any known family into one of our formats."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmofire.cli.options import json_option, load_model, options_option, quiet_option, vocab_option
from elmofire.terminal import counted

if TYPE_CHECKING:
    from elmofire.formats.weights import Weights


@click.command(short_help="Write a model in another format.")
@click.argument("model", metavar="IN")
@click.argument("folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Choice(["native", "hdf5"]), required=True, help="The format of OUT.")
@click.option(
    "--storage",
    type=click.Choice(["float32", "bfloat16", "float16", "int8"]),
    help="How a native file stores numbers, by default as IN does; all but float32 are smaller and less exact.",
)
@options_option
@vocab_option
@json_option
@quiet_option
def convert(
    model: str,
    folder: Path,
    target: str,
    storage: str | None,
    options: str | None,
    vocab: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the model IN (a name, a folder, an archive, a checkpoint, or OPTIONS,WEIGHTS) to the folder OUT."""
    from elmofire.formats import save_weights
    from elmofire.formats.native import storage_of

    weights = load_model(model, options=options, vocab=vocab, quiet=quiet)
    save_weights(weights, folder, target, storage=storage)
    read = _described(weights, model)
    stored = storage or (storage_of(weights) if target == "native" else "float32")
    written = {
        "folder": str(folder),
        "format": target,
        "storage": stored,
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
    }
    if target == "hdf5" and not quiet and (lost := _beyond_hdf5(weights)):
        click.echo(f"note: left out, as the hdf5 format cannot hold them: {', '.join(lost)}", err=True)
    if as_json:
        click.echo(json.dumps({"read": read, "written": written}))
        return
    click.echo(f"read     {model}: {_told(read)}")
    click.echo(f"written  {folder}: {target}, {stored}, {written['bytes'] / 1e6:,.1f} MB")


def _beyond_hdf5(weights: "Weights") -> list[str]:
    """What files of 2018's format will not say of a model."""
    from elmofire.formats.weights import ENGLISH

    lost: list[str] = []
    if weights.tokenizer != ENGLISH:  # by which they are read
        tokenizer = weights.tokenizer
        lost.append(f"the tokenizer ({tokenizer.name} {tokenizer.version}, {tokenizer.language})")
    if weights.training:
        lost.append("the training record")
    if weights.mixes:
        lost.append("the learned mixes")
    return lost


def _described(weights: "Weights", model: str) -> dict[str, Any]:
    """What a model is, for programs."""
    return {
        "model": model,
        "format": weights.source.format if weights.source else None,
        "parameters": weights.config.parameters,
        "head": weights.config.head,
        "vocabulary": len(weights.vocabulary) if weights.vocabulary is not None else None,
        "mixes": len(weights.mixes),
    }


def _told(read: dict[str, Any]) -> str:
    """The same for people."""
    parts = [str(read["format"]), f"{read['parameters']:,} parameters"]
    parts.append(f"a head of {counted(read['head'], 'word')}" if read["head"] else "no head")
    parts.append("no vocabulary" if read["vocabulary"] is None else f"a vocabulary of {read['vocabulary']:,}")
    if read["mixes"]:
        parts.append(f"{read['mixes']} learned mixes" if read["mixes"] > 1 else "a learned mix")
    return ", ".join(parts)
