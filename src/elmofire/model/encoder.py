"""Characters -> one vector per word, in torch; or a table of whole words."""

from typing import Any

import torch
from torch import Tensor, nn

from elmofire.formats.config import HIGHWAYS, EncoderConfig
from elmofire.kernels.convolution import conv_pool
from elmofire.kernels.sums import sum_of_rows


class Affine(nn.Module):
    """Weight and bias, left empty: values come from `Weights`."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[0]))
        self.in_stages = False
        """Whether the bias sums up its gradient by `sum_of_rows`, for training on a GPU: transforms of torch.func do not know how."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.in_stages:
            return torch.nn.functional.linear(x, self.weight.flatten(1), self.bias)
        answers = torch.nn.functional.linear(x, self.weight.flatten(1), self.bias.detach())
        return _GradientOfBias.apply(answers, self.bias)  # pyright: ignore[reportReturnType]


class _GradientOfBias(torch.autograd.Function):
    """What was added to all rows of `answers` (n, m) has the sum of their gradients, in the bias's own type."""

    @staticmethod
    def forward(ctx: Any, answers: Tensor, bias: Tensor) -> Tensor:
        ctx.dtype = bias.dtype
        return answers.view_as(answers)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad, sum_of_rows(grad, ctx.dtype)


class Highway(nn.Module):
    """One of `formats.config.HIGHWAYS`: relu whatever the activation of the filters."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.transform = Affine(width, width)
        self.gate = Affine(width, width) if "gate" in HIGHWAYS[kind] else None
        self.carry = Affine(width, width) if "carry" in HIGHWAYS[kind] else None

    def forward(self, x: Tensor) -> Tensor:
        transformed = self.transform(x).relu()
        if self.gate is None:
            return transformed
        gate = self.gate(x).sigmoid()
        if self.carry is not None:
            return gate * transformed + self.carry(x).sigmoid() * x
        return x + gate * (transformed - x)


class Encoder(nn.Module):
    """Token ids -> vectors without context."""

    characters: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        if config.words:
            self.words = nn.Parameter(torch.empty(config.words, config.word_dim))
        if config.filters:
            if config.one_hot:
                self.register_buffer("characters", torch.eye(config.characters), persistent=False)
            else:
                self.characters = nn.Parameter(torch.empty(config.characters, config.character_dim))
            self.convolutions = nn.ModuleList(
                Affine(count, config.character_dim, width) for width, count in config.filters
            )
            self.highways = nn.ModuleList(Highway(config.filter_count, config.highway) for _ in range(config.highways))
        if config.projection:
            self.projection = Affine(config.width, config.features)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids as `token_ids` makes them (n, columns) -> (n, E)."""
        features: list[Tensor] = []
        if self.config.words:
            features.append(torch.where(ids[:, :1] > 0, self.words[(ids[:, 0] - 1).clamp_min(0)], 0.0))
            ids = ids[:, 1:]
        if self.config.filters:
            features.append(self._spelled(ids))
        z = torch.cat(features, dim=1)
        return self.projection(z) if self.config.projection else z

    def _spelled(self, ids: Tensor) -> Tensor:
        """Character ids (n, W) -> what the filters and highways make of them (n, filters)."""
        table = torch.cat([self.characters.new_zeros(1, self.config.character_dim), self.characters])  # id 0: no token
        filters = [(bank.weight, bank.bias) for bank in self.convolutions]
        weights, biases = zip(*filters, strict=True)
        z = conv_pool(ids, table, weights, biases)  # pyright: ignore[reportArgumentType]
        z = z.relu() if self.config.activation == "relu" else z.tanh()
        for highway in self.highways:
            z = highway(z)
        return z
