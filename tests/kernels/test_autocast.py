"""A precision that is asked for holds inside autocast too, on every path and on the way back."""

import contextlib

import pytest
import torch
from triton_device import triton_device

from elmofire.kernels import LayerWeights, LstmState, lstmp
from elmofire.kernels.convolution import conv_pool
from elmofire.kernels.sampled_softmax import sampled_softmax_loss
from elmofire.train.step.full_softmax import full_softmax_loss

PATHS = ["torch", "triton"]


def device_of(path):
    return triton_device() if path == "triton" else "cpu"


def draw(device, *shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def lstmp_of(path, rows):
    device, (P, C) = device_of(path), (6, 40)
    leaves = [draw(device, 1, 2, rows, P), draw(device, 1, 1, rows, P), draw(device, 1, 1, rows, C)]
    leaves += [draw(device, *shape) / 4 for shape in [(4 * C, P), (4 * C, P), (4 * C,), (P, C)]]

    def run(inputs, hidden, memory, *flat):
        state = LstmState(hidden, memory)
        outputs, after = lstmp(inputs, [[LayerWeights(*flat)]], state, path=path, precision="float32")
        return [outputs, *after]

    return run, leaves


def conv_pool_of(path):
    device = device_of(path)
    ids = torch.randint(20, (5, 12), generator=torch.Generator().manual_seed(0)).to(device)

    def run(characters, weight, bias):
        return [conv_pool(ids, characters, [weight], [bias], path=path, precision="float32")]

    return run, [draw(device, 20, 8), draw(device, 16, 8, 3), draw(device, 16)]


def sampled_of(path):
    device = device_of(path)
    ids, targets = torch.arange(7, device=device), torch.tensor([1, 20, 30], device=device)

    def run(vectors, weight, bias, true_weight, true_bias):
        counts = {"sampled_log_counts": torch.zeros_like(bias), "target_log_counts": torch.zeros_like(true_bias)}
        given = (vectors, weight, bias, true_weight, true_bias)
        return [sampled_softmax_loss(*given, sampled_ids=ids, targets=targets, **counts, path=path)]

    return run, [draw(device, *shape, seed=k) for k, shape in enumerate([(3, 16), (7, 16), (7,), (3, 16), (3,)])]


def full_of(_path):
    def run(vectors, weight, bias):
        return [full_softmax_loss(vectors, weight, bias, torch.tensor([1, -1, 4]))]

    return run, [draw("cpu", 3, 16), draw("cpu", 9, 16, seed=1), draw("cpu", 9, seed=2)]


CASES = {
    **{f"lstmp, {rows} rows, {path}": (lstmp_of, path, rows) for path in PATHS for rows in (1, 3)},
    **{f"conv_pool, {path}": (conv_pool_of, path) for path in PATHS},
    **{f"sampled softmax, {path}": (sampled_of, path) for path in PATHS},
    "full softmax": (full_of, "torch"),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_rounded_that_was_asked_for_in_float32(case):
    make, *given = CASES[case]
    run, leaves = make(*given)

    def results(inside):
        with inside:
            with torch.no_grad():
                unkept = run(*leaves)
            kept = [leaf.detach().requires_grad_() for leaf in leaves]
            found = run(*kept)
        # Of torch's own operations the way back is torch's own affair.
        with contextlib.nullcontext() if given[0] == "torch" and make is not full_of else inside:
            gradients = torch.autograd.grad([tensor.sum() for tensor in found], kept)
        return [*unkept, *found, *gradients]

    expected = results(contextlib.nullcontext())
    found = results(torch.autocast(leaves[0].device.type, torch.bfloat16))
    assert {tensor.dtype for tensor in found} == {torch.float32}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("way", ["autocast", "a model in halves"])
def test_halves_come_by_autocast_or_by_the_tensors_and_states_stay_float32(half, way):
    inputs, hidden, memory, *flat = lstmp_of("torch", 3)[1]
    state, weights = LstmState(hidden, memory), LayerWeights(*flat)
    expected, _ = lstmp(inputs, [[weights]], state)
    if way == "autocast":
        with torch.autocast("cpu", half):
            found, after = lstmp(inputs, [[weights]], state)
    else:
        own = LayerWeights(*(tensor.to(half) for tensor in weights))
        found, after = lstmp(inputs.to(half), [[own]], LstmState(hidden.to(half), memory.to(half)))
    assert {tensor.dtype for tensor in (found, *after)} == {torch.float32}
    assert 1e-5 < float((found - expected).norm() / expected.norm()) < 2e-2
