"""The flags of AllenNLP's `elmo` command, understood by `elmofire embed` and turned into its own."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from elmofire.errors import InputError

EPILOG = (
    "The flags of AllenNLP's old `elmo` command are understood too: --all, --top, --average, --options-file, --weight-file, "
    "--cuda-device, --batch-size, --forget-sentences, --use-sentence-keys."
)

_OLD = (
    click.option("--all", "old_all", is_flag=True, hidden=True),
    click.option("--top", "old_top", is_flag=True, hidden=True),
    click.option("--average", "old_average", is_flag=True, hidden=True),
    click.option("--options-file", hidden=True),
    click.option("--weight-file", hidden=True),
    click.option("--cuda-device", type=int, hidden=True),
    click.option("--batch-size", type=click.IntRange(min=1), hidden=True),
    click.option("--forget-sentences", is_flag=True, hidden=True),
    click.option("--use-sentence-keys", is_flag=True, hidden=True),
)

_TOKENS_A_SENTENCE = 64  # so that the old default of 64 sentences is the new one of 4096 tokens


def takes_old_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command gets `model`, `layers` and `device` as the old flags say, `layout`, and `batch_tokens`."""

    @wraps(command)
    def translated(**given: Any) -> None:
        old = {option: given.pop(option) for option in _NAMES}
        given.update(layers=_layers(old, given), model=_model(old, given), device=_device(old, given))
        given["layout"] = _layout(old, given)
        given["batch_tokens"] = old["batch_size"] and old["batch_size"] * _TOKENS_A_SENTENCE
        command(**given)

    for option in reversed(_OLD):
        translated = option(translated)
    return translated


_NAMES = (
    "old_all",
    "old_top",
    "old_average",
    "options_file",
    "weight_file",
    "cuda_device",
    "batch_size",
    "forget_sentences",
    "use_sentence_keys",
)


def _layers(old: dict[str, Any], given: dict[str, Any]) -> str:
    asked = [name for name in ("all", "top", "average") if old[f"old_{name}"]]
    if len(asked) + _is_given("layers") > 1:
        flags = [*[f"--{name}" for name in asked], *(["--layers"] if _is_given("layers") else [])]
        raise InputError(f"{' and '.join(flags)} exclude each other")
    return asked[0] if asked else given["layers"]


def _model(old: dict[str, Any], given: dict[str, Any]) -> str:
    options, weights = old["options_file"], old["weight_file"]
    if options is None and weights is None:
        return given["model"]
    if options is None or weights is None:
        raise InputError("--options-file and --weight-file belong together: one of them is missing")
    if _is_given("model"):
        raise InputError("--model excludes --options-file and --weight-file")
    return f"{options},{weights}"


def _device(old: dict[str, Any], given: dict[str, Any]) -> str:
    number = old["cuda_device"]
    if number is None:
        return given["device"]
    if _is_given("device"):
        raise InputError("--device excludes --cuda-device")
    return "cpu" if number < 0 else f"cuda:{number}"


def _layout(old: dict[str, Any], given: dict[str, Any]) -> str:
    if not old["forget_sentences"] and not old["use_sentence_keys"]:
        return "index"
    if given["output"] is None:
        raise InputError(
            "--forget-sentences and --use-sentence-keys are about HDF5 files", hint="add --output OUT.hdf5"
        )
    return "sentences" if old["use_sentence_keys"] else "numbers"


def _is_given(parameter: str) -> bool:
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE
