"""Records as rows of text: what the command prints, and what the pages show."""

from collections.abc import Mapping, Sequence
from typing import Any

Rows = list[list[str]]
Records = Sequence[Mapping[str, Any]]


def aligned(rows: Rows) -> str:
    """Columns side by side, for a terminal.

    >>> print(aligned([["engine", "tokens/s"], ["numpy", "310"]]))
    engine  tokens/s
    numpy   310
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def error_rows(records: Records) -> Rows:
    """How exact each contender is: per layer, the mean relative error and the mean cosine."""
    checked = [record for record in records if record["case"] == "parity"]
    layers = sorted({name for record in checked for name in record["errors"] if name.startswith("layer ")})
    rows = [["engine", "precision", *layers, "timed"]]
    for record in checked:
        found = [record["errors"].get(name) for name in layers]
        shown = [f"{error['relative']:.1e}, cosine {error['cosine']:.6f}" if error else "-" for error in found]
        row = [record["engine"], record["precision"], *shown, record["refused"] or "yes"]
        rows += [row] if row not in rows else []
    return rows


def corpus_rows(records: Records) -> Rows:
    rows = [["engine", "precision", "threads", "tokens/s (least to most)", "times AllenNLP", "times one thread"]]
    for record in records:
        if record["case"] == "corpus":
            rates = record["tokens_per_second"]
            shown = f"{rates['median']:,.0f} ({rates['least']:,.0f} to {rates['most']:,.0f})"
            rows.append([*_who(record), shown, *_ratios(record, "over_allennlp", "over_one_thread")])
    return _told(rows)


def single_rows(records: Records) -> Rows:
    rows = [["engine", "precision", "threads", "p50 ms", "p99 ms", "times AllenNLP"]]
    for record in records:
        if record["case"] == "single":
            found = [record["milliseconds"][p] for p in ("p50", "p99")]
            taken = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in found]
            rows.append([*_who(record), *taken, *_ratios(record, "over_allennlp")])
    return _told(rows)


def lstmp_rows(records: Records) -> Rows:
    """A row for each stack and batch. On a GPU rates are sustained ones, of the graph where there is one; bursts stand beside them."""
    rows = [["stack", "precision", "batch x steps", "tokens/s", "TFLOP/s", "of a product", "burst", "times the loop"]]
    for record in records:
        if record["case"] == "time":
            burst, held = record["burst"], held_rates(record)
            name = f"{record['contender']}{', as a graph' if record['graph'] else ''}"
            rates = ["-"] * 3
            if held:
                share = f"{held['share_of_product']:.0%}"
                rates = [f"{held['tokens_per_second']:,.0f}", f"{held['teraflops']:.3g}", share]
            shape = f"{record['batch']} x {record['steps']}"
            shown = f"{burst['tokens_per_second']:,.0f}"
            rows.append([name, record["precision"], shape, *rates, shown, *_ratios(record, "over_loop")])
    return rows


def held_rates(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The rates that hold for seconds: on a GPU sustained ones, where they were taken; a CPU's bursts hold."""
    return record.get("sustained") or (record["burst"] if record["device"].startswith("cpu") else None)


def lstmp_notes(records: Records) -> list[str]:
    """What was not timed and why, and the product that rates are compared with."""
    notes = []
    for record in records:
        if record["case"] == "parity":
            worst = max(record["errors"].items(), key=lambda item: item[1], default=None)
            told = f"largest error {worst[1]:.1e} ({worst[0]})" if worst else ""
            why = record["unavailable"] and f"cannot run here: {record['unavailable']}"
            refused = record["refused"] and f"not timed: {record['refused']}"
            rows = f", {record['batch']} rows" if "batch" in record else ""
            notes.append(f"{record['contender']}, {record['precision']}{rows}: {why or refused or told}")
        elif record["case"] == "product":
            rates = record.get("sustained") or record["burst"]
            notes.append(f"a {record['size']}^3 product in {record['dtype']}: {rates['median']:.3g} TFLOP/s")
    return notes


def _told(rows: Rows) -> Rows:
    """Without the columns that say nothing."""
    kept = [n for n, column in enumerate(zip(*rows[1:], strict=True)) if set(column) != {"-"}]
    return [[row[n] for n in kept] for row in rows] if rows[1:] else rows


def _who(record: Mapping[str, Any]) -> list[str]:
    return [record["engine"], record["precision"], str(record["threads"])]


def _ratios(record: Mapping[str, Any], *names: str) -> list[str]:
    """`5.2x (5.0 to 5.4)`, or a dash."""
    found = [record.get(name) for name in names]
    return [f"{r['median']:.3g}x ({r['least']:.3g} to {r['most']:.3g})" if r else "-" for r in found]
