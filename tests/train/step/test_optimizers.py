"""Optimizers against torch.optim and clip_grad_norm_, against TensorFlow's formula by hand, and Triton against torch."""

import copy

import pytest
import torch
from torch import nn
from triton_device import triton_device

from elmofire.errors import DataError
from elmofire.train.settings import OptimizerSettings
from elmofire.train.step import optimizers
from elmofire.train.step.optimizers import Optimizer
from elmofire.train.step.parameters import FlatParameters

CUDA = torch.cuda.is_available()
NAMES = ["adamw", "adagrad", "sgd"]
DECAY = {"adamw": 0.1, "adagrad": 0.0, "sgd": 0.0}


def network(dtype=torch.float32, device="cpu"):
    """With parameters that are no multiple of 64, and one longer than a program's tile."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(49, 37), nn.Linear(37, 3), nn.Linear(3, 1, bias=False)).to(device, dtype)


def settings(name="adamw", **rest):
    return OptimizerSettings(**{"name": name, "clip": None, **rest})


def built(chosen, *, dtype=torch.float32, device="cpu", path="torch"):
    model = network(dtype, device)
    parameters = FlatParameters(model, dict(model.named_parameters()))
    return model, parameters, Optimizer(chosen, parameters, path=path)


def gradients_of(number, like, *, size=1.0):
    """The same numbers whatever the type; some far larger than others."""
    generator = torch.Generator().manual_seed(100 + number)
    return [
        (torch.randn(p.shape, generator=generator, dtype=torch.float64) * size * 10 ** (k - 2)).to(p)
        for k, p in enumerate(like)
    ]


def give(model, number, **rest):
    for parameter, gradient in zip(model.parameters(), gradients_of(number, model.parameters(), **rest), strict=True):
        parameter.grad.copy_(gradient)


def of_torch(chosen, model):
    rest = {"lr": chosen.rate, "foreach": False}
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    match chosen.name:
        case "adamw":
            groups = [
                {"params": others, "weight_decay": chosen.weight_decay},
                {"params": biases, "weight_decay": 0.0},
            ]
            return torch.optim.AdamW(groups, betas=chosen.betas, eps=chosen.epsilon, **rest)
        case "adagrad":
            first = chosen.initial_accumulator
            return torch.optim.Adagrad(model.parameters(), initial_accumulator_value=first, eps=0.0, **rest)
        case _:
            return torch.optim.SGD(model.parameters(), **rest)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("clip", [None, 0.5, 1e6])
@pytest.mark.parametrize(
    "chosen",
    [
        {"name": "adamw"},
        {"name": "adamw", "weight_decay": 0.1, "betas": (0.8, 0.99), "epsilon": 1e-3},
        {"name": "adamw", "betas": (0.0, 0.0), "weight_decay": 1.0},
        {"name": "adagrad", "initial_accumulator": 0.3},
        {"name": "sgd"},
    ],
    ids=str,
)
def test_ten_steps_equal_those_of_torch(chosen, clip, dtype, monkeypatch):
    monkeypatch.setattr(optimizers, "_ON_CPU", 640)  # several chunks, the last one shorter
    chosen = settings(**chosen, clip=clip, rate=0.05)
    model, parameters, optimizer = built(chosen, dtype=dtype)
    peer = network(dtype)
    theirs = of_torch(chosen, peer)
    for number in range(10):
        rate = 0.05 * (10 - number) / 10
        give(model, number)
        for parameter, gradient in zip(peer.parameters(), gradients_of(number, peer.parameters()), strict=True):
            parameter.grad = gradient
        expected = nn.utils.clip_grad_norm_(peer.parameters(), clip or float("inf"))
        for group in theirs.param_groups:
            group["lr"] = rate
        theirs.step()
        before = parameters.gradients.clone()
        norm = optimizer.step(torch.tensor(rate, dtype=dtype))
        torch.testing.assert_close(norm, expected)
        assert torch.equal(parameters.gradients, before), "the gradient itself is not clipped"
    # clip_grad_norm_ divides by norm + 1e-6
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-12 if clip != 0.5 else 1e-6}[dtype]
    for found, expected in zip(model.parameters(), peer.parameters(), strict=True):
        assert (found - expected).abs().max() <= tolerance * (1 + expected.abs().max())
    filled = parameters.named(torch.arange(len(parameters.weights)))
    between = torch.ones(len(parameters.weights), dtype=torch.bool)
    between[torch.cat([places.flatten() for places in filled.values()])] = False
    assert between.any()
    assert (parameters.weights[between] == 0).all()


def test_adagrad_is_that_of_2018():
    """TensorFlow's: g * clip / max(norm, clip), a + g^2, w - rate * g / sqrt(a), in a loop over numbers."""
    chosen = settings("adagrad", clip=10.0, rate=0.2)
    model, parameters, optimizer = built(chosen, dtype=torch.float64)
    w = parameters.weights.tolist()
    a = [1.0] * len(w)
    sizes = [0.1, 1.0, 0.01, 100.0]
    for number, size in enumerate(sizes):
        give(model, number, size=size)
        g = parameters.gradients.tolist()
        norm = sum(x * x for x in g) ** 0.5
        for i, x in enumerate(g):
            x = x * 10 / max(norm, 10)
            a[i] += x * x
            w[i] -= 0.2 * x / a[i] ** 0.5
        assert optimizer.step(torch.tensor(0.2, dtype=torch.float64)).item() == pytest.approx(norm)
        assert (norm > 10) == (size > 0.5), "both sides of the clip"
    torch.testing.assert_close(parameters.weights, torch.tensor(w, dtype=torch.float64), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(optimizer.state()["accumulator"], torch.tensor(a, dtype=torch.float64))


def test_the_norm_of_many_numbers_keeps_its_digits():
    model = nn.Linear(1, 2**22, bias=False)
    parameters = FlatParameters(model, dict(model.named_parameters()))
    parameters.gradients.fill_(0.1)
    norm = Optimizer(settings("sgd"), parameters).step(torch.tensor(0.0))
    assert norm.item() == pytest.approx(2**11 * 0.1, rel=1e-6)


@pytest.mark.parametrize("path", ["torch", "triton"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_that_are_not_finite_change_nothing(name, bad, path):
    device = triton_device() if path == "triton" else "cpu"
    model, parameters, optimizer = built(
        settings(name, clip=1.0, average=0.9, weight_decay=DECAY[name]), device=device, path=path
    )
    rate = torch.tensor(0.1, device=device)

    def everything():
        kept = {name: tensor.clone() for name, tensor in optimizer.state().items() if name != "skipped"}
        return {**kept, "weights": parameters.weights.clone()}

    skipped = []
    for number, broken in enumerate([True, False, True, True, False]):
        before = everything()
        give(model, number)
        if broken:
            parameters.gradients[7] = bad
        norm = optimizer.step(rate)
        after = everything()
        assert norm.isfinite().item() != broken
        assert all(torch.equal(before[key], after[key]) for key in before) == broken
        skipped.append(optimizer.skipped.item())
    assert skipped == [1, 0, 1, 2, 0]
    assert optimizer.count.item() == 2
    assert optimizer.norm.item() == norm.item()

    again, same, without = built(
        settings(name, clip=1.0, average=0.9, weight_decay=DECAY[name]), device=device, path=path
    )
    for number in (1, 4):
        give(again, number)
        without.step(rate)
    assert torch.equal(same.weights, parameters.weights), "as if the bad ones had never been"
    assert torch.equal(without.averaged, optimizer.averaged)


@pytest.mark.parametrize("decay", [0.0, 0.7, 0.999])
def test_the_average_is_the_weighted_mean_of_all_weights_so_far(decay):
    model, parameters, optimizer = built(settings("sgd", average=decay), dtype=torch.float64)
    seen = []
    for number in range(6):
        give(model, number)
        optimizer.step(torch.tensor(0.1, dtype=torch.float64))
        seen.append(parameters.weights.clone())
        shares = [decay ** (number - k) for k in range(number + 1)]
        expected = sum(share * weights for share, weights in zip(shares, seen, strict=True)) / sum(shares)
        torch.testing.assert_close(optimizer.averaged, expected, rtol=1e-10, atol=1e-12)


def test_before_the_first_step_the_average_is_the_weights():
    _, parameters, optimizer = built(settings(average=0.9))
    assert torch.equal(optimizer.averaged, parameters.weights)
    assert built(settings())[2].averaged is None


@pytest.mark.parametrize("average", [None, 0.9])
@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_from_its_state_bit_for_bit(name, average):
    chosen = settings(name, clip=1.0, average=average, weight_decay=DECAY[name])
    model, parameters, optimizer = built(chosen)
    rate = torch.tensor(0.1)
    for number in range(3):
        give(model, number)
        optimizer.step(rate)
    kept = copy.deepcopy((parameters.weights, optimizer.state()))

    later, theirs, other = built(chosen)
    give(later, 9)
    other.step(rate)
    places = {name: tensor.data_ptr() for name, tensor in other.state().items()}
    theirs.weights.copy_(kept[0])
    other.load(kept[1])
    assert {name: tensor.data_ptr() for name, tensor in other.state().items()} == places
    for each, step in ((model, optimizer.step), (later, other.step)):
        for number in range(3, 6):
            give(each, number)
            step(rate)
    assert torch.equal(parameters.weights, theirs.weights)
    for key, tensor in optimizer.state().items():
        assert torch.equal(tensor, other.state()[key]), key


def test_states_name_what_they_hold():
    flat = {"adamw": {"first_moment", "second_moment"}, "adagrad": {"accumulator"}, "sgd": set()}
    for name, expected in flat.items():
        _, parameters, optimizer = built(settings(name, average=0.5))
        state = optimizer.state()
        assert state.keys() == expected | {"average", "count", "skipped"}
        assert all(parameters.named(state[key]) for key in expected)


def test_the_state_of_another_optimizer_is_refused():
    _, _, adagrad = built(settings("adagrad"))
    _, _, adamw = built(settings())
    with pytest.raises(DataError, match=r"accumulator.*adamw.*first_moment"):
        adamw.load(adagrad.state())
    with pytest.raises(DataError, match=r"first_moment \(3,\)"):
        adamw.load({**adamw.state(), "first_moment": torch.zeros(3)})


@pytest.mark.parametrize("average", [None, 0.9])
@pytest.mark.parametrize(("name", "decay"), [*DECAY.items(), ("adamw", 0.0)])
def test_triton_equals_torch(name, decay, average):
    device = triton_device()
    chosen = settings(name, clip=0.7, weight_decay=decay, average=average)
    model, parameters, optimizer = built(chosen, dtype=torch.float64)
    there, flat, fast = built(chosen, device=device, path="triton")
    assert len(flat.weights) > 1024
    assert len(flat.weights) % 1024 != 0
    for number in range(4):
        rate = 0.1 / (number + 1)
        give(model, number)
        give(there, number)
        expected = optimizer.step(torch.tensor(rate, dtype=torch.float64))
        torch.testing.assert_close(fast.step(torch.tensor(rate, device=device)).cpu(), expected.float())
    pairs = {"weights": (parameters.weights, flat.weights)}
    pairs |= {key: (tensor, fast.state()[key]) for key, tensor in optimizer.state().items()}
    for key, (expected, found) in pairs.items():
        torch.testing.assert_close(found.cpu().to(expected.dtype), expected, rtol=2e-5, atol=2e-6, msg=key)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no GPU")
@pytest.mark.parametrize("path", ["torch", "triton"])
@pytest.mark.parametrize("name", NAMES)
def test_a_captured_step_replays_as_it_runs(name, path):
    chosen = settings(name, clip=0.7, weight_decay=DECAY[name], average=0.9)
    captured, eager = (built(chosen, device="cuda", path=path) for _ in range(2))
    rate = torch.zeros((), device="cuda")
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    for number in range(5):
        rate.fill_(0.1 / (number + 1))
        for model, parameters, _ in (captured, eager):
            give(model, number)
            if number == 3:
                parameters.gradients[7] = float("nan")
        eager[2].step(rate)
        torch.cuda.synchronize()
        if number == 0:
            with torch.cuda.stream(stream):
                captured[2].step(rate)
        elif number == 1:
            with torch.cuda.graph(graph, stream=stream):
                captured[2].step(rate)
        if number > 0:
            graph.replay()
        torch.cuda.synchronize()
        assert captured[2].skipped.item() == (number == 3)
    assert torch.equal(captured[1].weights, eager[1].weights)
    for key, tensor in eager[2].state().items():
        assert torch.equal(captured[2].state()[key], tensor), key
