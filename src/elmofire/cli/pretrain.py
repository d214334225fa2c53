"""`elmofire pretrain`: a prepared corpus to a model, by a recipe."""

import click

from elmofire.cli.options import device_option, json_option, quiet_option
from elmofire.cli.training import RunLines, WithSettings, run_option, settings_argument, tell_result


@click.command(cls=WithSettings, short_help="Train a model on a corpus.")
@click.argument("recipe")
@settings_argument
@click.option("--data", required=True, metavar="CORPUS", help="A folder that `elmofire prepare` has made.")
@run_option
@device_option
@json_option
@quiet_option
def pretrain(
    recipe: str, settings: tuple[str, ...], data: str, output: str, device: str, as_json: bool, quiet: bool
) -> None:
    """Train a model by RECIPE, one of `elmofire recipes` or a file, with settings changed as KEY=VALUE.

    Run the same command again to resume a run that was interrupted or killed; it ends the same. RUN loads wherever a model does, from its
    first evaluation on. `torchrun --nproc-per-node N -m elmofire pretrain ...` shares the work among N GPUs.
    """
    from elmofire.train.pretrain import chosen_recipe, require_torch, run_recipe

    chosen = chosen_recipe(recipe, settings)
    require_torch()
    lines = RunLines(output, quiet=quiet)
    with lines.interruptible():
        run_recipe(chosen, data=data, output=output, device=device, show=lines)
    tell_result(output, lines, as_json=as_json, quiet=quiet)
