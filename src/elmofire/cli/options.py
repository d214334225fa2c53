"""What several commands take."""

import click

model_option = click.option(
    "--model", "-m", default="en-small", show_default=True, help="A name, a folder, or OPTIONS,WEIGHTS."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="No progress and no notes.")


def model_of(text: str) -> str | tuple[str, str]:
    """`OPTIONS.json,WEIGHTS.hdf5` is a pair; anything else a name or a folder."""
    options, comma, weights = text.partition(",")
    return (options, weights) if comma and options.endswith(".json") else text
