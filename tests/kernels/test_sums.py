"""Sums over rows, and the gradient of a bias that they make."""

import numpy as np
import pytest
import torch

from elmofire.kernels.sums import sum_of_rows
from elmofire.model.encoder import Affine


@pytest.mark.parametrize("rows", [0, 1, 3, 16, 40, 4096])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_sum_is_that_of_float64(rows, dtype):
    values = torch.randn(rows, 7, generator=torch.Generator().manual_seed(rows)).to(dtype)
    found = sum_of_rows(values, torch.float32)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), values.double().numpy().sum(axis=0), rtol=1e-5, atol=1e-4)


def test_an_affine_map_has_the_gradients_of_torchs_own_also_of_second_order():
    torch.manual_seed(2)
    affine = Affine(3, 5).double()
    with torch.no_grad():
        for parameter in affine.parameters():
            parameter.normal_()
    x = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    leaves = (x, affine.weight, affine.bias)
    found = []
    for y in (affine(x), torch.nn.functional.linear(x, affine.weight, affine.bias)):
        first = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)
        found.append((y, *first, *second))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
