"""What is wrong is not timed, however little: bounds, refusals, and the truth that results are held against."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import lively, tiny

from elmofire import Embedder
from elmofire.bench.lstmp import Setting, bench_lstmp
from elmofire.bench.parity import BOUNDS, layer_errors, refusal, true_layers
from elmofire.bench.stacks import LOOP, TORCH_LSTM, Runner, Shape, Stack, by_path, loop, loop_in, random_problem

SENTENCES = [["Stick", "to", "the", "plan"], ["Why", "?"], ["naïve", "x" * 30]]
SHAPE = Shape(batch=3, steps=4, cells=11, projection=5)
# torch says, once in a process, that its LSTM has no faster kernel for projections on a CPU.
lstm_warning = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def spoiled(by: float, what: str) -> Stack:
    """The loop with one result off by a relative error."""

    def prepare(problem, precision: str) -> Runner:
        def forward():
            outputs, state = loop(problem)
            noise = torch.randn_like(outputs.detach())
            off = by * outputs.detach().norm() * noise / noise.norm()
            if what == "outputs":
                outputs = outputs + off
            elif what == "gradients":
                outputs = outputs * (1 + by) - (outputs * by).detach()  # the same values, another slope
            else:
                state = state._replace(memory=state.memory * (1 + by))
            return outputs, state

        return Runner(forward, problem.leaves(), problem.gradient)

    return Stack(f"wrong {what}", prepare)


@pytest.mark.parametrize("what", ["outputs", "gradients", "memory"])
def test_a_stack_that_is_wrong_by_a_hundredth_is_not_timed(what):
    records = list(bench_lstmp([SHAPE], Setting(), contenders=[spoiled(1e-2, what), LOOP]))
    verdicts = {record["contender"]: record["refused"] for record in records if record["case"] == "parity"}
    assert "off by" in verdicts[f"wrong {what}"]
    assert verdicts[LOOP.name] is None
    assert [record["contender"] for record in records if record["case"] == "time"] == [LOOP.name]


def test_a_stack_that_is_off_by_less_than_rounding_is_timed():
    records = list(bench_lstmp([SHAPE], Setting(), contenders=[spoiled(1e-8, "outputs"), LOOP]))
    assert len([record for record in records if record["case"] == "time"]) == 2


def test_a_stack_that_is_wrong_with_many_rows_alone_is_not_timed():
    def prepare(problem, precision: str) -> Runner:
        chosen = spoiled(1e-2, "outputs") if problem.inputs.shape[2] > 8 else LOOP
        return chosen.prepare(problem, precision)

    shapes = [SHAPE, replace(SHAPE, batch=20, steps=5)]
    records = list(bench_lstmp(shapes, Setting(), contenders=[Stack("wrong with many", prepare), LOOP]))
    verdicts = [(record["contender"], record["batch"], record["refused"] is None) for record in records if record["case"] == "parity"]  # fmt: skip
    assert verdicts == [("wrong with many", SHAPE.batch, True), (LOOP.name, SHAPE.batch, True), ("wrong with many", 20, False), (LOOP.name, 20, True)]  # fmt: skip
    assert {record["contender"] for record in records if record["case"] == "time"} == {LOOP.name}


def test_nothing_is_timed_that_gives_nan():
    records = list(bench_lstmp([SHAPE], Setting(mode="inference"), contenders=[spoiled(float("nan"), "outputs")]))
    assert not [record for record in records if record["case"] == "time"]


@lstm_warning
def test_a_baseline_that_stores_all_in_bfloat16_is_measured_by_a_loop_that_does():
    records = list(bench_lstmp([SHAPE], Setting(precision="bfloat16"), contenders=[TORCH_LSTM, spoiled(0.5, "memory")]))
    assert [record["contender"] for record in records if record["case"] == "time"] == [TORCH_LSTM.name]


@lstm_warning
@pytest.mark.parametrize("stack", [by_path("torch"), TORCH_LSTM], ids=lambda stack: stack.name)
def test_every_stack_has_the_results_and_gradients_of_the_loop_in_float64(stack):
    problem = random_problem(SHAPE, "cpu", seed=1)
    runner, true = stack.prepare(problem, "float32"), loop_in(problem, torch.float64, clips=stack.clips)
    assert set(true.leaves) <= set(runner.leaves)
    (found, after), (expected, expected_after) = runner.forward(), true.forward()
    names = list(true.leaves)
    gradients = torch.autograd.grad(found, [runner.leaves[name] for name in names], runner.gradient)
    expected_gradients = torch.autograd.grad(expected, [true.leaves[name] for name in names], true.gradient)
    for x, y in zip((found, *after, *gradients), (expected, *expected_after, *expected_gradients), strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-5)


def test_the_problem_is_lively_enough_that_both_clips_fire():
    problem = random_problem(Shape(batch=32, cells=128, projection=32), "cpu")
    outputs, state = loop(problem)
    for held in (outputs[:, 0], state.memory):  # of the first layer outputs are projections alone, without a residual
        assert 0.0005 < float((held.abs() == 3.0).double().mean()) < 0.1


def test_the_truth_is_what_the_engine_computes():
    weights = lively(tiny(), seed=3)
    errors = layer_errors(
        Embedder(weights, device="cpu").embed(SENTENCES, layers="all"), true_layers(weights, SENTENCES)
    )
    assert len(errors) == weights.config.layers + 1
    assert refusal({f"layer {j}": error for j, error in enumerate(errors)}, "float32") is None


@pytest.mark.parametrize("precision", BOUNDS)
def test_vectors_beyond_a_precisions_bound_are_refused_and_those_within_are_not(precision):
    rng = np.random.default_rng(0)
    true = rng.standard_normal((3, 200, 64))
    noise = rng.standard_normal(true.shape)
    noise *= np.linalg.norm(true, axis=2, keepdims=True) / np.linalg.norm(noise, axis=2, keepdims=True)

    def verdict(relative: float) -> str | None:
        errors = layer_errors([true + relative * noise], [true])
        return refusal({f"layer {j}": error for j, error in enumerate(errors)}, precision)

    assert verdict(0.5 * BOUNDS[precision].relative) is None
    assert "layer 0" in (verdict(1.5 * BOUNDS[precision].relative) or "")


def test_in_float32_one_wrong_token_is_enough():
    true = np.ones((1, 1000, 8))
    found = true.copy()
    found[0, 7, 3] += 1e-2
    (error,) = layer_errors([found], [true])
    assert error["relative"] < BOUNDS["float32"].relative < error["largest"]
    assert refusal({"layer 0": error}, "float32")


def test_vectors_of_another_shape_are_refused():
    (error,) = layer_errors([np.ones((1, 3, 8))], [np.ones((1, 4, 8))])
    assert refusal({"layer 0": error}, "int8")
