"""Tables in the docs, made from benchmarks/results. Run: python benchmarks/tables.py (with --check: only say whether they are current)

A page says where: <!-- table NAME --> and <!-- end --> on lines of their own. Of each case the newest record counts.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from elmofire.bench.tables import corpus_rows, error_rows, held_rates, lstmp_rows, single_rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
GPU = "NVIDIA H200"  # records of embed say cuda alone


def newest(name: str, *keys: str) -> list[dict]:
    records = {}
    for line in (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        records[tuple(record.get(key) for key in keys)] = record
    return list(records.values())


def newest_embed(*kinds: str) -> list[dict]:
    """Of the cells of such kinds: corpus, single, avx2, gpu. Ratios are within a cell, so each keeps its own AllenNLP."""
    found = newest("embed", "cell", "case", "library", "engine", "device", "precision", "threads")
    return [record for record in found if record["cell"].rpartition("-")[2] in kinds]


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
    head = ["run, seconds measured", "device", "tokens an update", "tokens/s", "ms an update (least to most)", "filled", "idle"]  # fmt: skip
    rows = [[*head, "waiting for data", "seconds to full speed", "memory, GB (estimate)"]]
    for record in newest("pretrain", "cell", "device"):
        times = record["milliseconds_of_100"]
        spread = (
            f" ({times['least']:.2f} to {times['most']:.2f})" if record["updates"] > 100 else ""
        )  # of one window: none
        rows.append(
            [
                f"{record['cell']}, {record['seconds']:.0f} s",
                record["device"],
                f"{record['tokens_per_update']:,}",
                f"{record['tokens_per_second']:,}",
                f"{record['milliseconds_per_update']:.2f}{spread}",
                f"{100 * record['filled']:.1f}%",
                f"{100 * record['idle']:.1f}%",
                f"{100 * record['waited']:.2f}%",
                f"{record['seconds_to_full_speed']:.0f}",
                f"{record['memory_used'] / 1e9:.1f} ({record['memory_estimate'] / 1e9:.1f})",
            ]
        )
    return rows


def exactness() -> list[list[str]]:
    """Engines in columns, those whose figures are the same in one."""
    cases: dict[str, dict[str, str]] = {}
    for record in newest("exactness", "engine", "case"):
        case = cases.setdefault(f"{record['case']} ({record['numbers']:,} numbers)", {})
        case[record["engine"]] = f"{record['beyond_1e_5_relative']:.1e} ({record['largest_error']:.1e})"
    engines = sorted(next(iter(cases.values())), key=lambda engine: engine == "torch")
    alike: dict[tuple[str, ...], list[str]] = {}
    for engine in engines:
        alike.setdefault(tuple(found[engine] for found in cases.values()), []).append(engine)
    head = ["against", *[", ".join(names).replace("), c (", ", ") for names in alike.values()]]
    return [head, *sorted([case, *figures] for case, *figures in zip(cases, *alike, strict=True))]


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
    calls = ["first call", "later calls, reset", "later calls, carried"]
    rows = [["model", "representations", "layer norm", "boundaries", *calls]]
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


def summary() -> list[list[str]]:
    """What the README tells, in the figures that it rounds."""
    rows = [["", ""]]
    for size in ("original", "small"):
        rates = {threads: _of_precisions("corpus", size, threads, "tokens_per_second", "median") for threads in (1, 2)}
        rows.append([f"a corpus, {size} size, one CPU core, tokens/s", rates[1]])
        rows.append(["the same on two cores", rates[2]])
    rows.append(["one sentence, original size, one CPU core, ms", _of_precisions("single", "original", 1, "milliseconds", "p50")])  # fmt: skip
    on_gpu = [record for record in newest_embed("gpu") if record["case"] == "single" and record["model"] == "original"]
    told = ", ".join(f"{record['precision']} {record['milliseconds']['p50']:.3g}" for record in on_gpu)
    rows.append([f"one sentence of 25 tokens, original size, {GPU}, ms", told])
    shape = {"case": "time", "mode": "train", "cells": 4096, "batch": 1024, "graph": True}
    timed = [record for record in newest_lstmp() if shape.items() <= record.items()]
    stacks = {record["contender"]: f"{record['sustained']['tokens_per_second']:,.0f}" for record in timed}
    told = f"{stacks['lstmp, gluon']}; torch.nn.LSTM, which cannot clip, {stacks['torch.nn.LSTM (cannot clip)']}"
    rows.append([f"training the LSTMs of the original size, {GPU}, tokens/s", told])
    steps = {record["cell"]: f"{record['tokens_per_second']:,}" for record in newest("pretrain", "cell")}
    told = f"sentences {steps['original-sentences-10k']}, lanes {steps['original-lanes-20k']}"
    rows.append([f"a whole training step of the original size, {GPU}, tokens/s", told])
    loaded = "; ".join(f"{row[0]}: {row[1].split()[0]}" for row in loading()[1:])
    rows.append(["loading the original size, seconds", loaded])
    started = {case: seconds for case, seconds, _ in startup()}
    told = f"{started['embed to hdf5']}; `en-small` loaded: {started['en-small: load']}"
    return [*rows, ["process start to vectors on disk, small size, seconds", told]]


def _of_precisions(case: str, size: str, threads: int, *figure: str) -> str:
    """`float32 626 (6.4x), int16 ..., AllenNLP 2.10.1 98`."""
    where, told = {"case": case, "model": size, "threads": threads}, []
    for record in newest_embed(case):
        if where.items() <= record.items() and record["engine"] != "numpy":
            name = record["precision"] if record["library"] == "elmofire" else record["engine"].split(",")[0]
            value, ratio = record[figure[0]][figure[1]], record.get("over_allennlp")
            shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            told.append(f"{name} {shown}" + (f" ({ratio['median']:.3g}x)" if ratio else ""))
    return ", ".join(told)


def embed_corpus() -> list[list[str]]:
    return _by_size(newest_embed("corpus"), corpus_rows)


def embed_single() -> list[list[str]]:
    return _by_size(newest_embed("single"), single_rows)


def embed_avx2() -> list[list[str]]:
    return _by_size(newest_embed("avx2"), _corpus_and_single)


def embed_gpu() -> list[list[str]]:
    return _by_size(newest_embed("gpu"), _corpus_and_single)


def _corpus_and_single(records: list[dict]) -> list[list[str]]:
    """Both beside each other, for contenders with one thread each."""
    (head, *corpus), (head_single, *single) = corpus_rows(records), single_rows(records)
    head = [*head[:2], *head[3:], *[f"one sentence: {name}" for name in head_single[3:]]]
    return [head, *[[*one[:2], *one[3:], *other[3:]] for one, other in zip(corpus, single, strict=True)]]


def embed_errors() -> list[list[str]]:
    found = newest("embed", "model", "case", "library", "engine", "device", "precision", "threads")
    ours = [record for record in found if record["library"] == "elmofire"]
    return _by_size(sorted(ours, key=lambda record: record["device"] != "cpu"), error_rows)


def lstmp() -> list[list[str]]:
    """What holds for seconds alone: as a graph wherever there is one."""
    rows = []
    for record in newest_lstmp():
        if record["case"] == "time" and held_rates(record):
            head, row = lstmp_rows([record])
            rows.append([record["device"], record["mode"], f"{record['cells']}/{record['projection']}", *row])
    return [["device", "mode", "cells/projection", *head], *rows]


_PARTS = {
    "gates_forward": "gates and memories, forward",
    "gates_backward": "gates and memories, backward",
    "project_forward": "projection, forward",
    "project_backward": "gradients of h summed",
    "all_waves": "all waves in one launch",
    "all_steps": "all steps of a layer in one launch",
    "move_gates": "weights packed, their gradients unpacked",
    "nvjet_sm90_tss": "weights' gradients (cuBLAS)",
    "nvjet_sm90_tst": "gradients of x and h (cuBLAS)",
}
_INPUTS = "inputs of the first layer (cuBLAS)"  # of a sentence, for all steps ahead
_OTHERS = "copies, sums, other products"


def lstmp_profile() -> list[list[str]]:
    """By part; what is none of the named is small."""
    runs: dict[tuple, dict[str, dict[str, dict]]] = {}  # of each case by commit, in their order
    for record in newest("lstmp_profile", "commit", "mode", "path", "precision", "batch", "steps", "kernel"):
        how = (record.get("mode", "train"), record.get("path", "gluon"), record.get("precision", "bfloat16"))
        case = (*how, record["batch"], record["steps"])
        runs.setdefault(case, {}).setdefault(record["commit"], {})[record["kernel"]] = record
    cases: dict[tuple, dict[str, float]] = {}
    for case, record in ((case, record) for case, of in runs.items() for record in list(of.values())[-1].values()):
        parts = cases.setdefault(case, {})
        product = record["kernel"].startswith("nvjet") and case[0] == "inference"
        named = (name for start, name in _PARTS.items() if record["kernel"].startswith(start))
        part = _INPUTS if product else next(named, _OTHERS)
        parts[part] = parts.get(part, 0) + record["microseconds"]
    cases = dict(sorted(cases.items(), key=lambda item: (item[0][0] != "train", *item[0][1:])))
    head = ["part, ms"]
    for mode, path, precision, batch, steps in cases:
        head.append(f"{mode}, {path}, {batch} x {steps}" + (", float32" if precision == "float32" else ""))
    totals = [sum(parts.values()) for parts in cases.values()]
    body = []
    for name in [*_PARTS.values(), _INPUTS, _OTHERS]:
        shares = [(parts.get(name, 0), total) for parts, total in zip(cases.values(), totals, strict=True)]
        if any(part for part, _ in shares):
            body.append([name, *[f"{part / 1000:.2f} ({part / total:.0%})" if part else "-" for part, total in shares]])
    return [head, *body, ["all", *[f"{total / 1000:.2f}" for total in totals]]]


_STEP = {
    "gates and memories of the stacks": ("gates_",),
    "projections, gradients of h summed": ("project_",),
    "weights packed, their gradients unpacked": ("move_gates",),
    "products (cuBLAS), those of stacks, head and encoder": ("nvjet",),
    "sampled softmax beside its products": ("_rows", "_scale", "_column_sums"),
    "convolution and its gradients": ("characters_", "windows_", "maxima"),
    "AdamW, norm of the gradient": ("_adamw", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwo"),
    "float32 added up, gradients mostly": ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>",),
}  # fmt: skip


def pretrain_trace() -> list[list[str]]:
    """By part; records name the kernels that take most."""
    records = newest("pretrain_trace", "cell", "device")
    of_cells: list[dict[str, float]] = []
    for record in records:
        parts = {
            part: sum(time for kernel, time in record["milliseconds_of"].items() if kernel.startswith(starts))
            for part, starts in _STEP.items()
        }
        idle = record["idle"] * record["milliseconds"]
        parts["all else, and kernels too small to be named"] = record["milliseconds"] - idle - sum(parts.values())
        of_cells.append({**parts, "nothing": idle})
    rows = [["part, ms", *[record["cell"] for record in records]]]
    for part in of_cells[0]:
        shares = zip(records, of_cells, strict=True)
        rows.append(
            [
                part,
                *[
                    f"{of[part]:.2f} ({of[part] / record['milliseconds']:.0%})" if of[part] else "-"
                    for record, of in shares
                ],
            ]
        )
    return [*rows, ["all", *[f"{record['milliseconds']:.2f}" for record in records]]]


def engine_profile() -> list[list[str]]:
    """Shares of each part, one thread."""
    found = newest("engine_profile", "size", "precision", "case")
    rows = [["size", "precision", "call", "tokens/s", *found[0]["milliseconds"]]]
    for record in found:
        total = sum(record["milliseconds"].values())
        shares = [f"{part / total:.0%}" for part in record["milliseconds"].values()]
        rate = f"{1000 * record['tokens'] / total:,.0f}"
        rows.append([record["size"], record["precision"], record["case"], rate, *shares])
    return rows


def clipped_gradients() -> list[list[str]]:
    rows = [["regime", "compared with", "outputs", "gradient of the inputs", "largest gradient"]]
    for record in newest("clipped_gradients", "regime", "reference"):
        figures = [f"{record[key]:.1e}" for key in ("outputs", "d inputs", "largest gradient")]
        rows.append([record["regime"], record["reference"], *figures])
    return rows


def prepare() -> list[list[str]]:
    rows = [["94 million tokens of English, two cores", "minutes", "of processor time", "memory, GB"]]
    for record in newest("prepare", "step", "run"):
        if record["step"] == "prepare":
            source = "`.txt.bz3`, most of the memory is bzip3's" if record["compressed"] else "`.txt`"
            figures = [record["minutes"], record["processor_minutes"], record["peak_mb"] / 1000]
            again = ", again" if record["run"] == "second" else ""
            rows.append([f"from {source}{again}", *[f"{figure:.1f}" for figure in figures]])
        else:
            told = {
                "pack": f"`pack`: {record['bits_per_token']} bits a token, everything included",
                "unpack": "`unpack`",
            }
            for verb, what in told.items():
                minutes = [record[f"{verb}_{seconds}"] / 60 for seconds in ("seconds", "processor_seconds")]
                rows.append([what, *[f"{figure:.1f}" for figure in (*minutes, record[f"{verb}_peak_mb"] / 1000)]])
    return rows


def substitutes() -> list[list[str]]:
    """Of the model in the package."""
    ways = {"no unigram": "without the last term", "the head's bias": "with the head's bias as the last term"}
    ways |= {"log-uniform by rank": "with Zipf's law by rank"}
    [record] = [record for record in newest("substitutes", "model") if record.get("model") == "en-small"]
    rows = [["ranked by", f"true word among the first ten, at {record['top_10']['places']:,} places"]]
    for name, share in record["top_10"].items():
        if name != "places":
            both, _, way = name.partition(", ")
            rows.append([f"{both}, {ways[way]}" if way else name, f"{100 * share:.1f}%"])
    return rows


TABLES = {
    "summary": summary,
    "prepare": prepare,
    "substitutes": substitutes,
    "lstmp_profile": lstmp_profile,
    "pretrain_trace": pretrain_trace,
    "engine_profile": engine_profile,
    "clipped_gradients": clipped_gradients,
    "embed_corpus": embed_corpus,
    "embed_single": embed_single,
    "embed_avx2": embed_avx2,
    "embed_gpu": embed_gpu,
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
