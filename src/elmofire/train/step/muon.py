"""Steps of equal size in every direction of a matrix: the LSTM's weights follow the orthogonal matrix nearest to their momentum.

Muon (K. Jordan, 2024) with the step size of J. Liu et al. 2025: as wide as AdamW's, so that one rate serves both. The four gates of a
weight are four matrices. All other parameters follow AdamW.
"""

from itertools import groupby

import torch
from torch import Tensor

from elmofire.train.step.parameters import FlatParameters

MOMENTUM = 0.95
_QUINTIC = (3.4445, -4.7750, 2.0315)  # pushes singular values toward 1, fastest from below
_ITERATIONS = 5
_WIDTH = 0.2  # root mean square of AdamW's steps, about
_GATES = 4


class Orthogonal:
    """The matrices that are changed this way, as views of the flat tensors."""

    def __init__(self, parameters: FlatParameters, momentum: Tensor) -> None:
        flat = (parameters.weights, parameters.gradients, momentum)
        views = [
            tuple(tensor for tensor in (_tall(name, view) for view in of_name))
            for name, *of_name in zip(
                parameters.named(momentum), *(parameters.named(t).values() for t in flat), strict=True
            )
            if name.rpartition(".")[2] in ("weight_ih", "weight_hh", "weight_hr")
        ]
        views.sort(key=lambda view: view[0].shape[1:])
        self._groups = [list(group) for _, group in groupby(views, key=lambda view: view[0].shape[1:])]

    def step(self, clip: Tensor | float, rate: Tensor | float, finite: Tensor) -> None:
        """Change them once; their gradients are zero afterwards, so that they are not changed twice."""
        for group in self._groups:
            weights, gradients, momenta = zip(*group, strict=True)
            gradient = torch.where(finite, torch.cat(gradients), 0.0) * clip
            momentum = torch.cat(momenta)
            momentum = torch.where(finite, momentum.lerp(gradient, 1 - MOMENTUM), momentum)
            moves = nearest_orthogonal(gradient.lerp(momentum, MOMENTUM))
            moves = moves * (rate * _WIDTH * max(moves.shape[1:]) ** 0.5)
            sizes = [len(weight) for weight in weights]
            for weight, move in zip(weights, moves.split(sizes), strict=True):
                weight -= move
            for kept, moved in zip(momenta, momentum.split(sizes), strict=True):
                kept.copy_(moved)
            for used in gradients:
                used.zero_()


def nearest_orthogonal(matrices: Tensor) -> Tensor:
    """U V' of every U S V', roughly: singular values end between 0.7 and 1.2. (N, tall, narrow)."""
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp_min(1e-20)
    x = x.bfloat16() if x.is_cuda else x
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = x.mT @ x
        x = a * x + x @ (b * gram + c * gram @ gram)
    return x.to(matrices.dtype)


def _tall(name: str, matrix: Tensor) -> Tensor:
    """(N, tall, narrow): gates apart, the projection on its side."""
    parts = matrix[None] if name.endswith("weight_hr") else matrix.unflatten(0, (_GATES, -1))
    return parts if parts.shape[1] >= parts.shape[2] else parts.mT
