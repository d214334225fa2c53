"""`elmofire models`: what loads by name, and whether it is on this machine already."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmofire.cli.options import json_option, quiet_option
from elmofire.errors import InputError

if TYPE_CHECKING:
    from elmofire.formats.catalogue import Entry

_COLUMNS = ("name", "language", "family", "size", "license", "here")
_PARTS_OF = {"no": ("nb", "nn")}  # Norwegian is written in two ways


@click.group(invoke_without_command=True)
@click.option("--language", metavar="CODE", help="Only this language, as in de, zh or zh-Hant.")
@json_option
@click.pass_context
def models(context: click.Context, language: str | None, as_json: bool) -> None:
    """List the models that load by name, or `get` one.

    A size with ~ is computed from the number of parameters; - means that no source states it.
    """
    if context.invoked_subcommand:
        return
    found = _packaged() + _published()
    if language is not None:
        known = sorted({row["language"] for row in found} - {""})
        found = [row for row in found if _speaks(row["language"], language)]
        if not found:
            raise InputError(f"no model for the language {language!r}", hint=f"there are models for {', '.join(known)}")
    if as_json:
        click.echo(json.dumps({"models": found}))
        return
    rows = [{**row, "size": _shown_size(row), "here": "yes" if row["here"] else "no"} for row in found]
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in _COLUMNS}
    header = "  ".join(column.ljust(widths[column]) for column in _COLUMNS)
    click.echo(click.style(header, bold=True))
    for row in rows:
        click.echo("  ".join(row[column].ljust(widths[column]) for column in _COLUMNS).rstrip())


@models.command()
@click.argument("name")
@quiet_option
def get(name: str, quiet: bool) -> None:
    """Fetch the model NAME (or hf:OWNER/REPOSITORY), and print where it is.

    Run the same command again to resume an interrupted download. Copy the folder to use the model on a machine without a network.
    """
    from elmofire.formats import names

    if name == names.RANDOM_SMALL:
        raise InputError(f"{name}: is built in and has no files to fetch", hint=f"it loads as it is: --model {name}")
    found = names.model_named(name, quiet=quiet)
    if found is None:
        raise names.unknown_model(name)
    click.echo(found)


def _speaks(language: str, wanted: str) -> bool:
    wanted = wanted.replace("_", "-").lower()
    language = language.lower()
    return wanted in (language, language.split("-")[0]) or language in _PARTS_OF.get(wanted, ())


def _packaged() -> list[dict[str, Any]]:
    """Models inside the package, described as the catalogue's are."""
    from elmofire.formats import names
    from elmofire.formats.files import read_json_object

    rows: list[dict[str, Any]] = []
    for name in names.packaged_models():
        folder = names.packaged_folder(name)
        assert folder is not None  # it was listed just now
        tokenizer = read_json_object(folder / "config.json").get("tokenizer", {})
        about = {
            "family": "native",
            "license": "Apache-2.0",
            "parameters": None,
            "tokenization": tokenizer.get("name", ""),
        }
        rows.append(
            {
                "name": name,
                "language": tokenizer.get("language", ""),
                **about,
                "note": "in the package",
                "source": "elmofire",
            }
            | {"size": _bytes_in(folder), "here": True, "path": str(folder), "files": {}}
        )
    return rows


def _published() -> list[dict[str, Any]]:
    from elmofire.formats.catalogue import catalogue

    return [_described(entry) for entry in catalogue()]


def _described(entry: "Entry") -> dict[str, Any]:
    return {
        "name": entry.name,
        "language": entry.language,
        "family": entry.family,
        "license": entry.license,
        "parameters": entry.parameters or None,
        "tokenization": entry.tokenization,
        "note": entry.note,
        "source": entry.source,
        "size": _bytes_in(entry.folder) if entry.here else entry.size or None,
        "here": entry.here,
        "path": str(entry.model if entry.here else entry.folder),
        "files": {file.name: list(file.urls) for file in entry.files},
    }


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _shown_size(row: dict[str, Any]) -> str:
    from elmofire.formats.catalogue import entry_named

    if row["size"]:
        return f"{row['size'] / 1e6:,.0f} MB" if row["size"] >= 5e5 else f"{row['size'] / 1e3:,.0f} kB"
    entry = entry_named(row["name"])
    return f"~{entry.expected_size / 1e6:,.0f} MB" if entry and entry.expected_size else "-"
