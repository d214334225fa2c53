"""Tables in the docs, made from benchmarks/results. Run: python benchmarks/tables.py (with --check: only say whether they are current)

A page says where: <!-- table NAME --> and <!-- end --> on lines of their own. Of each case the newest record counts.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from elmofire.bench.tables import corpus_rows, error_rows, lstmp_rows, single_rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"


def newest(name: str, *keys: str) -> list[dict]:
    records = {}
    for line in (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        records[tuple(record.get(key) for key in keys)] = record
    return list(records.values())


def newest_embed() -> list[dict]:
    return newest("embed", "model", "case", "library", "engine", "device", "precision", "threads")


def newest_lstmp() -> list[dict]:
    shape = ("cells", "projection", "layers", "batch", "steps")
    return newest("lstmp", "case", "mode", "device", "precision", "contender", "graph", *shape)


def loading() -> list[list[str]]:
    rows = [["format", "seconds (least to most)", "times reading the file", "peak memory, times the weights"]]
    for record in newest("loading", "format"):
        seconds, ratio, memory = record["load_seconds"], record["load_over_read"], record["peak_memory_over_weights"]
        spread = f"{seconds['median']:.3f} ({seconds['least']:.3f} to {seconds['most']:.3f})"
        rows.append([record["format"], spread, f"{ratio['median']:.2f}", f"{memory['median']:.2f}"])
    return rows


def startup() -> list[list[str]]:
    rows = [["process", "seconds, median", "least to most"]]
    for record in newest("startup", "case"):
        seconds = record["seconds"]
        rows.append([record["case"], f"{seconds['median']:.2f}", f"{seconds['least']:.2f} to {seconds['most']:.2f}"])
    return rows


def pretrain() -> list[list[str]]:
    head = ["run", "device", "tokens an update", "tokens/s", "ms an update (least to most of 100)", "filled", "idle"]
    rows = [[*head, "waiting for data", "seconds to full speed", "memory, GB (estimate)"]]
    for record in newest("pretrain", "cell", "device"):
        times = record["milliseconds_of_100"]
        rows.append(
            [
                f"{record['cell']}, {record['seconds']:.0f} s",
                record["device"],
                f"{record['tokens_per_update']:,}",
                f"{record['tokens_per_second']:,}",
                f"{record['milliseconds_per_update']:.2f} ({times['least']:.2f} to {times['most']:.2f})",
                f"{100 * record['filled']:.1f}%",
                f"{100 * record['idle']:.1f}%",
                f"{100 * record['waited']:.2f}%",
                f"{record['seconds_to_full_speed']:.0f}",
                f"{record['memory_used'] / 1e9:.1f} ({record['memory_estimate'] / 1e9:.1f})",
            ]
        )
    return rows


def exactness() -> list[list[str]]:
    rows = [["against", "engine", "numbers", "largest error", "largest beyond 1e-5 relative (bound 2e-6)"]]
    for record in sorted(newest("exactness", "engine", "case"), key=lambda record: record["case"]):
        figures = [f"{record['numbers']:,}", f"{record['largest_error']:.1e}", f"{record['beyond_1e_5_relative']:.1e}"]
        rows.append([record["case"], record["engine"], *figures])
    return rows


def allennlp() -> list[list[str]]:
    rows = [["model", "largest value", "largest difference", "beyond 1e-5 relative (bound 2e-6)"]]
    for record in newest("allennlp_parity", "model"):
        figures = [
            f"{record['largest_value']:.2f}",
            f"{record['largest_difference']:.1e}",
            f"{max(record['beyond_1e_5_relative'], 0):.1e}",
        ]
        rows.append([record["model"], *figures])
    return rows


def allennlp_compat() -> list[list[str]]:
    keys = ("model", "num_output_representations", "do_layer_norm", "keep_sentence_boundaries")
    cases: dict[tuple, dict[str, dict]] = {}
    for record in newest("allennlp_compat", *keys, "state"):
        cases.setdefault(tuple(record[key] for key in keys), {})[record["state"]] = record
    rows = [
        [
            "model",
            "representations",
            "layer norm",
            "boundaries",
            "first call",
            "later calls, reset",
            "later calls, carried",
        ]
    ]
    for (model, mixes, layer_norm, boundaries), states in cases.items():
        reset, carried = states["reset"], states["carried"]
        figures = [max(reset["first_call"], carried["first_call"]), reset["later_calls"], carried["later_calls"]]
        switches = ["on" if layer_norm else "off", "kept" if boundaries else "removed"]
        rows.append([model, str(mixes), *switches, *[f"{figure:.1e}" for figure in figures]])
    return rows


def _by_size(records: list[dict], rows: Callable[[list[dict]], list[list[str]]]) -> list[list[str]]:
    sizes = dict.fromkeys(record["model"] for record in records)
    parts = {size: rows([record for record in records if record["model"] == size]) for size in sizes}
    head = ["size", *next(iter(parts.values()))[0]]
    return [head, *[[size, *row] for size, part in parts.items() for row in part[1:]]]


def embed_corpus() -> list[list[str]]:
    return _by_size(newest_embed(), corpus_rows)


def embed_single() -> list[list[str]]:
    return _by_size(newest_embed(), single_rows)


def embed_errors() -> list[list[str]]:
    return _by_size([record for record in newest_embed() if record["library"] == "elmofire"], error_rows)


def lstmp() -> list[list[str]]:
    rows = []
    for record in newest_lstmp():
        head, *body = lstmp_rows([record])
        shape = [record["device"], record["mode"], f"{record.get('cells')}/{record.get('projection')}"]
        rows += [[*shape, *row] for row in body]
    return [["device", "mode", "cells/projection", *head], *rows]


_PARTS = {
    "gates_forward": "gates and memories, forward (Gluon)",
    "gates_backward": "gates and memories, backward (Gluon)",
    "project_forward": "projection, forward (Triton)",
    "project_backward": "gradients of h summed (Triton)",
    "move_gates": "weights packed, their gradients unpacked (Triton)",
    "nvjet_sm90_tss": "weights' gradients (cuBLAS)",
    "nvjet_sm90_tst": "gradients of x and h (cuBLAS)",
}


def lstmp_profile() -> list[list[str]]:
    """By part; what is none of the named is small copies and sums."""
    batches: dict[int, dict[str, float]] = {}
    for record in newest("lstmp_profile", "batch", "kernel"):
        part = next((name for start, name in _PARTS.items() if record["kernel"].startswith(start)), "copies and sums")
        parts = batches.setdefault(record["batch"], {})
        parts[part] = parts.get(part, 0) + record["microseconds"]
    head = ["part", *[f"batch {batch}, ms" for batch in batches], *[f"batch {batch}, share" for batch in batches]]
    rows = [
        [*_PARTS.values(), "copies and sums"],
        *[[parts.get(name, 0) for name in [*_PARTS.values(), "copies and sums"]] for parts in batches.values()],
    ]
    totals = [sum(parts.values()) for parts in batches.values()]
    body = [
        [
            name,
            *[f"{value / 1000:.2f}" for value in values],
            *[f"{value / total:.0%}" for value, total in zip(values, totals, strict=True)],
        ]
        for name, *values in zip(*rows, strict=True)
    ]
    return [head, *body, ["all", *[f"{total / 1000:.2f}" for total in totals], *["100%" for _ in totals]]]


def clipped_gradients() -> list[list[str]]:
    rows = [["regime", "held against", "outputs", "gradient of the inputs", "largest gradient"]]
    for record in newest("clipped_gradients", "regime", "reference"):
        figures = [f"{record[key]:.1e}" for key in ("outputs", "d inputs", "largest gradient")]
        rows.append([record["regime"], record["reference"], *figures])
    return rows


TABLES = {
    "lstmp_profile": lstmp_profile,
    "clipped_gradients": clipped_gradients,
    "embed_corpus": embed_corpus,
    "embed_single": embed_single,
    "embed_errors": embed_errors,
    "lstmp": lstmp,
    "loading": loading,
    "pretrain": pretrain,
    "startup": startup,
    "exactness": exactness,
    "allennlp": allennlp,
    "allennlp_compat": allennlp_compat,
}


def rendered(text: str) -> str:
    def table(match: re.Match) -> str:
        head, *body = TABLES[match[1]]()
        lines = [head, ["---"] * len(head), *body]
        shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"<!-- table {match[1]} -->\n{shown}\n<!-- end -->"

    return re.sub(r"<!-- table (\w+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def main() -> None:
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        if rendered(text) != text:
            stale.append(str(page.relative_to(ROOT)))
            if "--check" not in sys.argv:
                page.write_text(rendered(text), encoding="utf-8")
    if stale:
        print(("stale: " if "--check" in sys.argv else "made anew: ") + ", ".join(stale))
    sys.exit(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    main()
