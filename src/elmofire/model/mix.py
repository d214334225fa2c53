"""One vector per word out of a biLM's layers: equation 1 of the paper."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """`gamma * sum_j softmax(weights)_j * layer_j`, learned by the task that uses it.

    Zero weights are the plain average, where every mix starts. Weights or a gamma that are given stay as they are and get no
    gradient: `weights=[-1e9, 0, -1e9]` is the first LSTM layer alone.

    >>> mix = ScalarMix(3)
    >>> mix([torch.ones(2, 4), torch.ones(2, 4), 4 * torch.ones(2, 4)])[0]
    tensor([2., 2., 2., 2.], grad_fn=<SelectBackward0>)
    """

    def __init__(self, layers: int, *, weights: Sequence[float] | None = None, gamma: float | None = None) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers is {layers}, but should be at least 1")
        if weights is not None and len(weights) != layers:
            raise ValueError(f"{len(weights)} weights for {layers} layers: give one per layer, layer 0 first")
        start = torch.zeros(layers) if weights is None else torch.tensor(list(weights), dtype=torch.float32)
        self.weights = nn.Parameter(start, requires_grad=weights is None)
        self.gamma = nn.Parameter(torch.tensor(1.0 if gamma is None else gamma), requires_grad=gamma is None)

    @property
    def shares(self) -> Tensor:
        """The normalized weights: what share of the mix each layer has."""
        return self.weights.softmax(dim=0)

    def penalty(self) -> Tensor:
        """`||weights||^2`: times a lambda added to a loss, it draws the mix towards the average."""
        return self.weights.square().sum()

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L+1 tensors (.., D) -> (.., D)"""
        if len(layers) != len(self.weights):
            raise ValueError(f"the mix has {len(self.weights)} weights, but {len(layers)} layers came in")
        shares = self.shares.unbind()
        mixed = shares[0] * layers[0]
        for share, layer in zip(shares[1:], layers[1:], strict=True):
            mixed = mixed + share * layer
        return self.gamma * mixed


def normalize_over_batch(layer: Tensor, mask: Tensor, eps: float) -> Tensor:
    """2018's layer norm: one mean and one variance for the whole batch tensor (B, T, D), counted where the mask (B, T) is true."""
    counted = mask[:, :, None].to(layer.dtype)
    numbers = counted.sum() * layer.shape[2]
    mean = (layer * counted).sum() / numbers
    variance = (((layer * counted) - mean) * counted).square().sum() / numbers
    return (layer - mean) / (variance + eps).sqrt()
