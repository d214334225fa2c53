"""How parameters follow gradients: one step over flat tensors, which never asks the device for an answer."""

from collections.abc import Mapping

import torch
from torch import Tensor

from elmofire.errors import DataError
from elmofire.kernels.paths import choose_path
from elmofire.train.settings import OptimizerSettings
from elmofire.train.step.parameters import ALIGNMENT, FlatParameters

_ON_CPU = 2**17  # elements at once: what is computed on the way stays in the cache, half the time of 2**20
_ON_GPU = 2**24  # where there is no Triton: few launches, and little memory
_MOMENTS = {"adamw": ("first_moment", "second_moment"), "adagrad": ("accumulator",), "sgd": ()}


class Optimizer:
    """AdamW, Adagrad or gradient descent as the settings say, with clipping and a running mean of the weights.

    The mean is a_t = a_(t-1) + (w_t - a_(t-1)) (1 - d) / (1 - d^t): the exponential mean with its bias corrected, kept in the corrected
    form, so that it is the first weights after the first step, and no later reader has to correct it.
    A step whose gradients are not finite changes nothing but `skipped`, the number of such steps in a row.
    Tensors stay where they are, so a captured step goes on working after `load`.

    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> parameters = FlatParameters(model, dict(model.named_parameters()))
    >>> parameters.weights[0], parameters.gradients[0] = 1.0, 3.0
    >>> Optimizer(OptimizerSettings(name="adagrad", clip=None), parameters).step(torch.tensor(0.2))
    tensor(3.)
    >>> model.weight.item()  # 1 - 0.2 * 3 / sqrt(1 + 3 * 3)
    0.8102...
    """

    def __init__(self, settings: OptimizerSettings, parameters: FlatParameters, *, path: str = "auto") -> None:
        self.settings, self._parameters = settings, parameters
        weights = parameters.weights
        self._path = choose_path(path, weights.device, weights.dtype, rows=0)
        first = settings.initial_accumulator if settings.name == "adagrad" else 0.0
        self._moments = {name: torch.full_like(weights, first) for name in _MOMENTS[settings.name]}
        self.averaged = weights.clone() if settings.average is not None else None
        self.count = torch.zeros((), dtype=torch.int64, device=weights.device)  # steps that were not skipped
        self.skipped = torch.zeros((), dtype=torch.int64, device=weights.device)
        self.norm = torch.zeros((), dtype=weights.dtype, device=weights.device)  # of the last gradient, before clipping

    @torch.no_grad()
    def step(self, rate: Tensor) -> Tensor:
        """Change the weights once; the norm of the gradient over all parameters, before clipping."""
        norm = _norm(self._parameters.gradients)
        finite = norm.isfinite()
        self.norm.copy_(norm)
        self.count += finite
        self.skipped.add_(1).mul_(~finite)
        scalars = self._scalars(norm, finite, rate.double())
        if self._path == "torch":
            self._in_torch(scalars, finite)
        else:
            from elmofire.train.step import optimizers_triton

            optimizers_triton.step(self.settings, self._parameters, self._moments, self.averaged, scalars.float())
        return self.norm

    def _scalars(self, norm: Tensor, finite: Tensor, rate: Tensor) -> Tensor:
        """All that an element's change depends on beside the settings; zeros change nothing."""
        settings = self.settings
        one = torch.ones_like(norm)
        t = self.count.clamp_min(1).double()
        first, second = settings.betas
        scalars = [
            one,  # whether to do anything
            one if settings.clip is None else settings.clip / norm.clamp_min(settings.clip),  # on the gradient
            rate,
            rate / (1 - first**t),
            (1 - second**t).rsqrt(),
            one if settings.average is None else (1 - settings.average) / (1 - settings.average**t),
        ]
        return torch.where(finite, torch.stack(scalars), 0.0)

    def _in_torch(self, scalars: Tensor, finite: Tensor) -> None:
        settings = self.settings
        weights = self._parameters.weights
        # On a CPU, numbers are there already, and faster than tensors that hold one.
        known = scalars.to(weights.dtype).unbind() if weights.is_cuda else scalars.tolist()
        go, clip, rate, first_rate, second_root, toward = known
        at_once = _ON_GPU if weights.is_cuda else _ON_CPU
        for start in range(0, len(weights), at_once):
            here = slice(start, start + at_once)
            w = weights[here]
            g = torch.where(finite, self._parameters.gradients[here], 0.0).mul_(clip)
            moments = [moment[here] for moment in self._moments.values()]
            if settings.name == "adamw":
                m, v = moments
                m.lerp_(g, (1 - settings.betas[0]) * go)
                v.lerp_(g.square(), (1 - settings.betas[1]) * go)
                if settings.weight_decay:
                    decays = self._parameters.decays[start // ALIGNMENT : (start + at_once) // ALIGNMENT]
                    w.view(-1, ALIGNMENT).mul_(1 - decays.to(w.dtype)[:, None] * (rate * settings.weight_decay))
                w -= (m / v.sqrt().mul_(second_root).add_(settings.epsilon)).mul_(first_rate)
            elif settings.name == "adagrad":
                (a,) = moments
                a += g.square()
                w -= g.div_(a.sqrt()).mul_(rate)
            else:
                w -= g.mul_(rate)
            if self.averaged is not None:
                self.averaged[here].lerp_(w, toward)

    def state(self) -> dict[str, Tensor]:
        """The tensors themselves, by name: flat ones in the parameters' layout, and counters. The weights are not among them."""
        averaged = {} if self.averaged is None else {"average": self.averaged}
        return {**self._moments, **averaged, "count": self.count, "skipped": self.skipped}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy what `state` gave."""
        own = self.state()
        if state.keys() != own.keys() or any(state[name].shape != tensor.shape for name, tensor in own.items()):
            found, expected = (
                ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in sorted(tensors.items()))
                for tensors in (state, own)
            )
            raise DataError(
                f"the optimizer's state is {found}, but {self.settings.name} here has {expected}",
                hint="go on with the recipe that the state was made with, or start a new run",
            )
        for name, tensor in own.items():
            tensor.copy_(state[name])


def _norm(gradients: Tensor) -> Tensor:
    """Of all elements, in float64; by rows first, as one long sum in float32 is some percent off on a CPU."""
    rows = (
        128 * ALIGNMENT if gradients.is_cuda else ALIGNMENT
    )  # a GPU reads long rows faster, and adds them up as a tree
    whole = len(gradients) // rows * rows
    parts = [torch.linalg.vector_norm(gradients[:whole].view(-1, rows), dim=1), gradients[whole:]]
    return torch.linalg.vector_norm(torch.cat(parts), dtype=torch.float64)
