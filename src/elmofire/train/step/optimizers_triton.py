"""The step of `optimizers.Optimizer` on a GPU: one pass that reads weight, gradient and state and writes them, a kernel for each kind."""

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from elmofire.train.settings import OptimizerSettings
from elmofire.train.step.parameters import ALIGNMENT, FlatParameters

_TILE = 1024  # elements of one program


def step(
    settings: OptimizerSettings,
    parameters: FlatParameters,
    moments: Mapping[str, Tensor],
    averaged: Tensor | None,
    scalars: Tensor,
) -> None:
    """`scalars` are those of `Optimizer`, read on the device: the first says whether anything is done."""
    weights = parameters.weights
    n = len(weights)
    mean = weights if averaged is None else averaged  # not touched where there is none
    with torch.cuda.device_of(weights):
        grid = (triton.cdiv(n, _TILE),)
        if settings.name == "adamw":
            _adamw[grid](
                weights,
                parameters.gradients,
                *moments.values(),
                mean,
                parameters.decays.view(torch.uint8),
                scalars,
                n,
                1 - settings.betas[0],
                1 - settings.betas[1],
                settings.epsilon,
                settings.weight_decay,
                DECAY=settings.weight_decay != 0,
                AVERAGE=averaged is not None,
                ALIGNED=ALIGNMENT,
                TILE=_TILE,
            )
        elif settings.name == "adagrad":
            _adagrad[grid](
                weights,
                parameters.gradients,
                *moments.values(),
                mean,
                scalars,
                n,
                AVERAGE=averaged is not None,
                TILE=_TILE,
            )
        else:
            _sgd[grid](weights, parameters.gradients, mean, scalars, n, AVERAGE=averaged is not None, TILE=_TILE)


@triton.jit
def _adamw(
    weights,
    gradients,
    first,
    second,
    mean,
    decays,
    scalars,
    n,
    first_share,
    second_share,
    epsilon,
    weight_decay,
    DECAY: tl.constexpr,
    AVERAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):
    at, here, clip = _tile(scalars, n, TILE)
    w = tl.load(weights + at, mask=here, other=0.0)
    g = tl.load(gradients + at, mask=here, other=0.0) * clip
    m = tl.load(first + at, mask=here, other=0.0)
    v = tl.load(second + at, mask=here, other=0.0)
    m += first_share * (g - m)
    v += second_share * (g * g - v)
    if DECAY:
        decaying = tl.load(decays + at // ALIGNED, mask=here, other=0).to(tl.float32)
        w -= w * (decaying * (tl.load(scalars + 2) * weight_decay))
    root = tl.sqrt_rn(v) * tl.load(scalars + 4) + epsilon
    w -= tl.load(scalars + 3) * tl.div_rn(m, root)
    tl.store(weights + at, w, mask=here)
    tl.store(first + at, m, mask=here)
    tl.store(second + at, v, mask=here)
    if AVERAGE:
        _move(mean, w, scalars, at, here)


@triton.jit
def _adagrad(weights, gradients, accumulator, mean, scalars, n, AVERAGE: tl.constexpr, TILE: tl.constexpr):
    at, here, clip = _tile(scalars, n, TILE)
    w = tl.load(weights + at, mask=here, other=0.0)
    g = tl.load(gradients + at, mask=here, other=0.0) * clip
    a = tl.load(accumulator + at, mask=here, other=1.0)
    a += g * g
    w -= tl.load(scalars + 2) * tl.div_rn(g, tl.sqrt_rn(a))
    tl.store(weights + at, w, mask=here)
    tl.store(accumulator + at, a, mask=here)
    if AVERAGE:
        _move(mean, w, scalars, at, here)


@triton.jit
def _sgd(weights, gradients, mean, scalars, n, AVERAGE: tl.constexpr, TILE: tl.constexpr):
    at, here, clip = _tile(scalars, n, TILE)
    w = tl.load(weights + at, mask=here, other=0.0)
    g = tl.load(gradients + at, mask=here, other=0.0) * clip
    w -= tl.load(scalars + 2) * g
    tl.store(weights + at, w, mask=here)
    if AVERAGE:
        _move(mean, w, scalars, at, here)


@triton.jit
def _tile(scalars, n, TILE: tl.constexpr):
    """Places of a program's elements, those that there are (none in a step that is skipped), and what clips the gradient."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    return at, at < n * tl.load(scalars).to(tl.int64), tl.load(scalars + 1)


@triton.jit
def _move(mean, w, scalars, at, here):
    """The running mean, toward the new weights."""
    a = tl.load(mean + at, mask=here, other=0.0)
    tl.store(mean + at, a + tl.load(scalars + 5) * (w - a), mask=here)
