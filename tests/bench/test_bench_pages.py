"""Tables and plots are those of the records."""

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from elmofire.bench.tables import corpus_rows, error_rows, lstmp_notes, lstmp_rows, single_rows

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"

CORPUS = {
    "case": "corpus",
    "library": "elmofire",
    "engine": "c (avx2)",
    "precision": "int8",
    "threads": 2,
    "tokens_per_second": {"median": 1234.4, "least": 1200.0, "most": 1300.2, "repeats": 5},
    "over_allennlp": {"median": 9.123, "least": 8.8, "most": 9.5, "repeats": 5},
}
TIME = {
    "case": "time",
    "contender": "lstmp, gluon",
    "graph": True,
    "precision": "bfloat16",
    "batch": 128,
    "steps": 20,
    "burst": {"tokens_per_second": 740_000.0, "teraflops": 335.0, "share_of_product": 0.43},
    "sustained": {"tokens_per_second": 710_000.0, "teraflops": 321.6, "share_of_product": 0.482},
}


def loaded(name: str):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plots(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return loaded("plots")


@pytest.fixture
def tables_of(monkeypatch, tmp_path):
    """The tables of made-up records."""

    def tables(name: str, records: list[dict]):
        module = loaded("tables")
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        monkeypatch.setattr(module, "RESULTS", tmp_path)
        return module

    return tables


def test_a_record_becomes_a_row_without_columns_that_say_nothing():
    assert corpus_rows([CORPUS]) == [
        ["engine", "precision", "threads", "tokens/s (least to most)", "times AllenNLP"],
        ["c (avx2)", "int8", "2", "1,234 (1,200 to 1,300)", "9.12x (8.8 to 9.5)"],
    ]
    single = CORPUS | {"case": "single", "milliseconds": {"p50": 41.26, "p99": 78.0}}
    assert single_rows([CORPUS, single])[1:] == [["c (avx2)", "int8", "2", "41.3", "78", "9.12x (8.8 to 9.5)"]]


def test_rates_of_a_gpu_are_the_sustained_ones():
    _, row = lstmp_rows([TIME])
    assert row == ["lstmp, gluon, as a graph", "bfloat16", "128 x 20", "710,000", "322", "48%", "740,000", "-"]


def test_a_refusal_stands_in_the_table():
    errors = {"layer 0": {"relative": 2e-2, "largest": 3e-2, "cosine": 0.9998}}
    refused = {"case": "parity", "engine": "c (avx2)", "precision": "int16", "errors": errors, "refused": "off by 2e-2"}
    assert error_rows([refused])[1] == ["c (avx2)", "int16", "2.0e-02, cosine 0.999800", "off by 2e-2"]
    away = {"case": "parity", "contender": "lstmp, gluon", "precision": "float32", "errors": {}, "refused": None}
    told = lstmp_notes([away | {"unavailable": "no GPU"}])
    assert told == ["lstmp, gluon, float32: cannot run here: no GPU"]


def test_ratios_stand_beside_the_allennlp_of_their_own_session(tables_of):
    def session(cell: str, rate: float):
        both = CORPUS | {"cell": cell, "model": "small", "device": "cpu", "threads": 1}
        peer = both | {"library": "allennlp", "engine": "AllenNLP", "precision": "float32"}
        peer |= {"tokens_per_second": {"median": rate, "least": rate, "most": rate}, "over_allennlp": None}
        return [
            both,
            peer,
            *[one | {"case": "single", "milliseconds": {"p50": rate, "p99": rate}} for one in (both, peer)],
        ]

    tables = tables_of("embed", [*session("small-corpus", 1), *session("small-corpus", 10), *session("small-avx2", 20)])
    assert [row[4] for row in tables.embed_corpus()[1:]] == ["1,234 (1,200 to 1,300)", "10 (10 to 10)"]
    assert [row[3] for row in tables.embed_avx2()[1:]] == ["1,234 (1,200 to 1,300)", "20 (20 to 20)"]


def test_engines_that_are_equally_exact_share_a_column(tables_of):
    def record(engine: str, case: str, off: float):
        return {"engine": engine, "case": case, "numbers": 1000, "largest_error": 2 * off, "beyond_1e_5_relative": off}

    engines = {"torch": 3e-7, "numpy": 1e-7, "c (avx512)": 2e-7, "c (avx2)": 2e-7}
    tables = tables_of("exactness", [record(engine, case, off) for engine, off in engines.items() for case in "ba"])
    assert tables.exactness() == [
        ["against", "numpy", "c (avx512, avx2)", "torch"],
        ["a (1,000 numbers)", "1.0e-07 (2.0e-07)", "2.0e-07 (4.0e-07)", "3.0e-07 (6.0e-07)"],
        ["b (1,000 numbers)", "1.0e-07 (2.0e-07)", "2.0e-07 (4.0e-07)", "3.0e-07 (6.0e-07)"],
    ]


def test_only_rates_that_hold_are_on_the_page(tables_of):
    sizes = {"device": "H200", "mode": "train", "cells": 4096, "projection": 512, "layers": 2}
    burst = TIME | {"graph": False, "sustained": None}
    tables = tables_of("lstmp", [TIME | sizes, burst | sizes, burst | sizes | {"device": "cpu, 2 threads"}])
    assert [(row[0], row[6]) for row in tables.lstmp()[1:]] == [("H200", "710,000"), ("cpu, 2 threads", "740,000")]


def test_bars_are_as_long_as_their_values(plots):
    def bar(value: float, ours: bool):
        return plots.Bar("a <label>", value, value * 0.9, value * 1.1, f"{value:g}", ours)

    text = plots.drawn("title", "note", {"one": [bar(10, True), bar(40, False)], "two": [bar(3, True)]})
    boxes = [float(box.attrib["width"]) for box in xml.fromstring(text).iter(f"{SVG}rect")]
    assert boxes[1] == pytest.approx(4 * boxes[0], abs=0.2)
    assert boxes[2] == pytest.approx(boxes[1], abs=0.2)  # each group has its own scale


def test_the_plots_of_the_docs_are_made_from_the_records():
    done = subprocess.run([sys.executable, str(BENCHMARKS / "plots.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
