"""`conv_pool`: characters -> the largest answer of every filter, anywhere in the word."""

from collections.abc import Sequence

import torch
from torch import Tensor

from elmofire.errors import InputError
from elmofire.kernels.paths import choose_path, operand_dtype, without_autocast


def conv_pool(
    ids: Tensor,
    characters: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    path: str = "auto",
    precision: str | None = None,
) -> Tensor:
    """Character ids (n, W) -> the maximum over the word of every filter plus its bias (n, filters), before any activation.

    `characters` (K, dim) are the vectors of the ids; a width's filters are a weight (count, dim, width) and a bias (count,).
    Activations that never fall (relu, tanh) commute with the maximum, so they are applied to its result. Gradients flow to
    characters, weights and biases, each in its own dtype. `path` and `precision` are as in `lstmp`, and the answer has the
    operands' precision; "gluon" and "triton" are one path here, which repeats bit for bit.

    >>> ids, characters = torch.tensor([[1, 2, 0, 0]]), torch.tensor([[0.0], [1.0], [3.0]])
    >>> conv_pool(ids, characters, [torch.tensor([[[1.0, -1.0]]])], [torch.tensor([0.5])])
    tensor([[3.5000]])
    """
    _check(ids, characters, weights, biases)
    dtype = operand_dtype(precision, characters)
    run = _in_torch
    if choose_path(path, ids.device, dtype, rows=0) != "torch":
        from elmofire.kernels import convolution_triton

        run = convolution_triton.conv_pool
    with without_autocast(ids.device):
        return run(ids, characters, weights, biases, dtype)


def tails(ids: Tensor) -> Tensor:
    """Where each word's last id begins to repeat to the end (n,): windows that start later are copies of the one that starts there.

    >>> tails(torch.tensor([[5, 6, 0, 0, 0], [0, 0, 0, 0, 7], [1, 1, 1, 1, 1]]))
    tensor([2, 4, 0])
    """
    after = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return torch.where(ids != ids[:, -1:], after, 0).amax(dim=1)


def _in_torch(
    ids: Tensor, characters: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], dtype: torch.dtype
) -> Tensor:
    if ids.device.type == "cpu" and len(ids):  # elsewhere the longest word would have to be waited for
        ids = ids[:, : int(tails(ids).max()) + max(weight.shape[2] for weight in weights)]
    x = characters.to(dtype)[ids]  # (n, W, dim)
    pooled: list[Tensor] = []
    for weight, bias in zip(weights, biases, strict=True):
        # As matrix products: the same float32 everywhere, where a library's convolution may round to fewer bits.
        windows = x.unfold(1, weight.shape[2], 1).flatten(2)  # (n, W - width + 1, dim * width)
        answers = torch.nn.functional.linear(windows, weight.flatten(1).to(dtype), bias.to(dtype))
        pooled.append(answers.amax(dim=1))
    return torch.cat(pooled, dim=1)


def _check(ids: Tensor, characters: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
    problems: list[str] = []
    if ids.dim() != 2 or characters.dim() != 2:
        problems.append(f"ids {tuple(ids.shape)} and characters {tuple(characters.shape)}: both have two dimensions")
    if not weights or len(weights) != len(biases):
        problems.append(f"{len(weights)} weights and {len(biases)} biases: at least one, and as many of each")
    for weight, bias in zip(weights, biases, strict=False):
        if weight.dim() != 3 or weight.shape[1] != characters.shape[-1] or bias.shape != weight.shape[:1]:
            problems.append(
                f"weight {tuple(weight.shape)} with bias {tuple(bias.shape)}: "
                f"(count, {characters.shape[-1]}, width) and (count,)"
            )
        elif weight.shape[2] > ids.shape[-1]:
            problems.append(
                f"a filter of width {weight.shape[2]} does not fit into words of {ids.shape[-1]} characters"
            )
    if problems:
        raise InputError("; ".join(problems))
