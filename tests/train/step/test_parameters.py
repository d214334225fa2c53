"""A model on flat parameters is the same model."""

import copy

import pytest
import torch
from torch import nn

from elmofire.errors import InputError, ModelError
from elmofire.formats.config import BilmConfig, EncoderConfig
from elmofire.model.bilm import BiLM
from elmofire.train.step.parameters import FlatParameters

SMALL = BilmConfig(
    encoder=EncoderConfig(character_dim=3, filters=((1, 5), (2, 4)), highways=1, projection=6),
    cells=7,
    projection=6,
    head=11,
)


def bilm(dtype=torch.float32):
    torch.manual_seed(3)
    model = BiLM(SMALL).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    return model


def objective(model):
    ids = torch.arange(1, 101).view(2, 50)
    layers, _ = model(ids, torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.tensor([3, 2]))
    return model.head(layers[-1][..., : SMALL.projection]).log_softmax(dim=-1).square().sum() + layers[1].sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_the_model_as_it_was(dtype):
    plain = bilm(dtype)
    model = copy.deepcopy(plain)
    flat = FlatParameters(model, model.arrays())
    assert flat.weights.dtype == flat.gradients.dtype == dtype
    for _ in range(2):  # gradients add up
        for each in (plain, model):
            objective(each).backward()
    weights, gradients = flat.named(flat.weights), flat.named(flat.gradients)
    assert list(weights) == list(plain.arrays())
    for name, parameter in plain.arrays().items():
        assert torch.equal(weights[name], parameter), name
        assert torch.equal(gradients[name], parameter.grad), name
    assert flat.gradients.abs().sum() > 0
    flat.zero_gradients()
    assert all((parameter.grad == 0).all() for parameter in model.parameters())


def test_a_change_of_the_flat_tensor_changes_the_model():
    model = bilm()
    flat = FlatParameters(model, model.arrays())
    before = objective(model).item()
    flat.weights.mul_(2)
    assert objective(model).item() != before
    flat.weights.zero_()
    assert all((parameter == 0).all() for parameter in model.parameters())


def test_parameters_lie_in_the_files_order_at_multiples_of_64_and_zeros_between():
    model = bilm()
    flat = FlatParameters(model, model.arrays())
    end = 0
    filled = torch.zeros(len(flat.weights), dtype=torch.bool)
    for parameter in model.arrays().values():
        start = parameter.storage_offset()
        assert start == -(-end // 64) * 64
        assert parameter.data_ptr() == flat.weights.data_ptr() + 4 * start
        end = start + parameter.numel()
        filled[start:end] = True
    assert len(flat.weights) % 64 == 0
    assert len(flat.weights) - end < 64
    assert (flat.weights[~filled] == 0).all()


def test_decay_falls_on_everything_but_biases():
    model = bilm()
    flat = FlatParameters(model, model.arrays())
    decays = flat.named(flat.decays.repeat_interleave(64))
    assert {name for name, mask in decays.items() if mask.all()} == {n for n in decays if not n.endswith("bias")}
    assert {name for name, mask in decays.items() if not mask.any()} == {n for n in decays if n.endswith("bias")}


def test_a_flat_tensor_of_another_layout_is_refused():
    model = nn.Linear(3, 2)
    flat = FlatParameters(model, dict(model.named_parameters()))
    with pytest.raises(InputError, match=r"\(64,\).*\(128,\)"):
        flat.named(torch.zeros(64))


def test_every_parameter_has_one_name():
    model = nn.Linear(3, 2)
    with pytest.raises(ModelError, match="bias"):
        FlatParameters(model, {"weight": model.weight})
    with pytest.raises(ModelError, match="two"):
        FlatParameters(model, {"weight": model.weight, "bias": model.bias, "again": model.bias})


def test_parameters_of_two_types_are_refused():
    model = nn.Linear(3, 2)
    model.bias.data = model.bias.data.double()
    with pytest.raises(ModelError, match=r"float32.*float64"):
        FlatParameters(model, dict(model.named_parameters()))
