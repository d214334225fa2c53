"""Sums over rows, and the gradient of a bias that they make."""

import numpy as np
import pytest
import torch

from elmofire.kernels.sums import sum_of_rows
from elmofire.model.encoder import Affine

ROWS = [0, 1, 3, 16, 40, 4096]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_sum_is_that_of_float64(rows, dtype):
    values = torch.randn(rows, 7, generator=torch.Generator().manual_seed(rows)).to(dtype)
    for given in (values, values.T.contiguous().T, values[:, :1].expand(-1, 7)):
        found = sum_of_rows(given, torch.float32)
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), given.double().numpy().sum(axis=0), rtol=1e-5, atol=1e-4)


def affine() -> Affine:
    made = Affine(3, 5)
    for seed, parameter in enumerate(made.parameters()):
        parameter.data.normal_(generator=torch.Generator().manual_seed(seed))
    return made


@pytest.mark.parametrize("frozen", [None, "weight", "bias"])
def test_in_stages_an_affine_map_has_the_gradients_of_torchs_own_also_of_second_order(frozen):
    found = []
    for in_stages in (True, False):
        made = affine().double()
        made.in_stages = in_stages
        x = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7)).requires_grad_()
        if frozen:
            getattr(made, frozen).requires_grad_(requires_grad=False)
        leaves = [leaf for leaf in (x, made.weight, made.bias) if leaf.requires_grad]
        y = made(x)
        first = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)
        found.append((y, *first, *second))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("rows", [40, 41])
def test_under_autocast_a_bias_sums_up_in_its_own_precision(rows):
    """torch's own sum is rounded to bfloat16."""
    grad = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows)).bfloat16()
    true, errors = grad.double().sum(dim=0), []
    for in_stages in (True, False):
        made = affine()
        made.in_stages = in_stages
        with torch.autocast("cpu", torch.bfloat16):
            y = made(torch.ones(rows, 5))
        y.backward(grad)
        assert y.dtype == torch.bfloat16
        errors.append((made.bias.grad.double() - true).abs().max())
    assert errors[0] < 1e-6 < 1e-4 < errors[1]


def test_outside_of_training_an_affine_map_is_plain_torch():
    made, x = affine(), torch.randn(4, 5)
    assert torch.func.grad(lambda x: made(x).sum())(x).shape == x.shape
    assert made(x[0]).mul_(2).shape == (3,)
