"""`elmofire prepare`: text to a corpus that training reads; `pack` and `unpack` move one to another machine."""

import json
import re
from pathlib import Path

import click

from elmofire.cli.options import json_option, pretokenized_option, quiet_option, share_of
from elmofire.errors import InputError
from elmofire.terminal import counted

_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class _Verbs(click.Group):
    """A command that takes files, unless the first argument is one of its verbs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args and args[0] in self.commands else ["text", *args])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return (None, text, args[1:]) if args[0] == "text" else super().resolve_command(ctx, args)


@click.group(cls=_Verbs, short_help="Text to a corpus for training.")
def prepare() -> None:
    """Text to a corpus for training."""


processes_option = click.option(
    "--processes", type=click.IntRange(min=1), help="How many work at once; all cores by default."
)


class _AsItsGroup(click.Context):
    """Of the command that is called by the name of its group alone."""

    @property
    def command_path(self) -> str:
        return super().command_path.rstrip()


class _Text(click.Command):
    context_class = _AsItsGroup


@click.command(
    cls=_Text,
    epilog="`elmofire prepare pack CORPUS ARCHIVE` packs a corpus into pieces that can be moved, `elmofire prepare unpack ARCHIVE "
    "CORPUS` makes it again.",
)
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("--output", "-o", required=True, metavar="CORPUS", help="The folder to make.")
@click.option("--language", default="en", show_default=True, help="Its code; it decides how words are split.")
@pretokenized_option
@click.option(
    "--sentences",
    type=click.Choice(["split", "lines"]),
    default="split",
    show_default=True,
    help="split: find them in each line, a paragraph or less. lines: each is one already, as always with --pretokenized.",
)
@click.option(
    "--documents",
    type=click.Choice(["auto", "files", "records", "blocks"]),
    default="auto",
    show_default=True,
    help="What a document is: a file, a record of JSON lines, or a block between blank lines. auto: records of .jsonl, else files.",
)
@click.option(
    "--titles", metavar="PATTERN", default="", help="Leave out lines in which this regular expression is found."
)
@click.option(
    "--held-out",
    metavar="[NAME=]SHARE|N",
    default="0",
    help="Documents to hold out: a share (0.01 or 1%) or how many; NAME is the split's, by default heldout.",
)
@click.option(
    "--held-out-text",
    multiple=True,
    metavar="NAME=TEXT",
    help="Text of its own for a held-out split NAME; may be repeated.",
)
@click.option(
    "--vocabulary",
    metavar="N|FILE",
    default="100000",
    show_default=True,
    help="How many words to predict, <S>, </S> and <UNK> among them; or a vocab.txt.",
)
@click.option("--min-count", type=click.IntRange(min=1), default=1, help="Leave rarer words out of the vocabulary.")
@click.option(
    "--unique", type=click.Choice(["sentences", "documents"]), default=None, help="Train on each of them once only."
)
@click.option(
    "--check-against",
    multiple=True,
    metavar="FILE",
    help="Evaluation text to look for in the training text; may be repeated.",
)
@click.option("--ngram", type=click.IntRange(min=1), default=13, show_default=True, help="Words in a row to match.")
@click.option("--drop-overlaps", is_flag=True, help="Leave out the training sentences that are found so.")
@processes_option
@json_option
@quiet_option
def text(
    texts: tuple[str, ...],
    output: str,
    language: str,
    pretokenized: bool,
    sentences: str,
    documents: str,
    titles: str,
    held_out: str,
    held_out_text: tuple[str, ...],
    vocabulary: str,
    min_count: int,
    unique: str | None,
    check_against: tuple[str, ...],
    ngram: int,
    drop_overlaps: bool,
    processes: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make a CORPUS of TEXTs: files (.txt, .jsonl; also .gz, .xz, .bz2, .zst, .bz3), folders, patterns, or a Hugging Face data set as
    hf:NAME[:CONFIG][@SPLIT][#COLUMN].

    Run the same command again to resume an interrupted run.
    """
    from elmofire.cli.progress import Progress
    from elmofire.train.corpus.prepare import prepare as prepare_corpus
    from elmofire.train.corpus.report import (
        covered_note,
        language_note,
        long_sentences_note,
        report_lines,
        short_lines_notes,
        unknown_note,
    )
    from elmofire.train.corpus.settings import corpus_settings

    held_out_texts: dict[str, list[str]] = {}
    for given in held_out_text:
        name, equals, path = given.partition("=")
        if not (name and equals and path):
            raise InputError(f"--held-out-text is {given!r}, but should be NAME=TEXT")
        held_out_texts.setdefault(name, []).append(path)
    held_out_name, equals, number = held_out.rpartition("=")
    share = share_of(number)
    if share is None:
        raise InputError(f"--held-out is {number!r}, but should be a share as 0.01 or 1%, or a number of documents")
    settings = {
        "language": language,
        "pretokenized": pretokenized,
        "sentences": sentences,
        "documents": documents,
        "titles": titles,
        "held_out": share,
        "held_out_name": held_out_name if equals else "heldout",
        "vocabulary": int(vocabulary) if vocabulary.isdecimal() else vocabulary,
        "min_count": min_count,
        "unique": unique or "",
        "check_against": check_against,
        "ngram": ngram,
        "drop_overlaps": drop_overlaps,
    }
    if not quiet and (told := language_note(corpus_settings(settings).tokenizer().info)):
        click.echo(f"note: {told}", err=True)
    progress = Progress(total=None, quiet=quiet)

    def note(text: str) -> None:
        progress.clear()
        if not quiet:
            click.echo(f"{text} ({progress.seconds:.0f} s)", err=True)

    try:
        corpus = prepare_corpus(
            texts,
            output,
            held_out_texts=held_out_texts,
            processes=processes,
            progress=progress,
            note=note,
            **settings,
        )
    except KeyboardInterrupt:
        progress.clear()
        if not quiet:
            click.echo(f"{output}: run the same command again to resume", err=True)
        raise
    finally:
        progress.clear()
    if as_json:
        click.echo(json.dumps({"output": output, "seconds": round(progress.seconds, 3), **corpus.table}))
        return
    for line in report_lines(corpus.table):
        click.echo(line)
    if quiet:
        return
    table = corpus.table
    for told in (long_sentences_note(table), unknown_note(table), covered_note(table), *short_lines_notes(table)):
        if told:
            click.echo(f"note: {told}", err=True)


@prepare.command()
@click.argument("corpus")
@click.argument("archive")
@click.option("--piece", default="16MiB", show_default=True, help="The most that one file takes.")
@processes_option
@json_option
def pack(corpus: str, archive: str, piece: str, processes: int | None, as_json: bool) -> None:
    """Pack CORPUS into the folder ARCHIVE, in pieces that can be moved one by one, each with a checksum."""
    from elmofire.train.archive.packing import pack as pack_corpus

    packed = pack_corpus(corpus, archive, piece_bytes=_bytes(piece), processes=processes)
    if as_json:
        click.echo(
            json.dumps({"pieces": packed.pieces, "bytes": packed.bytes, "bits_per_token": packed.bits_per_token})
        )
        return
    click.echo(f"{counted(packed.pieces, 'piece')}, {packed.bytes:,} bytes, {packed.bits_per_token:.2f} bits a token")


@prepare.command()
@click.argument("archive")
@click.argument("corpus")
@processes_option
def unpack(archive: str, corpus: str, processes: int | None) -> None:
    """Make the folder CORPUS again out of ARCHIVE, a folder with all pieces."""
    from elmofire.train.archive.packing import unpack as unpack_corpus

    unpack_corpus(archive, corpus, processes=processes)
    click.echo(str(Path(corpus)))


def _bytes(given: str) -> int:
    size = re.fullmatch(r"(\d{1,12})\s*([kmg]?)(?:i?b)?", given.lower())
    if size is None:
        raise InputError(f"--piece is {given!r}, but should be a size as 16MiB")
    return int(size[1]) * _SIZES[size[2]]
