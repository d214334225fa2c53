"""Rates of whole runs, against formulas and by hand."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmofire.errors import RecipeError
from elmofire.train.settings import OptimizerSettings
from elmofire.train.step.schedule import Schedule


def schedule(kind, *, warmup=0, rate=3.0, gain=1.0, **length):
    return Schedule(OptimizerSettings(schedule=kind, warmup=warmup, rate=rate, plateau_gain=gain), **length)


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "plateau"])
def test_the_rate_rises_in_equal_steps_to_the_full_one(kind):
    found = [schedule(kind, warmup=4, updates=20).rate(n) for n in range(5)]
    assert found == pytest.approx([0.75, 1.5, 2.25, 3.0, 3.0])


@pytest.mark.parametrize("warmup", [0, 7])
@pytest.mark.parametrize(
    ("kind", "share"), [("linear", lambda x: 1 - x), ("cosine", lambda x: math.cos(math.pi * x / 2) ** 2)]
)
def test_the_rate_falls_to_zero_over_what_follows_the_warm_up(kind, share, warmup):
    of = schedule(kind, warmup=warmup, updates=31)
    for n in range(warmup, 32):
        assert of.rate(n) == pytest.approx(3 * share((n - warmup) / (31 - warmup)), abs=1e-12)
    assert of.rate(30) > 0
    assert of.rate(40) == 0


def test_updates_count_where_both_are_given():
    both, updates = (schedule("linear", updates=10, minutes=minutes) for minutes in (1.0, None))
    assert [both.rate(n, 0.99) for n in range(10)] == [updates.rate(n) for n in range(10)]


@given(st.sampled_from(["linear", "cosine"]), st.integers(0, 30), st.integers(31, 200), st.floats(0.1, 1e4))
def test_minutes_of_a_steady_run_give_the_rates_of_its_updates(kind, warmup, updates, minutes):
    by_minutes, by_updates = (
        schedule(kind, warmup=warmup, minutes=minutes),
        schedule(kind, warmup=warmup, updates=updates),
    )
    for n in range(updates + 1):
        assert by_minutes.rate(n, n / updates * minutes) == pytest.approx(by_updates.rate(n), abs=1e-6)


@given(st.integers(0, 20), st.lists(st.floats(0, 1), min_size=30, max_size=60))
def test_minutes_never_raise_the_rate_again_after_the_warm_up(warmup, times):
    of = schedule("linear", warmup=warmup, minutes=1.0)
    rates = [of.rate(n, minutes) for n, minutes in enumerate(sorted(times))][warmup:]
    assert all(0 <= later <= earlier + 1e-9 for earlier, later in itertools.pairwise(rates))
    assert of.rate(len(times), 1.0) == 0


def test_a_plateau_halves_the_rate_where_perplexity_gains_no_more_than_asked():
    of = schedule("plateau", warmup=2)
    rates = []
    for perplexity in (100.0, 90.0, 89.5, 88.0, 87.0, 95.0, 60.0, math.nan, 50.0, 40.0):
        of.evaluated(perplexity)
        rates.append(of.rate(10) / 3)
    assert rates == [1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 8, 1 / 8, 1 / 16, 1 / 32, 1 / 32]
    assert of.rate(0) == 1.5, "the warm-up does not know of it"


def test_evaluations_change_no_other_schedule():
    of = schedule("constant")
    of.evaluated(5.0)
    of.evaluated(6.0)
    assert of.rate(3) == 3


def test_a_plateau_goes_on_from_its_state():
    whole, first = schedule("plateau"), schedule("plateau")
    for of in (whole, first):
        of.evaluated(10.0)
        of.evaluated(9.5)
    second = schedule("plateau")
    second.load(json.loads(json.dumps(first.state())))
    for of in (whole, second):
        of.evaluated(9.0)
    assert second.rate(0) == whole.rate(0) == 0.75


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_what_falls_to_zero_must_know_its_end(kind):
    with pytest.raises(RecipeError, match="when the run ends"):
        schedule(kind)
