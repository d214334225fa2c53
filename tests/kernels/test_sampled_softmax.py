"""`sampled_softmax_loss` against loops in float64, the full softmax and TensorFlow's losses, on every path that this machine has."""

import math

import h5py
import pytest
import torch
from models import FIXTURES, needs_shared
from triton_device import triton_device

from elmofire.errors import InputError
from elmofire.kernels.sampled_softmax import sampled_softmax_loss

CUDA = torch.cuda.is_available()

SIZES = [(1, 1, 1, 2), (37, 33, 50, 60), (40, 16, 64, 90), (3, 5, 0, 4)]  # rows, width, samples, vocabulary
LEAVES = ("vectors", "sampled_weight", "sampled_bias", "target_weight", "target_bias")


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that nobody wrote is NaN."""
    for owner, name in ((torch, "empty"), (torch, "empty_like")):
        make = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, make=make, **kwargs: make(*args, **kwargs).fill_(float("nan")))


def problem(n, P, S, V, *, seed=0):
    """Arguments by name, in float64; about a third of the rows' targets are among the samples."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sampled_ids = torch.randperm(V, generator=generator)[:S]
    targets = torch.randint(0, V, (n,), generator=generator)
    if S:
        targets[::3] = sampled_ids[torch.randint(0, S, targets[::3].shape, generator=generator)]
    given = {
        "vectors": draw(n, P),
        "sampled_weight": draw(S, P) / P**0.5,
        "sampled_bias": draw(S),
        "target_weight": draw(n, P) / P**0.5,
        "target_bias": draw(n),
        "sampled_ids": sampled_ids,
        "targets": targets,
        "sampled_log_counts": -5 * draw(S).abs(),
        "target_log_counts": -5 * draw(n).abs(),
    }
    return given, draw(n)


def answer(given, grad, *, dtype=torch.float64, products=None, device="cpu", path="torch"):
    """Losses, then the gradients of the five leaves."""
    there = {name: t.to(device, dtype if t.is_floating_point() else None) for name, t in given.items()}
    leaves = {name: there.pop(name).detach().requires_grad_() for name in LEAVES}
    vectors = leaves["vectors"].to(products or dtype)
    losses = sampled_softmax_loss(vectors, *list(leaves.values())[1:], **there, path=path)
    losses.backward(grad.to(losses))
    return [losses.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves.values())]


def slow(vectors, sampled_weight, sampled_bias, target_weight, target_bias, **rest):
    losses = []
    for r, target in enumerate(rest["targets"]):
        true = float(vectors[r] @ target_weight[r] + target_bias[r] - rest["target_log_counts"][r])
        total = math.exp(true)
        for s, word in enumerate(rest["sampled_ids"]):
            if word != target:
                total += math.exp(vectors[r] @ sampled_weight[s] + sampled_bias[s] - rest["sampled_log_counts"][s])
        losses.append(math.log(total) - true)
    return torch.tensor(losses, dtype=torch.float64)


def error(found, expected):
    return float((found.double() - expected).norm() / (expected.norm() + 1e-300)) if expected.numel() else 0.0


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_torch_path_equals_loops(size):
    given, _ = problem(*size)
    torch.testing.assert_close(sampled_softmax_loss(**given), slow(**given), rtol=1e-12, atol=1e-12)


@needs_shared
@pytest.mark.parametrize("path", ["torch", "triton"])
def test_losses_equal_tensorflows(path):
    device = triton_device() if path == "triton" else "cpu"
    with h5py.File(FIXTURES / "sampled_softmax.hdf5") as file:
        known = {name: torch.from_numpy(file[name][()]).to(device) for name in file}
    labels, ids = known["labels"].flatten().long(), known["sampled_ids"].long()
    assert torch.isin(labels, ids).any()
    losses = sampled_softmax_loss(
        known["inputs"],
        known["W"][ids],
        known["b"][ids],
        known["W"][labels],
        known["b"][labels],
        sampled_ids=ids,
        targets=labels,
        sampled_log_counts=known["sampled_expected_count"].log(),
        target_log_counts=known["true_expected_count"].flatten().log(),
        path=path,
    )
    torch.testing.assert_close(losses, known["losses"], rtol=0, atol=1e-6)


def test_with_every_word_sampled_it_is_the_full_softmax():
    V, n, P = 30, 17, 6
    given, grad = problem(n, P, V, V)
    weight, bias = given["sampled_weight"].requires_grad_(), given["sampled_bias"].requires_grad_()
    targets = given["targets"]
    zeros = torch.zeros(V, dtype=torch.float64)
    found = sampled_softmax_loss(
        given["vectors"],
        weight,
        bias,
        weight[targets],
        bias[targets],
        sampled_ids=torch.arange(V),
        targets=targets,
        sampled_log_counts=zeros,
        target_log_counts=zeros[:n],
    )
    logits = given["vectors"] @ weight.T + bias
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(found, expected)
    for f, e in zip(
        torch.autograd.grad(found, [weight, bias], grad),
        torch.autograd.grad(expected, [weight, bias], grad),
        strict=True,
    ):
        torch.testing.assert_close(f, e)


def test_gradients_equal_finite_differences():
    given, _ = problem(5, 3, 6, 9)
    leaves = [given.pop(name).requires_grad_() for name in LEAVES]
    assert torch.autograd.gradcheck(lambda *leaves: sampled_softmax_loss(*leaves, **given), leaves)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_triton_in_float32_errs_no_more_than_twice_torch(size, poisoned):
    device = triton_device()
    given, grad = problem(*size)
    exact = answer(given, grad)
    plain = answer(given, grad, dtype=torch.float32)
    found = answer(given, grad, dtype=torch.float32, device=device, path="triton")
    for f, p, e in zip(found, plain, exact, strict=True):
        assert f.dtype == torch.float32
        assert error(f, e) <= max(2 * error(p, e), 3e-7)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_triton_in_halves_errs_no_more_than_twice_torch(size, poisoned, monkeypatch):
    device = triton_device()
    half = torch.bfloat16 if CUDA else torch.float16  # what holds for the interpreter, too
    from elmofire.kernels import paths

    monkeypatch.setitem(paths.PRECISIONS, "half", half)
    given, grad = problem(*size)
    for name in ("vectors", "sampled_weight", "target_weight"):
        given[name] = given[name].to(half).double()
    exact = answer(given, grad)
    plain = answer(given, grad, dtype=torch.float32, products=half)
    found = answer(given, grad, dtype=torch.float32, products=half, device=device, path="triton")
    for f, p, e in zip(found, plain, exact, strict=True):
        assert f.dtype == torch.float32
        assert error(f, e) <= max(2 * error(p, e), torch.finfo(half).eps)


def test_triton_takes_strided_tensors_and_ids_near_the_end_of_int32(poisoned):
    device = triton_device()
    given, grad = problem(19, 12, 21, 30)
    exact = answer(given, grad)
    given = {name: t.T.contiguous().T if t.dim() == 2 else t.repeat_interleave(2)[::2] for name, t in given.items()}
    for name in ("sampled_ids", "targets"):
        given[name] = given[name] + 2**31 - 40
    found = answer(given, grad.repeat_interleave(2)[::2], dtype=torch.float32, device=device, path="triton")
    for f, e in zip(found, exact, strict=True):
        assert error(f, e) <= 1e-6


@pytest.mark.parametrize("path", ["torch", "triton"])
def test_no_rows_give_no_losses_and_zero_gradients(path):
    device = triton_device() if path == "triton" else "cpu"
    given, grad = problem(0, 4, 6, 9)
    found = answer(given, grad, dtype=torch.float32, device=device, path=path)
    assert found[0].shape == (0,)
    assert all((gradient == 0).all() for gradient in found[1:])


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no GPU")
def test_nothing_but_one_buffer_of_that_size_exists():
    n, P, S = 4096, 64, 8192
    given, _ = problem(n, P, S, 20000)
    there = {name: t.cuda().to(torch.bfloat16) if t.is_floating_point() else t.cuda() for name, t in given.items()}
    leaves = [there.pop(name).requires_grad_() for name in LEAVES]
    sampled_softmax_loss(*leaves, **there).sum().backward()  # what the libraries take for themselves
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    sampled_softmax_loss(*leaves, **there).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 1.3 * 2 * n * S


def test_a_path_that_cannot_be_taken_is_an_error():
    given, _ = problem(2, 3, 4, 9)
    with pytest.raises(InputError, match="triton"):  # not in float64, if there is a triton at all
        sampled_softmax_loss(**given, path="triton")


def test_shapes_that_do_not_fit_are_refused():
    given, _ = problem(2, 3, 4, 9)
    with pytest.raises(InputError, match=r"\(4, 2\).*need.*\(4, 3\)"):
        sampled_softmax_loss(**{**given, "sampled_weight": given["sampled_weight"][:, :2]})
    with pytest.raises(InputError, match=r"\(3,\).*need.*\(4,\)"):
        sampled_softmax_loss(**{**given, "sampled_ids": given["sampled_ids"][:3]})
