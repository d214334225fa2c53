"""What was logged can be read off the plot again, by its own axes."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmofire.train.files.plot import HEIGHT, WIDTH, plot_run

SVG = "{http://www.w3.org/2000/svg}"
LETTERS = {"k": 1e3, "M": 1e6, "G": 1e9}


def panels(svg: str) -> dict[str, ElementTree.Element]:
    groups = ElementTree.fromstring(svg).findall(f"{SVG}g")
    return {next(text.text for text in group.iter(f"{SVG}text") if text.get("class") == "panel"): group for group in groups}  # fmt: skip


def number(label: str) -> float:
    return float(label[:-1]) * LETTERS[label[-1]] if label[-1] in LETTERS else float(label)


def ticks(panel, side: str) -> list[tuple[float, float]]:
    """(pixel, value) of an axis: labels below are centered, those on the left end at the frame."""
    anchor, pixel = {"x": ("middle", lambda t: float(t.get("x"))), "y": ("end", lambda t: float(t.get("y")) - 4)}[side]
    labels = [text for text in panel.iter(f"{SVG}text") if text.get("text-anchor") == anchor]
    return [(pixel(text), number(text.text)) for text in labels if text.text not in ("updates", "nothing yet")]


def read_off(axis: list[tuple[float, float]], pixel: float, *, logarithmic: bool = False) -> float:
    (p, a), (q, b) = axis[0], axis[-1]
    if logarithmic:
        a, b = math.log(a), math.log(b)
    value = a + (pixel - p) / (q - p) * (b - a)
    return math.exp(value) if logarithmic else value


def dots(panel) -> list[tuple[float, float]]:
    return [(float(dot.get("cx")), float(dot.get("cy"))) for dot in panel.iter(f"{SVG}circle")]


def record(update: int, loss: float | None = 4.0, **changes):
    clock = {"tokens_per_second": changes.pop("speed", 9000.0)}
    return {"update": update, "kind": "train", "loss": loss, "softmax": "sampled", "rate": 1e-3, "clock": clock, **changes}  # fmt: skip


def evaluation(update: int, forward: float | None, backward: float | None, mean: float | None):
    return {"update": update, "kind": "evaluation", "forward": forward, "backward": backward, "mean": mean}


def test_training_figures_can_be_read_off():
    losses, speeds = [9.1, 6.0, 5.2, 4.9], [1000.0, 5600.0, 5500.0, 5800.0]
    rates = [0.0002, 0.001, 0.0006, 0.0]
    updates = [50, 400, 700, 1300]
    rows = zip(updates, losses, rates, speeds, strict=True)
    drawn = panels(plot_run([record(u, loss, rate=rate, speed=speed) for u, loss, rate, speed in rows]))
    expected = {"Training loss, nats a word (sampled softmax)": losses, "Learning rate": rates, "Tokens per second": speeds}  # fmt: skip
    for title, values in expected.items():
        across, up = ticks(drawn[title], "x"), ticks(drawn[title], "y")
        assert len(across) > 2
        assert len(up) > 2
        for (x, y), update, value in zip(dots(drawn[title]), updates, values, strict=True):
            assert read_off(across, x) == pytest.approx(update, abs=2)
            assert read_off(up, y) == pytest.approx(value, abs=max(values) / 200)


@pytest.mark.parametrize("largest", [45.0, 80.0, 900.0, 2e5, 3e9])
def test_perplexities_can_be_read_off_a_logarithmic_axis(largest):
    means = [largest, math.sqrt(largest * 40), 40.0]
    drawn = panels(plot_run([evaluation(100 * k, m * 0.98, m / 0.98, m) for k, m in enumerate(means, 1)]))
    panel = drawn["Held-out perplexity"]
    up = ticks(panel, "y")
    assert 2 < len(up) < 10
    expected = [m * f for f in (0.98, 1 / 0.98, 1) for m in means]  # forward, backward, mean
    for (_, y), value in zip(dots(panel), expected, strict=True):
        assert math.log(read_off(up, y, logarithmic=True)) == pytest.approx(
            math.log(value), abs=0.01 * math.log(largest / 35)
        )
    labels = [text.text for text in panel.iter(f"{SVG}text")]
    assert [label for label in labels if label in ("forward", "backward", "mean")] == ["forward", "backward", "mean"]


def test_the_best_evaluation_is_told():
    svg = plot_run([evaluation(100, 90.0, 90.0, 90.0), evaluation(200, 41.0, 42.0, 41.5), evaluation(300, 50.0, 50.0, 50.0)])  # fmt: skip
    assert "300 updates; best held-out perplexity 41.50 after 200" in svg


def test_a_model_that_goes_on_is_drawn_as_it_was_before():
    before = {**evaluation(0, 40.0, 40.0, 40.0), "kind": "before"}
    svg = plot_run([before, evaluation(100, 50.0, 50.0, 50.0)])
    assert "100 updates; best held-out perplexity 40.00 before the first" in svg
    assert len(dots(panels(svg)["Held-out perplexity"])) == 6


def test_a_model_of_one_direction_has_no_other_curve():
    panel = panels(plot_run([evaluation(100, 90.0, None, 90.0), evaluation(200, 80.0, None, 80.0)]))[
        "Held-out perplexity"
    ]
    labels = [text.text for text in panel.iter(f"{SVG}text")]
    assert "forward" in labels
    assert "backward" not in labels
    assert len(dots(panel)) == 4


def test_the_loss_says_which_softmax_it_is_of():
    for softmax, told in (("sampled", "(sampled softmax)"), ("full", "(full softmax)")):
        assert told in plot_run([record(1, softmax=softmax)])


def test_a_run_without_records_has_empty_panels():
    svg = plot_run([])
    assert svg.count("nothing yet") == 4
    assert "0 updates, not evaluated yet" in svg
    assert len(panels(svg)) == 4


def test_many_points_become_means_with_their_spread_and_a_small_file():
    noise = [((37 * k) % 101 - 50) / 100 for k in range(50_000)]
    records = [record(100 * (k + 1), 5 + noise[k]) for k in range(50_000)]
    svg = plot_run(records)
    assert len(svg) < 40_000
    panel = panels(svg)["Training loss, nats a word (sampled softmax)"]
    assert not dots(panel)
    up = ticks(panel, "y")
    band, line = (path.get("d") for path in panel.iter(f"{SVG}path"))
    heights = {name: [read_off(up, float(y)) for y in re.findall(r"[\d.]+ ([\d.]+)", d)] for name, d in (("band", band), ("line", line))}  # fmt: skip
    assert min(heights["band"]) == pytest.approx(4.5, abs=0.02)
    assert max(heights["band"]) == pytest.approx(5.5, abs=0.02)
    assert all(height == pytest.approx(5, abs=0.05) for height in heights["line"])


numbers = st.one_of(st.none(), st.floats(), st.floats(0, 1e6), st.sampled_from([0.0, 1e308, 1e-308, math.inf, -1.0]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.builds(record, st.integers(0, 10**7), numbers, rate=numbers, speed=numbers), max_size=6),
    st.lists(st.builds(evaluation, st.integers(0, 10**7), numbers, numbers, numbers), max_size=6),
)
def test_whatever_is_logged_is_drawn_inside_its_panel(training, evaluations):
    svg = plot_run([*training, *evaluations, {"update": 3, "kind": "note", "text": "<&"}])
    assert "nan" not in svg
    assert "inf" not in svg
    for panel in panels(svg).values():
        assert all(-0.1 <= x <= WIDTH + 0.1 and -0.1 <= y <= HEIGHT + 0.1 for x, y in dots(panel))
        for side in "xy":
            places = [pixel for pixel, _ in ticks(panel, side)]
            assert len(places) <= 12
            assert all(abs(a - b) > 10 for a, b in pairwise(places))
