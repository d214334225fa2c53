"""The tables and curves of the search for en-small's recipe are those of its records."""

import importlib
import itertools
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"
RATES = [{"kind": "", "updates_per_second": 10.0, "tokens_per_second": 1_230_000}]


@pytest.fixture(scope="module")
def curves():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("en_small.curves")


def run(variant: str, *ends: float, settings: tuple[str, ...] = (), seed: int = 1, **others) -> dict:
    evaluations = [
        {"update": 100 * number, "forward": end, "backward": end + 2, "mean": end + 1}
        for number, end in enumerate(ends, 1)
    ]
    return {
        "stage": "made up", "variant": variant, "settings": list(settings), "minutes": 0.5, "seed": seed, "ended": True,
        "updates": 100 * len(ends), "tokens": 4_000_000, "perplexity": evaluations,
    } | others  # fmt: skip


def rows_of(curves, records: list[dict], rates: list[dict] = RATES) -> list[dict[str, str]]:
    head, *body = curves.stage_rows(curves.searched(records)["made up"], rates)
    return [dict(zip(head, row, strict=True)) for row in body]


def test_rows_are_best_first_and_held_against_the_base(curves):
    records = [run("base", 199, 99), run("worse", 199, 109, settings=("optimizer.rate=1",)), run("better", 150, 89)]
    rows = rows_of(curves, records)
    assert [(row["variant"], row["mean"], row["against the base"]) for row in rows] == [
        ("better", "90.00", "-10.0%"),
        ("base", "100.00", ""),
        ("worse", "110.00", "+10.0%"),
    ]
    assert rows[2]["what is different"] == "`optimizer.rate=1`"
    assert rows[1] | {"updates": "200", "tokens": "4.0M", "forward": "99.00", "backward": "101.00"} == rows[1]


def test_several_seeds_are_their_mean_and_range_and_a_seed_run_again_counts_once(curves):
    records = [run("base", 120, 99), run("base", 120, 89, seed=2), run("base", 140, 109, seed=2)]
    (row,) = rows_of(curves, records)
    assert row["mean"] == "105.00 (100.00 to 110.00, 2 seeds)"


def test_what_did_not_run_or_end_is_never_dropped(curves, monkeypatch):
    monkeypatch.setitem(curves.STAGES, "made up", {"base": (), "left out": ("train.seed=3",), "broke off": ()})
    broken = run("broke off", ended=False, perplexity=[], tokens=None)
    infinite = run("base", 120, float("nan"), seed=2)
    rows = rows_of(curves, [broken, run("base", 120, 99), infinite])
    assert [(row["variant"], row["mean"]) for row in rows] == [
        ("base (1 more did not end)", "100.00"),
        ("broke off", "did not end"),
        ("left out", "not run: the deadline came first"),
    ]
    ended = rows_of(curves, [run("base", 120, 99), run("base", 120, 99, ended=False)])
    assert ended[0]["variant"] == "base"  # that a run broke off when it was repeated takes nothing away


def test_every_variant_meant_for_a_stage_is_in_its_table(curves):
    for stage, variants in curves.searched(curves.read(curves.SEARCH)).items():
        names = [row[0] for row in curves.stage_rows(variants, [])[1:]]
        assert set(curves.STAGES.get(stage, {})) <= {re.sub(r" \(\d+ more did not end\)", "", name) for name in names}
        assert len(names) == len(set(names))


def test_minutes_that_differ_are_not_compared(curves):
    with pytest.raises(SystemExit, match=r"0\.5 and 1\.5 minutes"):
        curves.searched([run("base", 99), run("longer", 89, minutes=1.5)])


def test_the_rate_is_the_one_that_gave_the_updates(curves):
    rates = [*RATES, {"kind": "", "updates_per_second": 11.0, "tokens_per_second": 9_990_000}]
    assert rows_of(curves, [run("base", 99, updates=300)], rates)[0]["tokens/s alone"] == "1.23M"
    assert rows_of(curves, [run("base", 99, updates=330)], rates)[0]["tokens/s alone"] == "9.99M"
    told_apart = run("base", 99, updates=300, settings=("dropout.input=0",))  # then dropout decided nothing
    assert rows_of(curves, [told_apart], rates)[0]["tokens/s alone"] == "1.23M"
    assert rows_of(curves, [told_apart | {"updates": 299}], rates)[0]["tokens/s alone"] == "-"


def test_a_difference_is_told_in_settings(curves):
    base = curves.Variant("base", ("batch_tokens=1", "optimizer.rate=2"), [], 0)

    def told(*settings: str, name: str = "other") -> str:
        return curves.different(curves.Variant(name, settings, [], 0), base)

    assert told("batch_tokens=1", "optimizer.rate=2", "optimizer.rate=3") == "`optimizer.rate=3`"
    assert told("batch_tokens=1") == "`optimizer.rate` as in the recipe"
    started = told(*base.settings, name="small head at the start")
    assert started == "`head.weight` 0.1 times as large at the start"
    assert curves.different(base, base) == "the base: `batch_tokens=1`, `optimizer.rate=2`"


@given(st.lists(st.floats(0, 400), max_size=20).map(sorted))
def test_labels_never_overlap_and_stay_where_there_is_room(curves, places):
    moved = curves.spread_out(places, 17, 420)
    assert all(after - before > 17 - 1e-6 for before, after in itertools.pairwise(moved))
    assert not moved or (moved[0] > -1e-6 and moved[-1] < 420 + 1e-6)
    if all(after - before >= 17 for before, after in itertools.pairwise(places)):
        assert moved == pytest.approx(places)


@given(st.lists(st.floats(0, 100), min_size=3, max_size=3).map(sorted))
def test_labels_move_as_little_as_can_be(curves, places):
    moved = curves.spread_out(places, 20, 100)
    grid = [(a, b, c) for a in range(0, 61, 2) for b in range(a + 20, 81, 2) for c in range(b + 20, 101, 2)]
    best = min(sum((x - y) ** 2 for x, y in zip(places, tried, strict=True)) for tried in grid)
    assert sum((x - y) ** 2 for x, y in zip(places, moved, strict=True)) <= best + 1e-6


def test_points_of_a_curve_stand_at_their_share_and_on_a_logarithmic_scale(curves):
    seeds = [run("base", 799, 399, 199, 99, seed=seed) for seed in (1, 2)]
    svg = xml.fromstring(
        curves.stage_curves("made up", curves.searched([*seeds, run("<other>", 699, 399, 199, 149)])["made up"])
    )
    base = [circle for circle in svg.iter(f"{SVG}circle") if circle.attrib["fill"] == curves.BLACK]
    x, y = ([float(circle.attrib[key]) for circle in base] for key in ("cx", "cy"))
    assert x[2] - x[1] == pytest.approx(x[1] - x[0], abs=0.3)
    assert y[2] - y[1] == pytest.approx(y[1] - y[0], abs=0.3)  # halved twice
    assert len([path for path in svg.iter(f"{SVG}path") if path.attrib.get("class", "").startswith("band")]) == 1
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert "100.0  base (2 seeds)" in texts
    assert "150.0  <other>" in texts


def test_a_run_far_off_does_not_squeeze_the_others_and_is_told(curves):
    records = [run(f"near {number}", 140, 99 + number) for number in range(3)] + [run("far", 9000, 8999)]
    svg = xml.fromstring(curves.stage_curves("made up", curves.searched(records)["made up"]))
    assert len(list(svg.iter(f"{SVG}circle"))) == 6
    assert "9000.0  far (above the frame)" in [text.text for text in svg.iter(f"{SVG}text")]


def test_a_file_in_which_nothing_was_found_counts_as_none(curves, monkeypatch):
    files = [
        {"file": "enwiki-1.txt.bz3", "paragraphs": 7000, "dropped: formulas": 3},
        {"file": "enwiki-2.txt.bz3", "paragraphs": 500, "mended: As of": 2},
        {"file": "books.txt.bz3", "paragraphs": 40},
    ]
    monkeypatch.setattr(curves, "newest", lambda *_: files)
    assert curves.cleaning_rows() == [
        ["paragraphs", "Wikipedia", "books"],
        ["all", "7,500", "40"],
        ["dropped: formulas", "3", "0"],
        ["mended: As of", "2", "0"],
    ]


def test_page_and_curves_are_made_from_the_records():
    line = [sys.executable, "-m", "en_small.curves", "--check"]
    done = subprocess.run(line, cwd=BENCHMARKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
