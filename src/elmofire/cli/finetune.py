"""`elmofire finetune`: a model goes on with text of a domain."""

import re

import click

from elmofire.cli.options import device_option, json_option, model_of, quiet_option, share_of
from elmofire.cli.training import RunLines, WithSettings, run_option, settings_argument, tell_result


@click.command(cls=WithSettings, short_help="Go on training a model on your text.")
@click.argument("model")
@settings_argument
@click.option("--text", required=True, multiple=True, metavar="FILE...", help="As `elmofire prepare` takes it.")
@run_option
@click.option(
    "--held-out",
    default="5%",
    show_default=True,
    metavar="FILE|SHARE",
    help="Text that tells which model is best: a file, or a share of the lines (0.05, 5%, or how many).",
)
@click.option(
    "--vocab",
    metavar="model|new|FILE",
    help="Predict the model's words; or those of the text, with a new head; or those of FILE, for a model without a vocabulary.",
)
@device_option
@json_option
@quiet_option
def finetune(
    model: str,
    settings: tuple[str, ...],
    text: tuple[str, ...],
    output: str,
    held_out: str,
    vocab: str | None,
    device: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Go on training MODEL on text of a domain, by the recipe `finetune` with settings changed as KEY=VALUE.

    Words are split as the model does it, and predicted with its own head; a model without a head gets a new one. Perplexities of the
    held-out text are told before and after, and the best model is kept, also if it is the one that was there. The prepared text lies
    beside the run, in RUN.corpus. Run the same command again to resume a run that was interrupted or killed.
    """
    from elmofire.cli.progress import Progress
    from elmofire.train.finetune import finetune_changed
    from elmofire.train.finetune import perplexities as before_and_after

    changes = [one for one in settings if re.match(r"[a-z_.]+\s*=", one)]
    more = [one for one in settings if one not in changes]  # a shell's pattern after --text gives many
    share = share_of(held_out)
    lines = RunLines(output, quiet=quiet)
    reading = Progress(total=None, quiet=quiet or not lines.first)

    def show(record: dict) -> None:
        reading.clear()
        lines(record)

    try:
        with lines.interruptible():
            finetune_changed(
                model_of(model),
                [*text, *more],
                changes,
                output=output,
                held_out=held_out if share is None else share,
                vocab=vocab,
                device=device,
                show=show,
                progress=reading,
            )
    finally:
        reading.clear()
    if lines.first:
        before, after = before_and_after(output)
        tell_result(output, lines, as_json=as_json, quiet=quiet, before=before, after=after)
