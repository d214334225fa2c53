"""The memory of one call of `lstmp` on a GPU. Buffers are addressed by wave, so that all cells of a wave lie at one stride, and all steps
of a cell are one matrix for the weights' gradients."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from elmofire.kernels.lstmp_gpu.sizes import Sizes


class Rows(NamedTuple):
    """What is known of the rows. What a call does not use is an empty tensor."""

    lengths: Tensor  # (B,) int32
    resets: Tensor  # (D, T, B) uint8, false past a row's end
    seed: Tensor  # (1,) int64, of the dropout


@dataclass(frozen=True)
class Forward:
    """Without a backward pass to come, a wave's memories take the place of those before, and so its m; gates are not kept."""

    save: bool
    xh: Tensor  # (cells, waves + 1, B, X + P): x and the h before it
    c: Tensor  # (cells, waves + 1 or 1, B, C) float32
    m: Tensor  # (cells, waves or 1, B, C)
    gates: Tensor  # (cells, waves, B, 4C): before their functions
    inside: Tensor  # (cells, waves, B, P) uint8: where the projection's clip did not act
    outputs: Tensor  # (D, L, T, B, P) float32

    @classmethod
    def make(cls, s: Sizes, device: torch.device, *, save: bool) -> "Forward":
        make = torch.zeros if s.padded else torch.empty
        waves = s.waves
        return cls(
            save,
            make(s.cells, waves + 1, s.B_, s.K_, dtype=s.dtype, device=device),
            make(s.cells, waves + 1 if save else 1, s.B_, s.C_, dtype=torch.float32, device=device),
            torch.empty(s.cells, waves if save else 1, s.B_, s.C_, dtype=s.dtype, device=device),
            torch.empty((s.cells, waves, s.B_, 4 * s.C_) if save else 0, dtype=s.dtype, device=device),
            torch.empty(
                (s.cells, waves, s.B_, s.P_) if save and s.projection_clip is not None else 0,
                dtype=torch.uint8,
                device=device,
            ),
            torch.empty(s.D, s.L, s.T, s.B_, s.P_, dtype=torch.float32, device=device),
        )


@dataclass(frozen=True)
class Backward:
    """Gradients on their way."""

    d: Tensor  # (waves + 1, cells, B, X + P): of what the cells read
    outputs: Tensor  # (D, L, T, B, P) float32
    between: Tensor  # (2, cells, B, P) float32: of the middle layers' outputs, of this wave and the one after
    carry: Tensor  # (cells, B, P) float32: through the steps past a row's end
    dh: Tensor  # (cells, waves, B, P): before the clip
    dc: Tensor  # (cells, B, C) float32
    bias_sums: Tensor  # (T, cells, tiles, 4C) float32

    @classmethod
    def make(cls, s: Sizes, outputs: Tensor, *, tiles: int) -> "Backward":
        def make(*shape: int, dtype: torch.dtype = torch.float32, wanted: bool = True) -> Tensor:
            return torch.empty(shape if wanted else 0, dtype=dtype, device=outputs.device)

        padded = (s.B, s.P) != (s.B_, s.P_)
        if padded:
            outputs = torch.nn.functional.pad(outputs, (0, s.P_ - s.P, 0, s.B_ - s.B))
        carry = make(s.cells, s.B_, s.P_, wanted=s.ragged)
        return cls(
            make(s.waves + 1, s.cells, s.B_, s.K_, dtype=s.dtype),
            outputs.float().contiguous(),
            make(2, s.cells, s.B_, s.P_, wanted=s.skip and s.L > 2),
            carry.zero_(),
            make(s.cells, s.waves, s.B_, s.P_, dtype=s.dtype),
            make(s.cells, s.B_, s.C_),
            make(s.T, s.cells, tiles, 4 * s.C_),
        )
