"""The command `elmofire`, one file per command. Heavy modules are imported when a command runs, so that help is instant."""

import os
import signal
import sys
import warnings
from types import FrameType

import click

from elmofire import __version__
from elmofire.cli.bench import bench
from elmofire.cli.convert import convert
from elmofire.cli.demo import demo
from elmofire.cli.embed import embed
from elmofire.cli.finetune import finetune
from elmofire.cli.info import info
from elmofire.cli.models import models
from elmofire.cli.perplexity import perplexity
from elmofire.cli.prepare import prepare
from elmofire.cli.pretrain import pretrain
from elmofire.cli.recipes import recipes
from elmofire.cli.score import score
from elmofire.cli.substitutes import substitutes
from elmofire.errors import ElmofireError, InputError


class Commands(click.Group):
    """The commands. Asking for AllenNLP's command `elmo` is an error that names ours."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "elmo":
            raise InputError(
                "`elmo` was AllenNLP's command; here it is `embed`, which takes the old flags",
                hint="elmofire embed IN --output OUT.hdf5 --pretokenized --all",
            )
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="elmofire", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Contextual word vectors from bidirectional language models."""
    context.color = _color()  # for all commands


for command in (
    bench,
    convert,
    demo,
    embed,
    finetune,
    info,
    models,
    perplexity,
    prepare,
    pretrain,
    recipes,
    score,
    substitutes,
):
    cli.add_command(command)


def main() -> None:
    """Run a command. A user's mistake becomes one error message and exit code 2."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `elmofire embed | head` ends quietly, as other tools do
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # jobs in the background of a script ignore it
        signal.signal(signal.SIGINT, _interrupt)
    warnings.showwarning = lambda message, *_args, **_kwargs: click.echo(f"warning: {message}", err=True)
    try:
        code = cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        code = 130
        # CPython notes a KeyboardInterrupt that has left an `exec`, as dataclasses use one, and would end the process by the signal
        # instead of with 130. An `exec` that succeeds clears the note.
        exec("")
    except (ElmofireError, OSError, MemoryError) as error:
        if os.environ.get("ELMOFIRE_DEBUG"):
            raise
        click.echo(f"{click.style('error:', fg='red', bold=True)} {_said(error)}", err=True, color=_color())
        code = 2
    sys.exit(code or 0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C as Python has it, but while torch is imported, when its C++ would abort: no command has begun to write by then."""
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch.__spec__, "_initializing", False):
        click.echo("interrupted", err=True)
        os._exit(130)
    signal.default_int_handler(number, frame)


def _said(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    if isinstance(error, MemoryError):
        return f"the memory has run out{f': {error}' if str(error) else ''}"
    return str(error)


def _color() -> bool | None:
    """Whether to write colors: never with NO_COLOR (https://no-color.org); None leaves it to click, which colors terminals only."""
    return False if os.environ.get("NO_COLOR") else None
