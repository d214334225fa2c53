"""`full_softmax_loss` against torch's cross entropy, finite differences, and for what never exists at once."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from elmofire.errors import InputError
from elmofire.train.step.full_softmax import full_softmax_loss

CUDA = torch.cuda.is_available()


def problem(n, P, V, *, seed=0, dtype=torch.float64):
    """Vectors, weight, bias, targets (a fifth of them nothing), and the gradient of the losses."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    targets = torch.randint(0, V, (n,), generator=generator)
    targets[torch.rand(n, generator=generator) < 0.2] = -1
    return draw(n, P), draw(V, P), draw(V), targets, draw(n)


def with_gradients(loss, vectors, weight, bias, targets, grad, **rest):
    leaves = [leaf.clone().requires_grad_() for leaf in (vectors, weight, bias)]
    losses = loss(*leaves, targets, **rest)
    losses.backward(grad.to(losses))
    return [losses.detach(), *(leaf.grad for leaf in leaves)]


def cross_entropy(vectors, weight, bias, targets):
    return F.cross_entropy(vectors @ weight.T + bias, targets, ignore_index=-1, reduction="none")


def error(found, expected):
    return float((found.double() - expected).norm() / (expected.norm() + 1e-300))


@given(st.integers(0, 9), st.integers(1, 5), st.integers(1, 20), st.integers(1, 25), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_losses_and_gradients_are_those_of_all_logits_at_once(n, P, V, words, seed):
    given = problem(n, P, V, seed=seed)
    found = with_gradients(full_softmax_loss, *given, words_at_once=words)
    expected = with_gradients(cross_entropy, *given)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-11, atol=1e-12)


def test_gradients_equal_finite_differences():
    *leaves, targets, _ = problem(5, 3, 8)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    assert (targets >= 0).any()
    assert torch.autograd.gradcheck(lambda *leaves: full_softmax_loss(*leaves, targets, words_at_once=3), leaves)


def test_in_float32_it_errs_no_more_than_twice_torch():
    given = problem(200, 32, 3000)
    exact = with_gradients(cross_entropy, *given)
    single = [t.float() if t.is_floating_point() else t for t in given]
    plain = with_gradients(cross_entropy, *single)
    found = with_gradients(full_softmax_loss, *single, precision="float32")
    for f, p, e in zip(found, plain, exact, strict=True):
        assert f.dtype == torch.float32
        assert error(f, e) <= max(2 * error(p, e), 2e-7)


@pytest.mark.parametrize("of_vectors", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", [None, 700])
def test_in_bfloat16_only_operands_are_rounded(of_vectors, words):
    """What is in bfloat16 already costs the losses nothing; gradients pass through one more rounding, of the probabilities."""
    given = [t.float() if t.is_floating_point() else t for t in problem(200, 32, 3000)]
    given[0], given[1] = given[0].bfloat16(), given[1].bfloat16().float()
    exact = with_gradients(cross_entropy, *(t.double() if t.is_floating_point() else t for t in given))
    given[0] = given[0].to(of_vectors)
    found = with_gradients(full_softmax_loss, *given, precision="bfloat16", words_at_once=words)
    assert [t.dtype for t in found] == [torch.float32, of_vectors, torch.float32, torch.float32]
    assert error(found[0], exact[0]) < 1e-6
    assert error(found[3], exact[3]) < 1e-5  # the bias meets no product of rounded numbers
    for f, e in zip(found[1:3], exact[1:3], strict=True):
        assert 1e-6 < error(f, e) < 2**-8


def test_without_a_target_a_row_reaches_nothing_whatever_is_in_it():
    vectors, weight, bias, targets, grad = problem(30, 4, 11)
    nothing = targets < 0
    assert 0 < nothing.sum() < 30
    clean = with_gradients(full_softmax_loss, vectors, weight, bias, targets, grad)
    vectors[nothing], grad[nothing] = float("nan"), float("inf")
    dirty = with_gradients(full_softmax_loss, vectors, weight, bias, targets, grad)
    for c, d in zip(clean, dirty, strict=True):
        assert torch.equal(c, d)
    assert (dirty[0][nothing] == 0).all()
    assert (dirty[1][nothing] == 0).all()


def test_large_logits_do_not_overflow():
    vectors, weight, bias, targets, grad = problem(20, 4, 30)
    given = (vectors * 1000, weight, bias, targets, grad)
    found = with_gradients(full_softmax_loss, *given, words_at_once=7)
    for f, e in zip(found, with_gradients(cross_entropy, *given), strict=True):
        assert f.isfinite().all()
        torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-9)


def test_what_needs_no_gradient_gets_none():
    vectors, weight, bias, targets, grad = problem(6, 3, 9)
    full_softmax_loss(vectors.requires_grad_(), weight, bias, targets).backward(grad)
    assert vectors.grad is not None
    assert weight.grad is None
    assert not full_softmax_loss(vectors.detach(), weight, bias, targets).requires_grad


class Largest(TorchDispatchMode):
    """The elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_all_logits_never_exist(precision):
    n, P, V, words = 64, 2, 4096, 256
    given = problem(n, P, V, dtype=torch.float32)
    with Largest() as largest:
        with_gradients(full_softmax_loss, *given, precision=precision, words_at_once=words)
    assert largest.elements == n * words


def test_by_itself_it_takes_few_words_at_once():
    vectors, weight, bias, targets, _ = problem(20_000, 1, 3000, dtype=torch.float32)
    with Largest() as largest:
        full_softmax_loss(vectors, weight, bias, targets)
    assert largest.elements == 20_000 * 1024


def test_shapes_that_do_not_fit_and_unknown_precisions_are_refused():
    vectors, weight, bias, targets, _ = problem(6, 3, 9)
    with pytest.raises(InputError, match=r"\(9, 2\).*need.*\(9, 3\)"):
        full_softmax_loss(vectors, weight[:, :2], bias, targets)
    with pytest.raises(InputError, match=r"\(5,\).*need.*\(6,\)"):
        full_softmax_loss(vectors, weight, bias, targets[:5])
    with pytest.raises(InputError, match="float32, bfloat16"):
        full_softmax_loss(vectors, weight, bias, targets, precision="half")


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no GPU")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_captured_graph_gives_the_same(precision):
    given = [t.cuda() for t in problem(100, 32, 3000, dtype=torch.float32)]
    expected = with_gradients(full_softmax_loss, *given, precision=precision)
    leaves = [leaf.clone().requires_grad_() for leaf in given[:3]]
    for leaf in leaves:
        leaf.grad = torch.zeros_like(leaf)

    def run():
        for leaf in leaves:
            leaf.grad.zero_()
        losses = full_softmax_loss(*leaves, given[3], precision=precision)
        losses.backward(given[4])
        return losses.detach()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        losses = run()
    graph.replay()
    torch.cuda.synchronize()
    for f, e in zip([losses, *(leaf.grad for leaf in leaves)], expected, strict=True):
        torch.testing.assert_close(f, e)
