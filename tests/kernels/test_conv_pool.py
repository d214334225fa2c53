"""`conv_pool` against a loop over windows in float64, on every path that this machine has: values and all gradients."""

import numpy as np
import pytest
import torch
from triton_device import triton_device

from elmofire.errors import InputError
from elmofire.kernels.convolution import conv_pool

CUDA = torch.cuda.is_available()


# words, characters of a word, alphabet, dim, (width, count) of the filters
SIZES = [
    (1, 1, 1, 1, [(1, 1)]),
    (5, 9, 7, 5, [(1, 3), (2, 5), (4, 7)]),
    (70, 11, 90, 16, [(1, 3), (3, 70), (7, 9)]),
    (3, 20, 9, 33, [(13, 5), (2, 3)]),
]


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that nobody wrote is NaN, or the largest integer."""

    def poison(make):
        def made(*args, **kwargs):
            tensor = make(*args, **kwargs)
            worst = float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
            return tensor.fill_(worst)

        return made

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))


def problem(n, W, K, dim, filters, *, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    ids = torch.randint(0, K, (n, W), generator=generator)
    for row, length in zip(ids, torch.randint(0, W + 1, (n,), generator=generator), strict=True):
        row[length:] = K - 1
    weights = [draw(count, dim, width) / (dim * width) ** 0.5 for width, count in filters]
    return ids, draw(K, dim), weights, [draw(count) for _, count in filters], draw(n, sum(c for _, c in filters))


def answer(ids, characters, weights, biases, grad, *, dtype=torch.float64, device="cpu", run=conv_pool, **options):
    """Pooled, then the gradients of characters, weights and biases."""
    leaves = [t.detach().to(device, dtype).requires_grad_() for t in (characters, *weights, *biases)]
    groups = len(weights)
    pooled = run(ids.to(device), leaves[0], leaves[1 : 1 + groups], leaves[1 + groups :], **options)
    pooled.backward(grad.to(pooled))
    return [pooled.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)]


def slow(ids, characters, weights, biases):
    pooled = []
    for word in ids:
        row = []
        for weight, bias in zip(weights, biases, strict=True):
            width = weight.shape[2]
            for one, b in zip(weight.numpy(), bias.numpy(), strict=True):
                starts = range(len(word) - width + 1)
                row.append(
                    max(sum(one[:, j] @ characters[word[p + j]].numpy() for j in range(width)) + b for p in starts)
                )
        pooled.append(row)
    return torch.tensor(np.array(pooled))


def error(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("size", SIZES[:2] + SIZES[3:], ids=str)
def test_the_torch_path_equals_a_loop_over_windows(size):
    *given, _ = problem(*size)
    torch.testing.assert_close(conv_pool(*given), slow(*given), rtol=1e-12, atol=1e-12)


def test_gradients_equal_finite_differences():
    ids, characters, weights, biases, _ = problem(6, 7, 4, 3, [(1, 2), (3, 4)])
    leaves = [t.requires_grad_() for t in (characters, *weights, *biases)]
    assert torch.autograd.gradcheck(lambda c, v, w, a, b: conv_pool(ids, c, [v, w], [a, b]), leaves)


def test_longer_padding_changes_nothing():
    ids, *rest = problem(9, 8, 6, 4, [(1, 3), (5, 4)])
    longer = torch.cat([ids, ids[:, -1:].expand(-1, 30)], dim=1)
    extended = torch.cat([ids, ids[:, -1:].expand(-1, 4)], dim=1)  # every window that `longer` has
    for found, expected in zip(answer(longer, *rest), answer(extended, *rest), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_triton_in_float32_errs_no_more_than_twice_torch(size, poisoned):
    device = triton_device()
    given = problem(*size)
    exact = answer(*given)
    plain = answer(*given, dtype=torch.float32, path="torch")
    found = answer(*given, dtype=torch.float32, device=device, path="triton")
    for f, p, e in zip(found, plain, exact, strict=True):
        assert f.dtype == torch.float32
        assert error(f, e) <= max(2 * error(p, e), 3e-7)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_triton_in_halves_errs_no_more_than_twice_torch(size, poisoned):
    device = triton_device()
    half = torch.bfloat16 if CUDA else torch.float16  # the interpreter cannot multiply bfloat16
    from elmofire.kernels import convolution, convolution_triton

    ids, characters, weights, biases, grad = problem(*size)
    rounded = [ids, characters.to(half), [w.to(half) for w in weights], biases, grad.to(half)]
    exact = answer(*rounded)
    options = {"dtype": torch.float32, "device": device}
    plain = answer(*rounded, **options, run=lambda *given: convolution._in_torch(*given, half))
    found = answer(*rounded, **options, run=lambda *given: convolution_triton.conv_pool(*given, half))
    for f, p, e in zip(found[1:], plain[1:], exact[1:], strict=True):
        assert f.dtype == torch.float32
        assert error(f, e) <= max(2 * error(p, e), 4 * torch.finfo(half).eps)
    assert error(found[0], exact[0]) <= max(2 * error(plain[0], exact[0]), torch.finfo(half).eps)


def test_triton_takes_strided_tensors_and_repeats_bit_for_bit():
    device = triton_device()
    ids, characters, weights, biases, grad = problem(21, 9, 12, 6, [(2, 5), (3, 40)])
    strided = [w.transpose(0, 2).contiguous().transpose(0, 2) for w in weights]
    once = answer(ids, characters, weights, biases, grad, dtype=torch.float32, device=device, path="triton")
    again = answer(
        ids.T.contiguous().T,
        characters.T.contiguous().T,
        strided,
        biases,
        grad.T.contiguous().T,
        dtype=torch.float32,
        device=device,
        path="triton",
    )
    for a, b in zip(once, again, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("path", ["torch", "triton", "triton in halves"])
def test_a_broken_character_reaches_the_words_that_hold_it_and_no_others(path):
    device = "cpu" if path == "torch" else triton_device()
    ids, characters, weights, biases, _ = problem(30, 9, 40, 5, [(1, 3), (4, 7)])
    characters[3] = float("nan")
    given = [
        ids.to(device),
        characters.float().to(device),
        [w.float().to(device) for w in weights],
        [b.float().to(device) for b in biases],
    ]
    if path == "triton in halves":
        from elmofire.kernels import convolution_triton

        pooled = convolution_triton.conv_pool(*given, torch.bfloat16 if CUDA else torch.float16).cpu()
    else:
        pooled = conv_pool(*given, path=path).cpu()
    broken = (ids == 3).any(dim=1)
    assert 0 < broken.sum() < len(ids)
    assert pooled[broken].isnan().all()
    assert pooled[~broken].isfinite().all()


@pytest.mark.parametrize("path", ["torch", "triton"])
def test_no_words_give_no_rows_and_zero_gradients(path):
    device = triton_device() if path == "triton" else "cpu"
    found = answer(*problem(0, 6, 5, 4, [(2, 3)]), dtype=torch.float32, device=device, path=path)
    assert found[0].shape == (0, 3)
    assert all((gradient == 0).all() for gradient in found[1:])


def test_gradients_that_nobody_wants_are_not_made():
    device = triton_device()
    ids, characters, weights, biases, _ = problem(9, 9, 12, 6, [(2, 5)])
    given = [characters.float().to(device), weights[0].float().to(device), biases[0].float().to(device)]
    given[1].requires_grad_()
    conv_pool(ids.to(device), given[0], given[1:2], given[2:], path="triton").sum().backward()
    assert [t.grad is not None for t in given] == [False, True, False]


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no GPU")
def test_a_step_can_be_captured_in_a_cuda_graph():
    ids, *rest = problem(300, 20, 90, 16, [(1, 32), (5, 256)])
    characters, weights, biases, grad = rest
    ids = ids.cuda()
    leaves = [t.float().cuda().requires_grad_() for t in (characters, *weights, *biases)]
    grad = grad.to("cuda", torch.bfloat16)

    def step():
        pooled = conv_pool(ids, leaves[0], leaves[1:3], leaves[3:], path="triton", precision="bfloat16")
        gradients = torch.autograd.grad(pooled, leaves, grad)
        return [pooled.detach(), *gradients]  # nothing of the captured pass is alive in the next, on another stream

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    ids.copy_(ids.flip(0))
    graph.replay()
    for found, expected in zip(captured, step(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_path_that_cannot_be_taken_is_an_error():
    ids, characters, weights, biases, _ = problem(2, 6, 5, 4, [(2, 3)])
    with pytest.raises(InputError, match="triton"):  # not in float64, if there is a triton at all
        conv_pool(ids, characters, weights, biases, path="triton")


def test_all_that_does_not_fit_is_said_at_once():
    ids, characters, weights, biases, _ = problem(2, 6, 5, 4, [(2, 3), (6, 2), (1, 1)])
    with pytest.raises(InputError, match=r"\(3, 3, 2\).*width 6 does not fit into words of 5"):
        conv_pool(ids[:, :5], characters, [weights[0][:, :3], *weights[1:]], biases)
    with pytest.raises(InputError, match="3 weights and 2 biases"):
        conv_pool(ids, characters, weights, biases[:2])
