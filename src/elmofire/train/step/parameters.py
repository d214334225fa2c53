"""All parameters of a model in one flat tensor, and all gradients in another, so that an optimizer is one pass over memory."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from elmofire.errors import InputError, ModelError

ALIGNMENT = 64  # elements; every parameter starts at a multiple


class FlatParameters:
    """Moves a model's parameters into one tensor, in the order of `names`; the model works as before, on views of it.

    Gradients are views, too, and must stay: use `zero_gradients`, not the model's `zero_grad`, and do not move the model afterwards.
    What lies between parameters is zero and stays zero.

    >>> model = nn.Linear(3, 2)
    >>> flat = FlatParameters(model, dict(model.named_parameters()))
    >>> model(torch.ones(1, 3)).sum().backward()
    >>> flat.gradients[:6]
    tensor([1., 1., 1., 1., 1., 1.])
    """

    def __init__(self, model: nn.Module, names: Mapping[str, nn.Parameter]) -> None:
        _check(model, names)
        starts: list[int] = []
        end = 0
        for parameter in names.values():
            starts.append(end)
            end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        self._places = {
            name: (start, parameter.shape) for start, (name, parameter) in zip(starts, names.items(), strict=True)
        }
        like = next(iter(names.values())).detach()
        self.weights = like.new_zeros(end)
        self.gradients = like.new_zeros(end)
        # Whether weight decay falls on them, for every ALIGNMENT elements.
        self.decays = torch.zeros(end // ALIGNMENT, dtype=torch.bool, device=like.device)
        views, gradients = self.named(self.weights), self.named(self.gradients)
        for name, parameter in names.items():
            views[name].copy_(parameter.detach())
            parameter.data = views[name]
            parameter.grad = gradients[name]
            start = self._places[name][0] // ALIGNMENT
            if name.rpartition(".")[2] != "bias":
                self.decays[start : start + -(-parameter.numel() // ALIGNMENT)] = True

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The parts of any tensor of this layout, such as an optimizer's state, by the parameters' names and in their shapes."""
        size = sum(-(-shape.numel() // ALIGNMENT) * ALIGNMENT for _, shape in self._places.values())
        if flat.shape != (size,):
            raise InputError(f"a tensor of shape {tuple(flat.shape)} is not laid out as these parameters: ({size},)")
        return {name: flat[start : start + shape.numel()].view(shape) for name, (start, shape) in self._places.items()}

    def zero_gradients(self) -> None:
        self.gradients.zero_()


def _check(model: nn.Module, names: Mapping[str, nn.Parameter]) -> None:
    known = {id(parameter) for parameter in names.values()}
    left = [name for name, parameter in model.named_parameters() if id(parameter) not in known]
    if left or len(known) < len(names):
        raise ModelError(f"every parameter needs one name: {', '.join(left) or 'one has two'}")
    kinds = {(str(parameter.device), str(parameter.dtype)) for parameter in names.values()}
    if len(kinds) != 1:
        raise ModelError(f"parameters should be of one type on one device, but are {sorted(kinds)}")
