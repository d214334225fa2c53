"""`elmofire demo`: one word in several senses, and what each layer makes of it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmofire.cli.options import load_model, model_option, options_option, quiet_option
from elmofire.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elmofire.analysis.usages import Nearest, Usage
    from elmofire.formats.weights import Array
    from elmofire.lm.language_model import LanguageModel

USAGES = {
    "play": (
        ("theater", "Her first *play* had a cast of four and closed after eleven performances."),
        ("theater", "The critics praised the *play* and the actor who took the part of the king."),
        ("sport", "Both teams *play* their home games on the old ground behind the station."),
        ("sport", "He will *play* in the final against Brazil if his knee has healed."),
        ("children", "The children *play* with wooden blocks on the kitchen floor."),
        ("children", "After school the girls *play* in the garden until their mother calls them."),
    ),
    "bank": (
        ("money", "The *bank* raised its interest rates for the third time this year."),
        ("money", "He owed the *bank* more money than his shop had ever earned."),
        ("money", "She opened an account at a *bank* and put her wages into it every month."),
        ("river", "We sat on the *bank* of the river and watched the barges go by."),
        ("river", "The ferry drifted toward the muddy *bank* and ran aground among the reeds."),
        ("river", "Willows and tall grass grow along the north *bank* of the stream."),
    ),
    "cell": (
        ("biology", "The nucleus of the *cell* holds most of its genetic material."),
        ("biology", "When a *cell* divides, its membrane closes around both halves."),
        ("prison", "The guard locked the prisoner in his *cell* for the night."),
        ("prison", "He spent nine years in a narrow *cell* without a window."),
        ("phone", "She left her *cell* phone on the back seat of a taxi."),
        ("phone", "His *cell* phone rang twice while the judge was speaking."),
    ),
}
BLANKS = (
    "The doctor examined the *___* before the operation.",
    "They walked along the *___* of the river.",
    "The *___* lent him the money to buy a house.",
)
_PICTURE = "elmofire-demo.svg"
_LEFT, _RIGHT = 15, 16  # characters of context that a line shows
_FILLERS = 8  # words for a blank


@click.command(short_help="Show one word in several senses.")
@model_option
@options_option
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    default=_PICTURE,
    show_default=True,
    help="Where to write the picture, an SVG.",
)
@quiet_option
def demo(model: str, options: str | None, output: Path, quiet: bool) -> None:
    """Embed sentences with play, bank and cell in several senses, and show which usages are nearest to each other at each layer.

    Then fill blanks with words, and draw a picture of the usages.
    """
    if output.suffix != ".svg":
        raise InputError(f"{output}: the picture is an SVG", hint=f"--output {output.with_suffix('.svg')}")

    from elmofire.analysis.picture import draw_usages
    from elmofire.analysis.usages import find_usage, usage_vectors
    from elmofire.embed.embedder import Embedder
    from elmofire.formats.files import written_aside
    from elmofire.lm.language_model import LanguageModel

    weights = load_model(model, options=options, quiet=quiet)
    lm = LanguageModel(weights, device="cpu") if weights.config.head and weights.vocabulary else None
    elmo = lm.embedder if lm else Embedder(weights, device="cpu")
    size, width = weights.config.parameters, weights.config.width
    click.echo(f"{model}: {size / 1e6:.1f} million parameters, vectors of {width} numbers.")
    click.echo("One word in several senses, and the usage whose vector is nearest to each, with their cosine:")
    words: dict[str, tuple[list[Usage], Array]] = {}
    for word, marked in USAGES.items():
        usages = [find_usage(sentence, sense, elmo.tokenize) for sense, sentence in marked]
        words[word] = usages, usage_vectors(elmo, usages)
        _show_nearest(word, *words[word])
    click.echo("\n* is a usage in another sense. Layer 0 reads the word alone: all its usages are one vector, and")
    click.echo("the figure there is what chance gives. The other layers read the sentence.")
    if lm:
        _fill_blanks(lm)
    else:
        click.echo("\nThis model has no head with words, so it fills no blanks.")
    with written_aside(output) as aside:
        aside.write_text(draw_usages(f"One word in several senses, as {model} reads it", words), encoding="utf-8")
    click.echo(f"\nA picture of the usages at each layer: {output}")


def _show_nearest(word: str, usages: "Sequence[Usage]", vectors: "Array") -> None:
    """A line for each usage, a column for each layer, and how often the nearest usage has the same sense."""
    from elmofire.analysis.usages import nearest, same_sense

    senses = [usage.sense for usage in usages]
    found = [nearest(of_layer) for of_layer in vectors]
    longest = max(len(sense) for marked in USAGES.values() for sense, _ in marked)  # one width for all words
    names = [f"{number + 1} {sense}" for number, sense in enumerate(senses)]
    start, column = 4 + longest + _LEFT + len(word) + _RIGHT, longest + 10
    head = "".join(f"{f'layer {layer}':<{column}}" for layer in range(1, len(found)))
    click.echo(f"\n{click.style(word, bold=True)}{'':{start - len(word)}}{'layer 0':<14}{head}".rstrip())
    click.echo(f"{'':{start}}context-free")
    for number, usage in enumerate(usages):
        before, after = usage.context(_LEFT, _RIGHT)
        line = f"{names[number]:<{longest + 3}}{before:>{_LEFT}}{click.style(word, bold=True)}{after:<{_RIGHT}} "
        line += f"{_among(found[0][number], names):<14}"
        for of_layer in found[1:]:
            [closest, *_] = of_layer[number].which
            shown = f"{names[closest]} {of_layer[number].cosine:.2f}{'' if senses[closest] == usage.sense else ' *'}"
            color = "green" if senses[closest] == usage.sense else "red"
            line += click.style(shown, fg=color) + " " * (column - len(shown))
        click.echo(line.rstrip())
    first, *others = [f"{same_sense(of_layer, senses):.3g} of {len(usages)}" for of_layer in found]
    figures = f"{first:<14}" + "".join(f"{figure:<{column}}" for figure in others)
    click.echo(f"{'the nearest has the same sense':>{start - 1}} {figures}".rstrip())


def _among(closest: "Nearest", names: list[str]) -> str:
    """The nearest usage in layer 0, where all may be alike."""
    return "all alike" if len(closest.which) == len(names) - 1 else names[closest.which[0]]


def _fill_blanks(lm: "LanguageModel") -> None:
    from elmofire.formats.config import BACKWARD, FORWARD
    from elmofire.lm.substitutes import BOTH

    sides = {FORWARD: "left", BACKWARD: "right"}
    sides = {way: sides[way] for way in lm.config.directions}
    stands = ", ".join(f"{side} of it" for side in sides.values())
    if len(sides) > 1:
        sides[BOTH] = "both"
        stands += ", and by both"
    click.echo(f"\nWords for a blank, by what stands {stands}:")
    for blank in BLANKS:
        click.echo(f"\n  {blank.replace('*', '')}")
        for direction, side in sides.items():
            words = "  ".join(item.word for item in lm.substitutes(blank, top=_FILLERS, direction=direction))
            click.echo(f"    {side:<6} {words}")
