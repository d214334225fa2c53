"""Plots in the docs, made from benchmarks/results without a plotting library. Run: python benchmarks/plots.py (with --check: only say
whether they are current)
"""

import sys
from html import escape
from typing import NamedTuple

from tables import GPU, ROOT, newest_embed, newest_lstmp

from elmofire.bench.tables import held_rates

FOLDER = ROOT / "docs/reference"
ROW, GAP, LEFT, BARS, RIGHT = 22, 14, 250, 380, 150  # pixels
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 15px }
  .group { font-weight: 600 }
  .note { fill: #59636e; font-size: 12px }
  .ours { fill: #2f6fbb }
  .theirs { fill: #a3abb5 }
  .spread { stroke: #1f2328; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note { fill: #9198a1 } .ours { fill: #3d7fca } .theirs { fill: #6e7681 } .spread { stroke: #ffffff }
  }
"""


class Bar(NamedTuple):
    """One measurement; `low` and `high` are drawn as a line over the bar's end."""

    label: str
    value: float
    low: float
    high: float
    told: str
    ours: bool


def drawn(title: str, note: str, groups: dict[str, list[Bar]]) -> str:
    """Horizontal bars in groups, each with a scale of its own, since sizes of models and devices lie far apart."""
    width = LEFT + BARS + RIGHT
    parts, y = [f'<text class="title" x="0" y="18">{escape(title)}</text>'], 38
    told = f"each group has its own scale; the line over a bar's end: least to most; {note}"
    parts.append(f'<text class="note" x="0" y="{y}">{escape(told)}</text>')
    y += GAP
    for name, bars in groups.items():
        y += ROW
        parts.append(f'<text class="group" x="0" y="{y}">{escape(name)}</text>')
        scale = BARS / max(bar.high for bar in bars)
        for bar in bars:
            y += ROW
            end = LEFT + bar.value * scale
            kind = "ours" if bar.ours else "theirs"
            parts.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{escape(bar.label)}</text>')
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y - 12}" width="{end - LEFT:.1f}" height="15" rx="2"/>')
            ends = f'x1="{LEFT + bar.low * scale:.1f}" x2="{LEFT + bar.high * scale:.1f}"'
            parts.append(f'<line class="spread" {ends} y1="{y - 4.5}" y2="{y - 4.5}"/>')
            parts.append(f'<text x="{LEFT + bar.high * scale + 8:.1f}" y="{y}">{escape(bar.told)}</text>')
        y += GAP
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}">'
    return "\n".join([frame, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", *parts, "</svg>\n"])


def embed_corpus() -> str:
    groups: dict[str, list[Bar]] = {}
    for record in newest_embed("corpus") + newest_embed("gpu"):
        if record["case"] == "corpus":
            rates, ratio = record["tokens_per_second"], record.get("over_allennlp")
            ours = record["library"] == "elmofire"
            label = f"{record['engine']}, {record['precision']}" if ours else record["engine"].split(",")[0]
            told = f"{rates['median']:,.0f}" + (f" ({ratio['median']:.1f}x)" if ratio else "")
            bar = Bar(label, rates["median"], rates["least"], rates["most"], told, ours)
            counted = f"{GPU}, other text" if record["device"] != "cpu" else _threads(record["threads"])
            groups.setdefault(f"{record['model']}, {counted}", []).append(bar)
    by_whom = {name: sorted(bars, key=lambda bar: not bar.ours) for name, bars in groups.items()}
    return drawn("Tokens per second, a corpus in one call", "in brackets: times AllenNLP", by_whom)


def lstmp() -> str:
    groups: dict[str, list[Bar]] = {}
    for record in newest_lstmp():
        if record["case"] == "time" and (held := held_rates(record)):
            tokens = record["batch"] * record["steps"]
            low, high = (tokens / held["seconds"][end] for end in ("most", "least"))
            label = f"{record['contender']}{', graph' if record['graph'] else ''}"
            rate = held["tokens_per_second"]
            bar = Bar(label, rate, low, high, f"{rate:,.0f}", record["contender"].startswith("lstmp"))
            shape = f"{record['cells']}/{record['projection']}, {record['batch']} x {record['steps']}"
            group = f"{record['mode']}, {record['precision']}, {shape}, {record['device']}"
            groups.setdefault(group, []).append(bar)
    return drawn(
        "Tokens per second of the LSTM stacks, on a GPU sustained",
        "groups say cells/projection, batch x steps",
        groups,
    )


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


PLOTS = {"embed-corpus.svg": embed_corpus, "lstmp.svg": lstmp}


def main() -> None:
    stale = []
    for name, plot in PLOTS.items():
        file, text = FOLDER / name, plot()
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                file.write_text(text, encoding="utf-8")
    if stale:
        print(("stale: " if "--check" in sys.argv else "made anew: ") + ", ".join(stale))
    sys.exit(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    main()
