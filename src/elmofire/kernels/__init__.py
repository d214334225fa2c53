"""`lstmp`: LSTM layers with projection, for torch. One entry point; which path runs is decided here and nowhere else."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class LayerWeights(NamedTuple):
    """One layer of one direction, in torch.nn.LSTM's shapes and gate order (input, forget, candidate, output)."""

    weight_ih: Tensor  # (4C, E or P)
    weight_hh: Tensor  # (4C, P)
    bias: Tensor  # (4C,) with the forget gate's constant
    weight_hr: Tensor | None  # (P, C); None: the cells are the output, and projection_clip does not apply


class LstmState(NamedTuple):
    """What all layers of all directions carry."""

    hidden: Tensor  # (D, L, B, P)
    memory: Tensor  # (D, L, B, C)


def lstmp(
    inputs: Tensor,
    weights: Sequence[Sequence[LayerWeights]],
    state: LstmState,
    lengths: Tensor | None = None,
    *,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
    skip_connections: bool = True,
    dropout: float = 0.0,
    resets: Tensor | None = None,
) -> tuple[Tensor, LstmState]:
    """All layers of all directions over a batch: outputs (D, L, T, B, P) and the state after it.

    `inputs` (D, T, B, E) are in each direction's own reading order; `weights[d][l]` are its layers. Past its length (B,) a row gives
    zeros and keeps its state. Where `resets` (D, T, B) is true, the state is zero before that step. A layer after the first adds its
    input to its output (never to its state) with `skip_connections`. `dropout` falls on every layer's input, and the sum is with the
    dropped input. Gradients flow to inputs, weights and state; clips pass none outside their range.
    """
    from elmofire.kernels import lstmp_torch

    return lstmp_torch.run(
        inputs,
        weights,
        state,
        lengths,
        cell_clip=cell_clip,
        projection_clip=projection_clip,
        skip_connections=skip_connections,
        dropout=dropout,
        resets=resets,
    )
