"""`sampled_softmax_loss` on a GPU: three products of the library's, and one (n, S) buffer that holds first logits, then probabilities.

One pass over the buffer makes the losses and overwrites each logit by its probability, which is all that the backward needs: with g
the gradient of a row's loss, the gradient of a sample's logit is g * p and that of the target's g * (p_target - 1). So g scales the
rows of small matrices and never the buffer.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmofire.errors import InputError
from elmofire.kernels.paths import in_given_types

MOST_SAMPLES = 65536  # a row is in the registers of one program
PER_WARP = 2048  # samples
STAGES = 2  # rows in flight in one program, where they fit
ROWS = 16  # that one program goes through, so that the samples' ids and shifts are read once for all of them


def losses(
    vectors: Tensor,
    sampled_weight: Tensor,
    sampled_shift: Tensor,
    target_weight: Tensor,
    target_shift: Tensor,
    sampled_ids: Tensor,
    targets: Tensor,
) -> Tensor:
    if len(sampled_weight) > MOST_SAMPLES:
        raise InputError(
            f"{len(sampled_weight)} samples, and path `triton` takes up to {MOST_SAMPLES}",
            hint="path='torch' takes any",
        )
    leaves = (vectors, sampled_weight, sampled_shift, target_weight, target_shift)
    keep = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
    return _Losses.apply(*leaves, sampled_ids, targets, keep)  # pyright: ignore[reportReturnType]


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        sampled_weight: Tensor,
        sampled_shift: Tensor,
        target_weight: Tensor,
        target_shift: Tensor,
        sampled_ids: Tensor,
        targets: Tensor,
        keep: bool,  # noqa: FBT001
    ) -> Tensor:
        (n, width), samples = vectors.shape, len(sampled_weight)
        ctx.dtypes = [t.dtype for t in (vectors, sampled_weight, sampled_shift, target_weight, target_shift)]
        vectors, target_weight = vectors.contiguous(), target_weight.to(vectors.dtype).contiguous()
        sampled_weight = sampled_weight.to(vectors.dtype)
        buffer = _product(vectors, sampled_weight.T, vectors.dtype)
        found = torch.empty(n, dtype=torch.float32, device=vectors.device)
        misses = torch.empty_like(found)
        block = max(triton.next_power_of_2(samples), 32)
        if n:
            with torch.cuda.device_of(vectors):
                _rows[(triton.cdiv(n, ROWS),)](
                    buffer,
                    vectors,
                    target_weight,
                    target_shift.float().contiguous(),
                    targets.contiguous(),
                    sampled_shift.float().contiguous(),
                    sampled_ids.contiguous(),
                    found,
                    misses,
                    n,
                    samples,
                    width,
                    ROWS=ROWS,
                    SAMPLES_TILE=block,
                    WIDTH_TILE=triton.next_power_of_2(width),
                    STAGES=STAGES if block <= 16384 else 1,
                    KEEP=keep,
                    num_warps=max(4, min(32, block // PER_WARP)),
                )
        if keep:
            ctx.save_for_backward(buffer, vectors, sampled_weight, target_weight, misses)
        return found

    @staticmethod
    @once_differentiable
    @in_given_types
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        buffer, vectors, sampled_weight, target_weight, misses = ctx.saved_tensors
        n, width = vectors.shape
        samples = len(sampled_weight)
        grad = grad.float().contiguous()
        of_vectors, of_weight, of_shift, of_target, _ = ctx.dtypes
        d_vectors = _product(buffer, sampled_weight, vectors.dtype)
        d_target = torch.empty(n, width, dtype=of_target, device=vectors.device)
        scaled = torch.empty_like(vectors)
        splits = min(64, triton.cdiv(n, 32)) or 1
        sums = torch.empty(splits, samples, dtype=torch.float32, device=vectors.device)
        with torch.cuda.device_of(vectors):
            if n:
                _scale[(n,)](
                    d_vectors,
                    vectors,
                    target_weight,
                    grad,
                    misses,
                    d_target,
                    scaled,
                    width,
                    WIDTH_TILE=triton.next_power_of_2(width),
                )
            if ctx.needs_input_grad[2] and samples:
                _column_sums[(triton.cdiv(samples, 256), splits)](
                    buffer, grad, sums, n, samples, splits, ROWS_TILE=32, SAMPLES_TILE=256
                )
        d_weight = _product(buffer.T, scaled, of_weight) if ctx.needs_input_grad[1] else None
        d_shift = sums.sum(dim=0).to(of_shift) if ctx.needs_input_grad[2] else None
        d_target_shift = (grad * misses).to(ctx.dtypes[4])
        return d_vectors.to(of_vectors), d_weight, d_shift, d_target, d_target_shift, None, None, None


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b, summed in float32 and rounded once, to `dtype`."""
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=dtype)
    return (a.float() @ b.float()).to(dtype)


@triton.jit
def _rows(
    buffer,
    vectors,
    target_weight,
    target_shift,
    targets,
    sampled_shift,
    sampled_ids,
    losses,
    misses,
    n,
    samples,
    width,
    ROWS: tl.constexpr,
    SAMPLES_TILE: tl.constexpr,
    WIDTH_TILE: tl.constexpr,
    STAGES: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Logits -> loss, probability of all other words (negative), and in place the probabilities of the samples."""
    s = tl.arange(0, SAMPLES_TILE)
    k = tl.arange(0, WIDTH_TILE)
    real = s < samples
    shift = tl.load(sampled_shift + s, mask=real, other=float("-inf"))
    ids = tl.load(sampled_ids + s, mask=real, other=0).to(tl.int32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for i in tl.range(0, tl.minimum(ROWS, n - tl.program_id(0) * ROWS), num_stages=STAGES):
        row = first + i
        h = tl.load(vectors + row * width + k, mask=k < width, other=0.0).to(tl.float32)
        w = tl.load(target_weight + row * width + k, mask=k < width, other=0.0).to(tl.float32)
        true = tl.sum(h * w) + tl.load(target_shift + row)
        z = tl.load(buffer + row * samples + s, mask=real, other=0.0).to(tl.float32) + shift
        z = tl.where(ids == tl.load(targets + row).to(tl.int32), float("-inf"), z)
        top = tl.maximum(tl.max(z), true)
        e = tl.exp(z - top)
        others = tl.sum(e)
        total = others + tl.exp(true - top)
        tl.store(losses + row, tl.log(total) + (top - true))
        if KEEP:
            tl.store(misses + row, -others / total)
            tl.store(buffer + row * samples + s, (e * (1.0 / total)).to(buffer.dtype.element_ty), mask=real)


@triton.jit
def _scale(d_vectors, vectors, target_weight, grad, misses, d_target, scaled, width, WIDTH_TILE: tl.constexpr):
    """What a row's gradient g does to its small vectors: g (dz W + miss W_target), g miss h, g h."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, WIDTH_TILE)
    here = k < width
    at = row * width + k
    g = tl.load(grad + row)
    miss = tl.load(misses + row)
    h = tl.load(vectors + at, mask=here, other=0.0).to(tl.float32)
    w = tl.load(target_weight + at, mask=here, other=0.0).to(tl.float32)
    d = tl.load(d_vectors + at, mask=here, other=0.0).to(tl.float32)
    tl.store(d_vectors + at, (g * (d + miss * w)).to(d_vectors.dtype.element_ty), mask=here)
    tl.store(d_target + at, (g * miss * h).to(d_target.dtype.element_ty), mask=here)
    tl.store(scaled + at, (g * h).to(scaled.dtype.element_ty), mask=here)


@triton.jit
def _column_sums(buffer, grad, sums, n, samples, splits, ROWS_TILE: tl.constexpr, SAMPLES_TILE: tl.constexpr):
    """The sum of every splits-th tile of rows, each times its gradient."""
    s = tl.program_id(0) * SAMPLES_TILE + tl.arange(0, SAMPLES_TILE)
    total = tl.zeros((ROWS_TILE, SAMPLES_TILE), tl.float32)
    for first in range(tl.program_id(1) * ROWS_TILE, n, splits * ROWS_TILE):
        row = first + tl.arange(0, ROWS_TILE)
        g = tl.load(grad + row, mask=row < n, other=0.0)
        at = row.to(tl.int64)[:, None] * samples + s[None, :]
        p = tl.load(buffer + at, mask=(row < n)[:, None] & (s < samples)[None, :], other=0.0).to(tl.float32)
        total += g[:, None] * p
    tl.store(sums + tl.program_id(1) * samples + s, tl.sum(total, axis=0), mask=s < samples)
