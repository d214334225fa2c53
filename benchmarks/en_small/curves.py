"""The search for en-small's recipe as tables and curves, made from benchmarks/results.

Run, in benchmarks: python -m en_small.curves (with --check: only say whether page and curves are current)

docs/explanation/en-small.md says where: <!-- en_small NAME --> and <!-- end --> on lines of their own, NAME a stage of the search,
`cleaning`, `splits`, `ngram` or `run`, the one that made the model. Curves lie beside the page.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from statistics import geometric_mean, mean
from typing import NamedTuple

from tables import RESULTS, ROOT, newest

from elmofire.train.files.plot import BLACK, STYLE, Axis, plot_run
from en_small.search import RATES, SEARCH, kind
from en_small.variants import STAGES, STARTS

FOLDER = ROOT / "docs/explanation"
PAGE = FOLDER / "en-small.md"
RUN, RUN_CURVES = "en_small_training", "en-small-run.svg"
FIGURES = ("forward", "backward", "mean")
WIDTH, HEIGHT, LEFT, TOP, BELOW, LABELS, LEADER, ROW = 440, 420, 48, 84, 48, 300, 44, 17  # pixels
FAR = 1.5  # times the best: so far off is above the frame
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # told apart by all eyes (Okabe and Ito)
DASHES = ("none", "7 3", "2 3")
FEW = 2  # so many curves are no picture: the table says it all
DARK = """
  .page { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } text { fill: #e6edf3 } .note { fill: #9198a1 } .grid { stroke: #21262d } .frame { stroke: #6e7681 }
    circle.base, .band.base { fill: #ffffff } path.base { stroke: #ffffff }
    [fill="#0072b2"] { fill: #1f87d0 } [stroke="#0072b2"] { stroke: #1f87d0 }
  }
"""


class Variant(NamedTuple):
    """What was tried in a stage; `runs` are those of its seeds that ended, `broken` is how many did not."""

    name: str
    settings: tuple[str, ...]
    runs: list[dict]
    broken: int

    def ends(self, figure: str = "mean") -> list[float]:
        """The last evaluation of every seed."""
        return [run["perplexity"][-1][figure] for run in self.runs]

    def curve(self) -> list[tuple[float, list[float]]]:
        """By percent of the minutes, what each seed had reached."""
        reached: dict[float, list[float]] = {}
        for run in self.runs:
            for evaluation in run["perplexity"]:
                reached.setdefault(round(100 * evaluation["update"] / run["updates"]), []).append(evaluation["mean"])
        return sorted(reached.items())


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def searched(records: Iterable[dict]) -> dict[str, list[Variant]]:
    """The variants of each stage, the base first; what was meant to run and did not has no runs."""
    stages: dict[str, dict[str, dict[int, dict]]] = {}
    minutes: dict[str, float] = {}
    for record in records:
        stage = record["stage"]
        if minutes.setdefault(stage, record["minutes"]) != record["minutes"]:
            sys.exit(f"stage {stage}: {minutes[stage]} and {record['minutes']} minutes cannot be compared: make it two")
        seeds = stages.setdefault(stage, {}).setdefault(record["variant"], {})
        if _ended(record) or not _ended(seeds.get(record["seed"])):  # of each seed the newest that ended
            seeds[record["seed"]] = record
    return {
        stage: [_variant(name, meant, found) for name in dict.fromkeys([*meant, *found])]
        for stage, found in stages.items()
        for meant in [STAGES.get(stage, {})]
    }


def _variant(name: str, meant: dict[str, tuple[str, ...]], found: dict[str, dict[int, dict]]) -> Variant:
    if name not in found:
        return Variant(name, meant[name], [], 0)
    seeds = list(found[name].values())
    runs = [record for record in seeds if _ended(record)]
    return Variant(name, tuple(seeds[-1]["settings"]), runs, len(seeds) - len(runs))


def _ended(record: dict | None) -> bool:
    return bool(record and record["ended"] and record["perplexity"] and math.isfinite(record["perplexity"][-1]["mean"]))


def ranked(variants: Sequence[Variant]) -> list[Variant]:
    """Best first, then what did not end, then what did not start."""
    ran = sorted((variant for variant in variants if variant.runs), key=lambda variant: mean(variant.ends()))
    return ran + sorted((variant for variant in variants if not variant.runs), key=lambda variant: not variant.broken)


def stage_rows(variants: Sequence[Variant], rates: Sequence[dict]) -> list[list[str]]:
    base = variants[0]
    rows = [["variant", "what is different", "tokens/s alone", "updates", "tokens", *FIGURES, "against the base"]]
    for variant in ranked(variants):
        name = (
            f"{variant.name} ({variant.broken} more did not end)" if variant.runs and variant.broken else variant.name
        )
        row = [name, different(variant, base), _rate(variant, rates)]
        if variant.runs:
            updates, tokens = (mean(run[key] for run in variant.runs) for key in ("updates", "tokens"))
            row += [f"{updates:,.0f}", f"{tokens / 1e6:.1f}M", *[_spread(variant.ends(figure)) for figure in FIGURES]]
            compared = base.runs and variant is not base
            row.append(f"{100 * (mean(variant.ends()) / mean(base.ends()) - 1):+.1f}%" if compared else "")
        else:
            row += ["", "", "", "", "did not end" if variant.broken else "not run: the deadline came first", ""]
        rows.append(row)
    return rows


def different(variant: Variant, base: Variant) -> str:
    """In settings, as they are typed; of the base, what it changes itself."""
    own, others = _by_key(variant.settings), _by_key(base.settings) if variant is not base else {}
    told = [f"`{key}={value}`" for key, value in own.items() if others.get(key) != value]
    told += [f"`{key}` as in the recipe" for key in others if key not in own]
    told += [f"`{end}` {scale:g} times as large at the start" for end, scale in STARTS.get(variant.name, {}).items()]
    return ("the base: " if variant is base else "") + (", ".join(told) or "the recipe as it is")


def _by_key(settings: Iterable[str]) -> dict[str, str]:
    return dict(setting.split("=", 1) for setting in settings)  # the last of two counts, as in a command


def _rate(variant: Variant, rates: Sequence[dict]) -> str:
    """As it was measured when the updates were agreed; since then it may have been again, or kinds told apart by more settings."""
    own = kind(variant.settings)
    measured = [record for record in rates if record["kind"] == own]
    coarser = [record for record in rates if set(record["kind"].split()) <= set(own.split())]
    agreed = {(run["minutes"], run["updates"]) for run in variant.runs}
    used = [rate for rate in coarser for minutes, updates in agreed if round(60 * minutes * rate["updates_per_second"]) == updates]  # fmt: skip
    return f"{(used or measured)[-1]['tokens_per_second'] / 1e6:.2f}M" if used or measured else "-"


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f}, {len(values)} seeds)"


def title_of(stage: str) -> str:
    return f"Perplexity of dev, {stage} stage"


def is_pictured(variants: Sequence[Variant]) -> bool:
    return sum(bool(variant.runs) for variant in variants) > FEW


def stage_curves(stage: str, variants: Sequence[Variant]) -> str:
    """An SVG of how the runs of a stage came down: means over seeds, and behind them how far seeds lie apart."""
    ran = [variant for variant in ranked(variants) if variant.runs]
    near = [variant for variant in ran if mean(variant.ends()) < FAR * mean(ran[0].ends())]
    within = near if len(near) > 2 else ran  # the far ones would squeeze the others
    values = [value for variant in within for _, reached in variant.curve() for value in reached]
    height = max(HEIGHT, ROW * len(ran))
    shares = Axis(min(variant.curve()[0][0] for variant in within) - 3, 100, WIDTH)
    scale = Axis(min(values) / 1.02, max(values) * 1.02, height, logarithmic=True)
    title = title_of(stage)
    note = f"{ran[0].runs[0]['minutes']:g} min each; full softmax, zero state, mean of both directions"
    width, whole = LEFT + WIDTH + LABELS, TOP + height + BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" width="{width}" height="{whole}">',
        f"<title>{escape(title)}</title>\n<style>{STYLE}{DARK}</style>",
        f'<rect class="page" width="{width}" height="{whole}"/>',
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
        f'<text class="note" x="16" y="46">{escape(note)}</text>',
        f'<g transform="translate({LEFT} {TOP})">',
        *_grid(shares, scale),
    ]
    ends = [height - scale.place(mean(variant.ends())) for variant in ran]
    places = spread_out([max(0, end) for end in reversed(ends)], ROW, height)[::-1]
    others = [variant.name for variant in within if variant is not variants[0]]
    looks = {name: (COLORS[n % len(COLORS)], DASHES[n // len(COLORS) % len(DASHES)]) for n, name in enumerate(others)}
    for variant, place in zip(ran, places, strict=True):
        seeds = f" ({len(variant.runs)} seeds)" if len(variant.runs) > 1 else ""
        told = escape(
            f"{mean(variant.ends()):.1f}  {variant.name}{seeds}{'' if variant in within else ' (above the frame)'}"
        )
        bold = ' style="font-weight: 600"' if variant is variants[0] else ""
        if variant in within:
            parts += _line(variant, shares, scale, place, *looks.get(variant.name, (BLACK, "none")))
        parts.append(f'<text x="{WIDTH + LEADER + 12}" y="{place + 4:.1f}"{bold}>{told}</text>')
    return "\n".join([*parts, "</g>", "</svg>\n"])


def _grid(shares: Axis, scale: Axis) -> list[str]:
    parts = []
    for tick in shares.ticks():
        place = f"{shares.place(tick):.1f}"
        parts.append(f'<line class="grid" x1="{place}" x2="{place}" y1="0" y2="{scale.pixels}"/>')
        parts.append(f'<text class="note" x="{place}" y="{scale.pixels + 17}" text-anchor="middle">{tick:g}%</text>')
    for tick in scale.ticks():
        place = scale.pixels - scale.place(tick)
        parts.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(f'<text class="note" x="-8" y="{place + 4:.1f}" text-anchor="end">{tick:,.0f}</text>')
    told = "share of the agreed minutes, from the first evaluation on"
    parts.append(f'<text class="note" x="{WIDTH}" y="{scale.pixels + 36}" text-anchor="end">{told}</text>')
    parts.append('<text class="note" x="0" y="-8">perplexity, logarithmic</text>')
    return [*parts, f'<rect class="frame" width="{WIDTH}" height="{scale.pixels}"/>']


def _line(variant: Variant, shares: Axis, scale: Axis, label: float, color: str, dashes: str) -> list[str]:
    """A curve, and from its end a line to the label's place."""

    def path(which: Callable[[list[float]], float]) -> list[str]:
        places = [(shares.place(share), scale.pixels - scale.place(which(seeds))) for share, seeds in variant.curve()]
        return [f"{x:.1f} {y:.1f}" for x, y in places]

    parts, middle = [], path(mean)
    base = " base" if color == BLACK else ""
    if len(variant.runs) > 1:
        band = "L".join([*path(min), *reversed(path(max))])
        parts.append(f'<path class="band{base}" d="M{band}Z" fill="{color}" fill-opacity="0.2"/>')
    parts.append(f'<path class="curve{base}" d="M{"L".join(middle)}" stroke="{color}" stroke-dasharray="{dashes}"/>')
    for x, y in (place.split() for place in middle):
        parts.append(f'<circle class="{base.strip()}" cx="{x}" cy="{y}" r="2.6" fill="{color}"/>')
    leader = (
        f'd="M{middle[-1]}h6L{WIDTH + LEADER} {label:.1f}h8" fill="none" stroke="{color}" stroke-dasharray="{dashes}"'
    )
    return [*parts, f'<path class="leader{base}" {leader}/>']


def spread_out(places: Sequence[float], gap: float, room: float) -> list[float]:
    """Rising places moved as little as can be, so that neighbors are `gap` apart and all within 0 and `room`.

    >>> spread_out([10, 11, 50, 99], 10, 100)
    [5.5, 15.5, 50, 99]
    """
    blocks: list[
        list[float]
    ] = []  # of places that touch, each less the gaps before it: such a block stands at its mean
    for number, place in enumerate(places):
        blocks.append([place - number * gap])
        while len(blocks) > 1 and mean(blocks[-2]) >= mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    most = room - gap * (len(places) - 1)
    starts = [min(max(mean(block), 0), most) for block in blocks for _ in block]
    return [start + number * gap for number, start in enumerate(starts)]


def cleaning_rows() -> list[list[str]]:
    files = [record for record in newest("en_small_corpus", "file") if "file" in record]
    groups = {"Wikipedia": "enwiki", "books": "books"}
    rows = [["paragraphs", *groups]]
    for what in ["paragraphs", *sorted({key for record in files for key in record if ": " in key})]:
        counts = [
            sum(record.get(what, 0) for record in files if record["file"].startswith(start))
            for start in groups.values()
        ]
        rows.append(["all" if what == "paragraphs" else what, *[f"{count:,}" for count in counts]])
    return rows


def split_rows() -> list[list[str]]:
    splits = [record["splits"] for record in read("en_small_corpus") if "splits" in record][-1]
    rows = [[name, f"{split['sentences']:,}", f"{split['tokens']:,}"] for name, split in splits.items()]
    return [["split", "sentences", "tokens"], *rows]


def ngram_rows() -> list[list[str]]:
    splits: dict[str, dict[str, dict]] = {}
    for record in newest("en_small_ngram", "split", "direction"):
        splits.setdefault(record["split"], {})[record["direction"]] = record
    rows = [["split", "predictions a direction", "unknown, of these", *FIGURES]]
    for split, found in splits.items():
        figures = {direction: float(record["perplexity"]) for direction, record in found.items()}
        if len(figures) == 2:
            figures["mean"] = geometric_mean(figures.values())
        told = [f"{figures[figure]:.2f}" if figure in figures else "not measured yet" for figure in FIGURES]
        record = next(iter(found.values()))
        rows.append([split, f"{int(record['events']):,}", f"{record['unknown']}%", *told])
    return rows


def run_rows() -> list[list[str]]:
    rows = [["updates", "rate", *FIGURES, "cells at the clip, layer 1", "layer 2"]]
    rate = 0.0
    for record in read(RUN):
        if record["kind"] == "train":
            rate = record["rate"]
        elif record["kind"] == "evaluation":
            clipped = [
                mean(layer["clipped"] for layer in record["layers"] if layer["layer"] == number) for number in (1, 2)
            ]
            told = [f"{record[figure]:.2f}" for figure in FIGURES] + [f"{100 * share:.1f}%" for share in clipped]
            rows.append([f"{record['update']:,}", f"{rate:.2g}", *told])
    return rows


TABLES = {"cleaning": cleaning_rows, "splits": split_rows, "ngram": ngram_rows, "run": run_rows}


def rendered(page: str, stages: dict[str, list[Variant]]) -> str:
    """The page with everything between its marks made anew."""
    rates = read(RATES)

    def part(match: re.Match[str]) -> str:
        name = match[1]
        head, *body = TABLES[name]() if name in TABLES else stage_rows(stages[name], rates)
        shown = "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])
        picture = f"![{title_of(name)}](en-small-{name}.svg)\n\n" if is_pictured(stages.get(name, [])) else ""
        picture = f"![The run that made en-small]({RUN_CURVES})\n\n" if name == "run" else picture
        return f"<!-- en_small {name} -->\n{picture}{shown}\n<!-- end -->"

    return re.sub(r"<!-- en_small (\w+) -->\n.*?<!-- end -->", part, page, flags=re.DOTALL)


def main() -> None:
    stages = searched(read(SEARCH))
    page = PAGE.read_text(encoding="utf-8")
    if homeless := [stage for stage in stages if f"<!-- en_small {stage} -->\n" not in page]:
        sys.exit(f"{PAGE.name} has no place for {homeless}: add <!-- en_small {homeless[0]} --> and <!-- end -->")
    pictured = {stage: variants for stage, variants in stages.items() if is_pictured(variants)}
    made = {FOLDER / f"en-small-{stage}.svg": stage_curves(stage, variants) for stage, variants in pictured.items()}
    made[FOLDER / RUN_CURVES] = plot_run(read(RUN))
    made[PAGE] = rendered(page, stages)
    stale = [file for file, text in made.items() if not file.is_file() or file.read_text(encoding="utf-8") != text]
    if stale:
        print(("stale: " if "--check" in sys.argv else "made anew: ") + ", ".join(file.name for file in stale))
    if "--check" in sys.argv:
        sys.exit(bool(stale))
    for file in stale:
        file.write_text(made[file], encoding="utf-8")


if __name__ == "__main__":
    main()
