"""`full_softmax_loss`: the loss over the whole vocabulary, without its logits ever being there all at once."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmofire.errors import InputError
from elmofire.kernels.paths import in_given_types, operand_dtype, without_autocast

# At once: what a cache holds between one pass and the next, but not so few words that products are slow.
_LOGITS_ON_GPU = 2**24
_LOGITS_ON_CPU = 2**20
_FEWEST_WORDS = 1024


def full_softmax_loss(
    vectors: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    *,
    precision: str = "float32",
    words_at_once: int | None = None,
) -> Tensor:
    """-log p(target) of every row (n,), where p is the softmax over all V words; a target of -1 costs nothing and teaches nothing.

    `vectors` (n, P) meet all rows of the head, (V, P) and (V,), `words_at_once` at a time (default: logits of 64 MB on a GPU, 4 MB
    elsewhere, or 1,024 words if those are more). The forward keeps the log-sum-exp of each row, the backward makes the logits again:
    a row of the head gets its gradient in one go, and only the vectors' gradients are added up, in float32. Products are made in
    `precision` (float64 stays float64), sums and the losses are float32 at least.

    >>> full_softmax_loss(torch.ones(2, 1), torch.ones(3, 1), torch.zeros(3), torch.tensor([2, -1]))
    tensor([1.0986, 0.0000])
    """
    _check(vectors, weight, bias, targets)
    wide = torch.promote_types(vectors.dtype, torch.float32)
    asked = operand_dtype(precision, vectors)
    products = wide if asked == torch.float32 else asked
    if words_at_once is None:
        logits = _LOGITS_ON_GPU if vectors.is_cuda else _LOGITS_ON_CPU
        fitting = logits // max(len(vectors), 1) // 64 * 64
        words_at_once = min(max(fitting, _FEWEST_WORDS), max(len(weight), 1))
    with without_autocast(vectors.device):
        return _Losses.apply(vectors, weight, bias, targets, products, words_at_once)  # pyright: ignore[reportReturnType]


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, products: torch.dtype, words: int
    ) -> Tensor:
        wide = torch.promote_types(vectors.dtype, torch.float32)
        there = targets >= 0
        rows = _rows(vectors, there, products)
        top = torch.full(targets.shape, float("-inf"), dtype=wide, device=vectors.device)
        total, true = torch.zeros_like(top), torch.zeros_like(top)
        for block, z in _logits(rows, weight, bias, words, wide):
            place, inside = _places(targets, block)
            true = torch.where(inside, z.gather(1, place[:, None]).squeeze(1), true)
            higher = torch.maximum(top, z.amax(dim=1))
            total = total * torch.exp(top - higher) + z.sub_(higher[:, None]).exp_().sum(dim=1)
            top = higher
        logs = top + total.log()
        ctx.save_for_backward(vectors, weight, bias, targets, logs)
        ctx.products, ctx.words = products, words
        return torch.where(there, logs - true, 0.0)

    @staticmethod
    @once_differentiable
    @in_given_types
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """With g a row's gradient, that of a logit is g (p - [it is the target's]); g scales small matrices, never the logits."""
        vectors, weight, bias, targets, logs = ctx.saved_tensors
        wide, products = logs.dtype, ctx.products
        there = targets >= 0
        grad = torch.where(there, grad, 0.0)
        rows = _rows(vectors, there, products)
        scaled = (rows.to(wide) * grad[:, None]).to(products)
        d_vectors = torch.zeros(vectors.shape, dtype=wide, device=vectors.device) if ctx.needs_input_grad[0] else None
        d_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        d_bias = torch.empty_like(bias) if ctx.needs_input_grad[2] else None
        for block, z in _logits(rows, weight, bias, ctx.words, wide):
            place, inside = _places(targets, block)
            z.sub_(logs[:, None]).exp_()
            z.scatter_(1, place[:, None], z.gather(1, place[:, None]) - inside[:, None].to(wide))
            if d_bias is not None:
                d_bias[block] = grad @ z
            z = z.to(products)
            if d_vectors is not None:
                d_vectors += _product(z, weight[block].to(products), wide)
            if d_weight is not None:
                d_weight[block] = _product(z.T, scaled, wide)
        if d_vectors is not None:
            d_vectors = d_vectors.mul_(grad[:, None]).to(vectors.dtype)
        return d_vectors, d_weight, d_bias, None, None, None


def _rows(vectors: Tensor, there: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows without a target are zero, so that whatever is in them reaches nothing."""
    return torch.where(there[:, None], vectors, 0.0).to(dtype)


def _logits(
    rows: Tensor, weight: Tensor, bias: Tensor, words: int, dtype: torch.dtype
) -> Iterator[tuple[slice, Tensor]]:
    """Some words after the others, and the logits of all rows for them, to be overwritten."""
    for first in range(0, len(weight), words):
        block = slice(first, min(first + words, len(weight)))
        yield block, _product(rows, weight[block].to(rows.dtype).T, dtype).add_(bias[block])


def _places(targets: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """Where targets are among the block's words, if they are."""
    inside = (targets >= block.start) & (targets < block.stop)
    return torch.where(inside, targets - block.start, 0), inside


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b, summed in `dtype`, which is no narrower than theirs."""
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=dtype)
    return a.to(dtype) @ b.to(dtype)


def _check(vectors: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> None:
    n, width = vectors.shape
    found = [tuple(t.shape) for t in (weight, bias, targets)]
    expected = [(len(weight), width), (len(weight),), (n,)]
    if found != expected or not len(weight):
        raise InputError(f"weight, bias, targets: shapes {found}, but vectors ({n}, {width}) need {expected}")
