"""The sizes of one call of `lstmp` on a GPU: what they are, what they are padded to, and the switches that kernels are compiled for."""

from dataclasses import dataclass
from functools import cache, cached_property

import torch


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """One call's sizes; those with an underscore behind them are padded to what the kernels work in."""

    D: int  # directions
    L: int  # layers
    T: int  # steps
    B: int  # rows
    E: int  # width of the input
    P: int  # width of a layer
    C: int  # cells
    row_tile: int
    dtype: torch.dtype  # of the products' operands: float32 or bfloat16
    cell_clip: float | None = None
    projection_clip: float | None = None
    skip: bool = False
    dropout: float = 0.0
    ragged: bool = False
    resets: bool = False

    @property
    def cells(self) -> int:
        return self.D * self.L

    @property
    def waves(self) -> int:
        """Layers lag by one step each, so that all cells of a wave are independent."""
        return self.T + self.L - 1

    @property
    def precision(self) -> str:
        """How Triton multiplies: three products of TF32 parts are as exact as float32's own, and several times faster.

        AMD's GPUs know no TF32, and their compiler takes no other word for it.
        """
        if torch.version.hip:
            return "ieee"
        return "tf32x3" if self.dtype == torch.float32 else "tf32"

    @cached_property
    def B_(self) -> int:
        return _up(self.B, self.row_tile)

    @cached_property
    def C_(self) -> int:
        return _up(self.C, 64)

    @cached_property
    def P_(self) -> int:
        return _up(self.P, 64)

    @cached_property
    def X_(self) -> int:
        """Width of a cell's input: the same for all, since all cells share a launch."""
        return _up(max(self.E, self.P), 64)

    @property
    def K_(self) -> int:
        return self.X_ + self.P_

    @property
    def padded(self) -> bool:
        return (self.B, self.C, self.P, self.X_) != (self.B_, self.C_, self.P_, self.E) or self.X_ != self.P_

    def active(self, wave: int) -> tuple[int, int]:
        """First active cell of a wave, and how many there are."""
        first, last = max(0, wave - self.T + 1), min(self.L - 1, wave)
        return first * self.D, (last - first + 1) * self.D


def stages(wanted: int, columns: int, depth: int, dtype: torch.dtype, device: torch.device, *, rows: int) -> int:
    """How many tiles of both operands can be on their way: a processor has 227 KB for them on data centers' GPUs, or 99, or 64."""
    if device.type != "cuda":  # Triton's interpreter
        return wanted
    return max(1, min(wanted, _shared_memory(device) // ((rows + columns) * depth * dtype.itemsize)))


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have."""
    from triton.runtime import driver

    number = torch.cuda.current_device() if device.index is None else device.index
    return driver.active.utils.get_device_properties(number)["max_shared_mem"]  # pyright: ignore[reportAttributeAccessIssue]


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
