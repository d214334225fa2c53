"""`elmofire info`: what a model is, and what runs it here."""

import json
from typing import Any

import click

from elmofire.cli.options import json_option, load_model, options_option, quiet_option


@click.command(short_help="Describe a model.")
@click.argument("model", default="en-small")
@options_option
@json_option
@quiet_option
def info(model: str, options: str | None, as_json: bool, quiet: bool) -> None:
    """Describe MODEL: a name, a folder, an archive, or OPTIONS,WEIGHTS."""
    import importlib.metadata
    import platform

    import numpy

    from elmofire import __version__
    from elmofire.bench.parity import BOUNDS
    from elmofire.embed.device import CPU_PRECISIONS, GPU_PRECISIONS, cuda_devices, torch_sees_a_gpu
    from elmofire.embed.embedder import Embedder
    from elmofire.engine.compiled import library
    from elmofire.formats.catalogue import cache_folder
    from elmofire.formats.native import storage_of

    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    weights = load_model(model, options=options, quiet=quiet)
    described = Embedder(weights, device="cpu").info()
    del described["truncated"]
    described["stored_as"] = storage_of(weights)
    here = {
        "elmofire": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "torch": torch,
        "compiled_kernels": library.available() or "none, using numpy",
        "not_compiled_for": library.missing() or None,
        "cache": str(cache_folder()),
        "gpus": cuda_devices(),
        "device": "cuda" if cuda_devices() and torch_sees_a_gpu() else "cpu",
    }
    # Errors of a layer's vectors, mean over tokens. The tests and `elmofire bench` hold every engine to them.
    off = {name: f"off by at most {bound.relative:.1%} of a vector's length" for name, bound in BOUNDS.items()}
    offered = [*CPU_PRECISIONS, *(GPU_PRECISIONS if here["device"] == "cuda" else ())]
    here["precisions"] = {name: "exact to rounding" if name == "float32" else off[name] for name in offered}
    if here["device"] == "cuda":
        here["lstmp_on_the_gpu"] = _paths()
    if as_json:
        click.echo(json.dumps({**described, "here": here}))
        return
    described["training"] = _training(described["training"])
    for title, table in (("model", described), ("here", here)):
        click.echo(click.style(title, bold=True))
        for key, value in table.items():
            if key == "not_compiled_for" and not value:
                continue
            click.echo(f"  {key.replace('_', ' '):<18} {_shown(value)}")


def _training(record: dict[str, Any]) -> object:
    """Of a run of ours the figures, since the rest (its recipe too) is for --json; any other record as it stands."""
    match record:
        case {
            "update": int(update),
            "held_out": {"mean": int() | float() as mean, "unknown": int() | float() as unknown},
        }:
            return f"update {update:,}, held-out perplexity {mean:.1f}, unknown {unknown:.1%}"
        case _:
            return record


def _paths() -> dict[str, str]:
    """The path that the LSTMs take on the GPU in each precision, and why not the others."""
    import torch

    from elmofire.kernels.paths import PATHS, PRECISIONS, choose_path, why_not

    found: dict[str, str] = {}
    gpu = torch.device("cuda")
    for precision, dtype in PRECISIONS.items():
        sentence, batch = (choose_path("auto", gpu, dtype, rows) for rows in (1, 1024))
        reasons = [f"not {path}: {why}" for path in PATHS if (why := why_not(path, gpu, dtype))]
        chosen = batch if batch == sentence else f"{batch}, {sentence} for a few sentences"
        found[precision] = "; ".join([chosen, *reasons])
    return found


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_inner(item)}" for key, item in value.items()) or "-"
    return str(value)


def _inner(value: object) -> str:
    """What stands in a dict, with brackets around what has parts itself."""
    shown = " ".join(_shown(value).splitlines())  # a recipe has many
    return f"({shown})" if isinstance(value, dict | list) and value else shown
