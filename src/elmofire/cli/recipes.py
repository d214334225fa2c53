"""`elmofire recipes`: the recipes inside the package, what they cost, and their text to start one's own from."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from elmofire.cli.options import json_option

if TYPE_CHECKING:
    from elmofire.train.cost import Cost

_COLUMNS = ("name", "parameters", "with head", "tokens", "FLOP/token", "FLOP", "H200", "description")
_WORDS = ("name", "description")  # columns that are no numbers


@click.command(
    short_help="List the recipes, or print one.",
    epilog="`elmofire recipes tiny > mine.toml` starts a recipe of your own.",
)
@click.argument("name", required=False)
@json_option
def recipes(name: str | None, as_json: bool) -> None:
    """List the recipes and what a whole run of each costs, or print the recipe NAME.

    Costs are computed from the sizes; a token counts once for both directions, and the last column is time on one H200.
    """
    from elmofire.train.recipes import find_recipe, recipe_file

    if name is not None:
        file = recipe_file(name)
        click.echo(json.dumps(asdict(find_recipe(file))) if as_json else file.read_text(encoding="utf-8"), nl=as_json)
        return
    found = _described()
    if as_json:
        click.echo(json.dumps({"recipes": found}))
        return
    rows = [_COLUMNS, *(_row(recipe) for recipe in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = zip(_COLUMNS, row, widths, strict=True)
        line = "  ".join(
            cell.ljust(width) if column in _WORDS else cell.rjust(width) for column, cell, width in cells
        ).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)


def _described() -> list[dict[str, Any]]:
    """The recipes of the package, the cheapest first."""
    from elmofire.train.cost import MEANT_FOR, cost_of
    from elmofire.train.recipes import find_recipe, recipe_names

    found = []
    for name in recipe_names():
        recipe, text = find_recipe(name), MEANT_FOR[name]
        about = {"name": name, "description": recipe.description, "text": text.about, "vocabulary": text.vocabulary}
        found.append(about | _cost(cost_of(recipe, text)))
    return sorted(found, key=lambda recipe: recipe["flops"])


def _cost(cost: "Cost") -> dict[str, Any]:
    each = cost.flops_per_token
    return {**cost._asdict(), "flops_per_token": {**each._asdict(), "total": each.total}}


def _row(recipe: dict[str, Any]) -> tuple[str, ...]:
    counts = [_short(recipe[name]) for name in ("parameters", "parameters_with_head", "tokens")]
    flops = [f"{amount:.1e}" for amount in (recipe["flops_per_token"]["total"], recipe["flops"])]
    return (recipe["name"], *counts, *flops, _time(recipe["hours"] * 3600), recipe["description"])


def _short(count: float) -> str:
    return f"{count / 1e9:.2f}B" if count >= 9.995e8 else f"{count / 1e6:.1f}M"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
