"""Runs that the clock ends, with a clock on which every look takes a second."""

from dataclasses import replace

import pytest
import torch
from train.run import small_runs
from train.run.small_runs import RECIPES, interrupted_at

from elmofire.errors import DataError
from elmofire.train.files.checkpoints import Checkpoints
from elmofire.train.files.log import read_log
from elmofire.train.run import loop
from elmofire.train.settings import OptimizerSettings, TrainSettings


@pytest.fixture(autouse=True)
def ticking(monkeypatch):
    now = iter(range(10_000))
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(now)))


@pytest.mark.parametrize("minutes", [second / 60 for second in range(25, 31)])
def test_a_run_of_minutes_ends_with_a_line_an_evaluation_and_a_checkpoint(corpus, tmp_path, minutes):
    train = TrainSettings(minutes=minutes, batch_tokens=96, log_every=1)
    recipe = replace(RECIPES["sentences"], train=train, optimizer=OptimizerSettings(rate=0.02, schedule="linear"))
    small_runs.train(corpus, tmp_path, recipe)
    log = read_log(tmp_path)
    last = Checkpoints(tmp_path / "checkpoints").newest()
    assert [(record["kind"], record["update"]) for record in log[-2:]] == [
        ("train", last.update),
        ("evaluation", last.update),
    ]
    assert last.facts["progress"]["seconds"] >= 60 * minutes
    rates = [record["rate"] for record in log if record["kind"] == "train"]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0] / 2
    small_runs.train(corpus, tmp_path, recipe)
    assert read_log(tmp_path) == log


def test_a_run_that_minutes_have_ended_goes_on_with_more_of_them(corpus, tmp_path):
    """To the same weights, since its schedule counts updates; where it counts minutes, others are another run."""
    train = replace(RECIPES["sentences-full"].train, updates=30, log_every=1)
    whole, ended = (replace(RECIPES["sentences-full"], train=replace(train, minutes=n)) for n in (None, 6 / 60))
    small_runs.train(corpus, tmp_path / "whole", whole)
    small_runs.train(corpus, tmp_path / "run", ended)
    log = read_log(tmp_path / "run")
    assert log[-1]["update"] < 30
    assert "with more minutes" in log[-1]["text"]
    small_runs.train(corpus, tmp_path / "run", whole)
    one, other = (Checkpoints(tmp_path / name / "checkpoints").newest() for name in ("whole", "run"))
    for name in one.tensors:
        assert torch.equal(one.tensors[name], other.tensors[name]), name
    assert "minutes" not in (tmp_path / "run/recipe.toml").read_text().replace("checkpoint_minutes", "")
    by_minutes = replace(RECIPES["sentences"], train=TrainSettings(minutes=4 / 60, batch_tokens=96, log_every=1))
    small_runs.train(corpus, tmp_path / "minutes", by_minutes)
    with pytest.raises(DataError, match=r"train\.minutes is 5\.0 now and was 0\.06"):
        small_runs.train(
            corpus, tmp_path / "minutes", replace(by_minutes, train=replace(by_minutes.train, minutes=5.0))
        )


def test_an_evaluation_that_only_minutes_have_made_changes_no_rate(corpus, tmp_path):
    """The schedule that evaluations decide halves the rate after each one here but the first."""
    train = replace(RECIPES["averaged"].train, updates=30, log_every=1, evaluate_every=10)
    whole, ended = (replace(RECIPES["averaged"], train=replace(train, minutes=n)) for n in (None, 16 / 60))
    small_runs.train(corpus, tmp_path / "whole", whole)
    small_runs.train(corpus, tmp_path / "run", ended)
    (last,) = [record["update"] for record in read_log(tmp_path / "run") if record["kind"] == "evaluation"][-1:]
    assert last % 10
    small_runs.train(corpus, tmp_path / "run", whole)
    rates = [
        {record["update"]: record["rate"] for record in read_log(tmp_path / name) if record["kind"] == "train"}
        for name in ("whole", "run")
    ]
    assert rates[0] == rates[1]
    assert rates[0][30] == rates[0][5] / 2


def test_the_time_of_all_sittings_counts(corpus, tmp_path):
    recipe = replace(RECIPES["sentences"], train=TrainSettings(minutes=1.0, batch_tokens=96, log_every=1))
    interrupted_at(4, corpus, tmp_path, recipe)
    before = Checkpoints(tmp_path / "checkpoints").newest().facts["progress"]["seconds"]
    small_runs.train(corpus, tmp_path, recipe)
    seconds = [record["clock"]["seconds"] for record in read_log(tmp_path) if record["kind"] == "train"]
    assert 0 < before < seconds[4] < before + 20
    assert seconds == sorted(seconds)
    assert 60 <= seconds[-1] < 75
