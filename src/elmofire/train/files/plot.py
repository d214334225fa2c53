"""A run as a picture: SVG from the records of its log, without a plotting library."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

WIDTH, HEIGHT = 380, 190  # of a panel's inside, in pixels
LEFT, TOP, GAP, BELOW = 62, 96, 100, 44
LETTER = 7.6  # of a label's text, in pixels: what it takes in a wide font
COLUMNS = 190  # into which more points than that are gathered
BLUE, ORANGE, BLACK = "#2f6fbb", "#c4602a", "#1f2328"
_LEAST, _MOST = 1e-30, 1e30  # what is less is drawn as zero, what is more, infinite or not, is left out
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 15px }
  .panel { font-weight: 600; font-size: 13px }
  .note { fill: #59636e }
  .grid { stroke: #e4e8ec }
  .frame { fill: none; stroke: #a3abb5 }
  .curve { fill: none; stroke-width: 1.7; stroke-linejoin: round }
"""

Point = tuple[float, float]  # update, value


class Curve(NamedTuple):
    """One line of a panel; `dashes` as SVG has them."""

    label: str
    color: str
    points: list[Point]
    dashes: str = ""


class Panel(NamedTuple):
    """A title, curves on one scale, and how a value is written."""

    title: str
    curves: list[Curve]
    shown: Callable[[float], str]
    logarithmic: bool = False
    from_zero: bool = False


class Axis(NamedTuple):
    """Values from `low` to `high` on so many pixels."""

    low: float
    high: float
    pixels: int
    logarithmic: bool = False

    def place(self, value: float) -> float:
        low, high, value = (math.log(x) if self.logarithmic else x for x in (self.low, self.high, value))
        return (value - low) / (high - low) * self.pixels

    def ticks(self) -> list[float]:
        if self.logarithmic:
            for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
                powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
                inside = [step * 10.0**power for power in powers for step in steps]
                inside = [value for value in inside if self.low <= value <= self.high]
                if len(inside) > 2:
                    return inside[:: math.ceil(len(inside) / 6)]
        step = _round_step((self.high - self.low) / 6)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def plot_run(records: Iterable[Mapping[str, Any]]) -> str:
    """An SVG of a run: training loss, held-out perplexity, learning rate and speed over updates.

    >>> plot_run([{"update": 100, "kind": "train", "loss": 5.1, "softmax": "sampled", "rate": 0.001}]).count("<circle")
    2
    """
    records = list(records)
    training = [record for record in records if record["kind"] == "train"]
    evaluations = [record for record in records if record["kind"] in ("before", "evaluation")]
    panels = [
        Panel(_loss_title(training), [Curve("", BLUE, _points(training, "loss"))], lambda value: f"{value:g}"),
        Panel(
            "Held-out perplexity",
            [
                Curve("forward", BLUE, _points(evaluations, "forward"), "5 3"),
                Curve("backward", ORANGE, _points(evaluations, "backward"), "5 3"),
                Curve("mean", BLACK, _points(evaluations, "mean")),
            ],
            _thousands,
            logarithmic=True,
        ),
        Panel("Learning rate", [Curve("", BLUE, _points(training, "rate"))], lambda value: f"{value:g}", from_zero=True),
        Panel("Tokens per second", [Curve("", BLUE, _points(training, "clock", "tokens_per_second"))], _thousands, from_zero=True),
    ]  # fmt: skip
    last = max((record["update"] for record in records), default=0)
    width, height = 2 * (LEFT + WIDTH) + 40, TOP + 2 * HEIGHT + GAP + BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>Training run</title>\n<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<text class="title" x="16" y="26">Training run</text>',
        f'<text class="note" x="16" y="46">{escape(_summary(last, evaluations))}</text>',
    ]
    updates = Axis(0, last or 1, WIDTH)
    for number, panel in enumerate(panels):
        row, column = divmod(number, 2)
        x, y = LEFT + column * (LEFT + WIDTH + 20), TOP + row * (HEIGHT + GAP)
        parts += [f'<g transform="translate({x} {y})">', *_drawn(panel, updates), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def _loss_title(training: Sequence[Mapping[str, Any]]) -> str:
    kinds = sorted({str(record["softmax"]) for record in training if record.get("softmax")})
    return f"Training loss, nats a word ({' and '.join(kinds)} softmax)" if kinds else "Training loss, nats a word"


def _summary(last: int, evaluations: Sequence[Mapping[str, Any]]) -> str:
    counted = f"{last:,} update{'' if last == 1 else 's'}"
    scored = _points(evaluations, "mean")
    if not scored:
        return f"{counted}, not evaluated yet"
    update, best = min(scored, key=lambda point: point[1])
    return f"{counted}; best held-out perplexity {best:,.2f} {f'after {update:,.0f}' if update else 'before the first'}"


def _points(records: Sequence[Mapping[str, Any]], *keys: str) -> list[Point]:
    points = []
    for record in records:
        value: Any = record
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and abs(value) < _MOST:
            points.append((float(record["update"]), float(value) if abs(value) > _LEAST else 0.0))
    return points


def _drawn(panel: Panel, updates: Axis) -> list[str]:
    parts = [f'<text class="panel" x="0" y="-12">{escape(panel.title)}</text>']
    for tick in (tick for tick in updates.ticks() if tick.is_integer()):
        x = updates.place(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}"/>')
        parts.append(f'<text class="note" x="{x:.1f}" y="{HEIGHT + 17}" text-anchor="middle">{_thousands(tick)}</text>')
    parts.append(f'<text class="note" x="{WIDTH}" y="{HEIGHT + 34}" text-anchor="end">updates</text>')
    frame = f'<rect class="frame" width="{WIDTH}" height="{HEIGHT}"/>'
    values = [value for curve in panel.curves for _, value in curve.points]
    if not values:
        middle = f'x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle"'
        return [*parts, frame, f'<text class="note" {middle}>nothing yet</text>']
    scale = _scale(values, panel)
    for tick in scale.ticks():
        y = HEIGHT - scale.place(tick)
        parts.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="note" x="-8" y="{y + 4:.1f}" text-anchor="end">{panel.shown(tick)}</text>')
    parts += [frame, *_legend([curve for curve in panel.curves if curve.label and curve.points])]
    return parts + [part for curve in panel.curves for part in _line(curve, updates, scale)]


def _line(curve: Curve, updates: Axis, scale: Axis) -> list[str]:
    """A line with dots where there are few points; else means over columns, and behind them how far the values lie apart."""
    placed = [(updates.place(update), HEIGHT - scale.place(value)) for update, value in curve.points]
    parts = []
    if len(placed) > COLUMNS:
        columns: dict[int, list[Point]] = {}
        for x, y in placed:
            columns.setdefault(int(x / WIDTH * COLUMNS), []).append((x, y))
        middles = [sum(x for x, _ in column) / len(column) for column in columns.values()]
        spans = [sorted(y for _, y in column) for column in columns.values()]
        upper = [(x, span[0]) for x, span in zip(middles, spans, strict=True)]
        lower = [(x, span[-1]) for x, span in zip(middles, spans, strict=True)]
        parts.append(f'<path d="{_path([*upper, *reversed(lower)])}Z" fill="{curve.color}" fill-opacity="0.22"/>')
        placed = [(x, sum(span) / len(span)) for x, span in zip(middles, spans, strict=True)]
    if len(placed) > 1:
        parts.append(f'<path class="curve" d="{_path(placed)}" stroke="{curve.color}"{_dashed(curve)}/>')
    if len(placed) <= 25:
        radius = 2 if curve.dashes else 2.6
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{curve.color}"/>' for x, y in placed]
    return parts


def _legend(curves: Sequence[Curve]) -> list[str]:
    """Beside the panel's title, where no curve goes."""
    widths = [28 + LETTER * len(curve.label) for curve in curves]
    x, parts = WIDTH - sum(widths), list[str]()
    for curve, width in zip(curves, widths, strict=True):
        parts.append(f'<path class="curve" d="M{x:.1f} -16h18" stroke="{curve.color}"{_dashed(curve)}/>')
        parts.append(f'<text x="{x + 22:.1f}" y="-12">{escape(curve.label)}</text>')
        x += width
    return parts


def _dashed(curve: Curve) -> str:
    return f' stroke-dasharray="{curve.dashes}"' if curve.dashes else ""


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _scale(values: Sequence[float], panel: Panel) -> Axis:
    """From the least to the greatest value, with a little room; never of no extent."""
    low, high = min(values), max(values)
    if panel.logarithmic and low > 0:
        room = max((high / low) ** 0.06, 1.02)
        return Axis(low / room, high * room, HEIGHT, logarithmic=True)
    if panel.from_zero and low >= 0:
        return Axis(0, high * 1.08 or 1, HEIGHT)
    room = max((high - low) * 0.06, abs(high) * 0.01) or 1
    return Axis(low - room, high + room, HEIGHT)


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def _thousands(value: float) -> str:
    """A short number: 1500 is 1.5k."""
    for size, letter in ((1e12, ""), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{letter}" if letter else f"{value:.0e}"
    return f"{value:.4g}"
