"""Usages of words as a picture: SVG without a plotting library, a row for each word, a panel for each layer."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmofire.analysis.usages import Usage, layer_name, nearest, plane, same_sense
from elmofire.formats.weights import Array

NARROW, WIDE, HEIGHT = 190, 430, 280  # of the panels' insides, in pixels; layer 0 has one point and needs little room
LEFT, TOP, GAP, ABOVE, BELOW = 24, 84, 18, 66, 28  # ABOVE: a word's title and the panels' own
MARGIN, MARKER = 34, 6  # between points and frame; half of a marker's size
# Told apart by shape too, and by readers who see fewer colors: after Okabe and Ito's palette.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#8c6d00", "#56748c")
GRAY = "#59636e"
FONT, LINE = 12, 17  # a label's size and height
SLACK = 0.06  # of a label's width, which is an estimate, at least
CHARACTERS = 16  # of context on each side of a word, at most
STYLE = f"""
  text {{ font: {FONT}px system-ui, "Helvetica Neue", Arial, sans-serif; fill: #1f2328 }}
  .title {{ font-weight: 600; font-size: 19px }}
  .word {{ font-weight: 700; font-size: 16px }}
  .panel {{ font-weight: 600; font-size: 13px }}
  .note {{ fill: {GRAY} }}
  .marked {{ font-weight: 700 }}
  .frame {{ fill: #fbfcfd; stroke: #c3cad2 }}
  .leader {{ stroke: #a3abb5; stroke-width: 0.9 }}
"""


class Box(NamedTuple):
    """A rectangle: its left upper corner and its size."""

    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: "Box") -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )

    def within(self, width: float, height: float) -> bool:
        return self.x >= 0 and self.y >= 0 and self.x + self.width <= width and self.y + self.height <= height

    def crossed(self, start: tuple[float, float], end: tuple[float, float]) -> bool:
        """Whether a line runs through it, looked at in places a few pixels apart."""
        steps = 1 + int(math.dist(start, end) / 3)
        line = [[a + (b - a) * n / steps for a, b in zip(start, end, strict=True)] for n in range(steps + 1)]
        return any(self.x < x < self.x + self.width and self.y < y < self.y + self.height for x, y in line)

    def nearest_to(self, x: float, y: float) -> tuple[float, float]:
        return min(max(x, self.x), self.x + self.width), min(max(y, self.y), self.y + self.height)


def draw_usages(title: str, words: Mapping[str, tuple[Sequence[Usage], Array]]) -> str:
    """An SVG of usages with their vectors (layers, usages, width), in the plane in which they differ most at each layer.

    >>> import numpy as np
    >>> usages = [Usage(("a", "play"), 1, "theater", "a ", ""), Usage(("to", "play"), 1, "sport", "to ", "")]
    >>> draw_usages("Two layers", {"play": (usages, np.eye(4).reshape(2, 2, 4))}).count('class="label"')
    4
    """
    layers = max(len(vectors) for _, vectors in words.values())
    width = 2 * LEFT + NARROW + (layers - 1) * (WIDE + GAP)
    height = TOP + len(words) * (ABOVE + HEIGHT + BELOW)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text class="title" x="{LEFT}" y="36">{escape(title)}</text>',
        f'<text class="note" x="{LEFT}" y="58">Each point is one usage of the word: its unit vector in the first two principal '
        "components of that layer. What is near is alike.</text>",
    ]
    for number, (word, (usages, vectors)) in enumerate(words.items()):
        marks = {sense: kind for kind, sense in enumerate(dict.fromkeys(usage.sense for usage in usages))}
        parts += [f'<g transform="translate({LEFT} {TOP + number * (ABOVE + HEIGHT + BELOW)})">', *_legend(word, marks)]
        x = 0
        for layer, of_layer in enumerate(vectors):
            parts += [f'<g transform="translate({x} {ABOVE})">', *_panel(layer, usages, of_layer, marks), "</g>"]
            x += GAP + (WIDE if layer else NARROW)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _legend(word: str, marks: Mapping[str, int]) -> Iterator[str]:
    yield f'<text class="word" x="0" y="20">{escape(word)}</text>'
    x = 24 + 1.4 * text_width(word)
    for sense, kind in marks.items():
        yield _marker(kind, x, 15)
        yield f'<text x="{x + 12:.1f}" y="19">{escape(sense)}</text>'
        x += 36 + text_width(sense)


def _panel(layer: int, usages: Sequence[Usage], vectors: Array, marks: Mapping[str, int]) -> list[str]:
    width = WIDE if layer else NARROW
    seen = plane(vectors)
    points = _scaled(seen.places, width)
    name = layer_name(layer)
    parts = [
        f'<text class="panel" x="0" y="-26">{name[0].upper()}{name[1:]}</text>',
        f'<rect class="frame" width="{width}" height="{HEIGHT}" rx="3"/>',
    ]
    if len(set(points)) == 1 and len(usages) > 1:
        x, y = points[0]
        together = (f"all {len(usages)} usages", "are the same vector")
        return [
            *parts,
            '<text class="note" x="0" y="-9">the word alone</text>',
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{MARKER}" fill="{GRAY}"/>',
            *(
                f'<text class="label" x="{x:.1f}" y="{y + 26 + n * LINE:.1f}" text-anchor="middle">{line}</text>'
                for n, line in enumerate(together)
            ),
        ]
    agreeing = same_sense(nearest(vectors), [usage.sense for usage in usages]) if len(usages) > 1 else 0
    note = f"the nearest has the same sense: {agreeing:.3g} of {len(usages)} · {seen.share:.0%} of the variance"
    parts.append(f'<text class="note" x="0" y="-9">{note}</text>')
    contexts = [usage.context(CHARACTERS, CHARACTERS) for usage in usages]
    sizes = [
        text_width(before) + 1.12 * text_width(usage.word) + text_width(after)
        for usage, (before, after) in zip(usages, contexts, strict=True)
    ]
    labels = place_labels(points, sizes, width, HEIGHT)
    for (x, y), box in zip(points, labels, strict=True):
        if box is not None:
            end = box.nearest_to(x, y)
            if _away(box, (x, y)) > 2.5 * MARKER or _ambiguous(box, (x, y), points):
                parts.append(f'<path class="leader" d="M{x:.1f} {y:.1f}L{end[0]:.1f} {end[1]:.1f}"/>')
    for usage, (x, y) in zip(usages, points, strict=True):
        parts.append(_marker(marks[usage.sense], x, y, f"{usage.sense}: {usage.sentence}"))
    for usage, (x, _), (before, after), box in zip(usages, points, contexts, labels, strict=True):
        if box is not None:
            marked = f'{escape(before)}<tspan class="marked">{escape(usage.word)}</tspan>{escape(after)}'
            # Nearer to its point by what the width is too much, rather than anchored there: some programs anchor a text in three
            # parts by each of them.
            at = box.x + SLACK * box.width * (0 if box.x > x else 1 if box.x + box.width < x else 0.5)
            place = f'x="{at:.1f}" y="{box.y + LINE - 5:.1f}"'
            parts.append(f'<text class="label" {place} xml:space="preserve">{marked}</text>')
    return parts


def _scaled(places: NDArray[np.float64], width: int) -> list[tuple[float, float]]:
    """Where the points are in a panel: both axes on one scale, so that what looks near is near."""
    low, high = places.min(axis=0), places.max(axis=0)
    extent = [max(float(size), 1e-12) for size in high - low]
    scale = min((width - 2 * MARGIN) / extent[0], (HEIGHT - 2 * MARGIN) / extent[1])
    scale = scale if max(extent) > 1e-9 else 0.0
    middle = (low + high) / 2
    return [(width / 2 + scale * float(x - middle[0]), HEIGHT / 2 - scale * float(y - middle[1])) for x, y in places]


def _marker(kind: int, x: float, y: float, tip: str = "") -> str:
    color, r = COLORS[kind % len(COLORS)], MARKER
    shape = (
        f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",  # a circle
        f"M{x - r + 0.6:.1f} {y - r + 0.6:.1f}h{2 * r - 1.2:g}v{2 * r - 1.2:g}h{1.2 - 2 * r:g}z",  # a square
        f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {1.8 * r + 0.5:g}h{-2 * r - 2}z",  # a triangle
        f"M{x:.1f} {y - r - 1.5:.1f}l{r + 1} {r + 1.5:g}l{-r - 1} {r + 1.5:g}l{-r - 1} {-r - 1.5:g}z",  # a diamond
    )[kind % 4]
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<path d="{shape}" fill="{color}" stroke="#ffffff" stroke-width="0.8">{inside}</path>'


def text_width(text: str) -> float:
    """Pixels that a label's text takes, rather too many: no font is asked, and none of the usual ones is wider."""
    ems = {"il.,'!|:;j": 0.34, "ftr -": 0.41, "mwMW": 0.98}
    widths = {letter: width for letters, width in ems.items() for letter in letters}
    return FONT * sum(widths.get(letter, 0.75 if letter.isupper() else 0.64) for letter in text)


def place_labels(
    points: Sequence[tuple[float, float]], sizes: Sequence[float], width: float, height: float
) -> list[Box | None]:
    """Where labels of these widths go: near their points, inside the panel, over no marker, no other label and no way to one.

    Labels are placed in turn, each as near as those before it allow; of several orders the one with the shortest ways is taken. None: there
    is no room for that label.
    """
    markers = [Box(x - MARKER - 1, y - MARKER - 1, 2 * MARKER + 2, 2 * MARKER + 2) for x, y in points]
    options = [
        [box for box in _around(x, y, size) if box.within(width, height) and not any(map(box.overlaps, markers))]
        for (x, y), size in zip(points, sizes, strict=True)
    ]
    for (x, y), boxes in zip(points, options, strict=True):
        boxes.sort(key=lambda box, own=(x, y): _ambiguous(box, own, points))
    orders = random.Random(0)
    best: tuple[float, list[Box | None]] = (math.inf, [None] * len(points))
    for _ in range(40):
        turn = sorted(range(len(points)), key=lambda _: orders.random())
        placed: list[Box | None] = [None] * len(points)
        for number in turn:
            taken = [(other, points[n]) for n, other in enumerate(placed) if other is not None]
            free = (box for box in options[number] if not any(_clash(box, points[number], *each) for each in taken))
            placed[number] = next(free, None)
        cost = sum(1e6 if box is None else _away(box, point) ** 2 for box, point in zip(placed, points, strict=True))
        if cost < best[0]:
            best = cost, placed
    return best[1]


def _away(box: Box, point: tuple[float, float]) -> float:
    return math.dist(box.nearest_to(*point), point)


def _ambiguous(box: Box, own: tuple[float, float], points: Sequence[tuple[float, float]]) -> bool:
    """Whether a label may be taken for that of another point, which is about as near."""
    return any(_away(box, other) < 1.5 * _away(box, own) for other in points if other != own)


def _clash(box: Box, point: tuple[float, float], other: Box, its_point: tuple[float, float]) -> bool:
    """Whether two labels overlap, or the way from one to its point runs through the other."""
    return (
        box.overlaps(other)
        or other.crossed(point, box.nearest_to(*point))
        or box.crossed(its_point, other.nearest_to(*its_point))
    )


def _around(x: float, y: float, width: float) -> list[Box]:
    """Places for a label around a point, the nearest first; of equally near ones beside, above and below before the corners."""
    found: list[tuple[float, Box]] = []
    for ring in range(24):
        away = MARKER + 3 + 9 * ring
        for turn in range(24):
            cosine, sine = math.cos(turn * math.pi / 12), math.sin(turn * math.pi / 12)
            middle_x, middle_y = x + cosine * (away + width / 2), y + sine * (away + LINE / 2)
            box = Box(middle_x - width / 2, middle_y - LINE / 2, width, LINE)
            distance = math.dist(box.nearest_to(x, y), (x, y))
            found.append((distance + (0 if turn % 6 == 0 else 2) + 0.01 * turn, box))
    return [box for _, box in sorted(found, key=lambda each: each[0])]
