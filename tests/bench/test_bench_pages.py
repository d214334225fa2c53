"""Tables and plots are those of the records."""

import importlib.util
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


@pytest.fixture
def plots(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("plots", BENCHMARKS / "plots.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
