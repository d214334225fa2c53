"""`lstmp` on a GPU: Triton kernels for what is peculiar to it, the vendor's library for plain products. Gradients are written out by
hand (docs/explanation/kernels.md derives them); nothing waits for the GPU, so that a call can be captured in a CUDA graph."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmofire.kernels import LayerWeights, LstmState
from elmofire.kernels.lstmp_gpu import waves
from elmofire.kernels.lstmp_gpu.buffers import Rows
from elmofire.kernels.lstmp_gpu.packing import Layer, Packed, pack
from elmofire.kernels.lstmp_gpu.sizes import Sizes
from elmofire.kernels.paths import in_given_types


@dataclass(frozen=True)
class PackedWeights:
    """Weights packed once, for many calls that do not change them."""

    packed: Packed
    D: int  # directions
    L: int  # layers
    E: int  # width of the inputs
    P: int  # width of a layer
    C: int  # cells
    projected: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, weights: Sequence[Sequence[LayerWeights]], dtype: torch.dtype) -> "PackedWeights":
        first = weights[0][0]
        sizes = Sizes(
            D=len(weights), L=len(weights[0]), T=1, B=1, E=first.weight_ih.shape[1], P=first.weight_hh.shape[1],
            C=first.weight_hh.shape[0] // 4, row_tile=16, dtype=dtype,
        )  # fmt: skip
        return cls(
            pack(sizes, _by_cell(weights)), sizes.D, sizes.L, sizes.E, sizes.P, sizes.C,
            projected=first.weight_hr is not None, dtype=dtype,
        )  # fmt: skip


def run(
    inputs: Tensor,
    weights: Sequence[Sequence[LayerWeights]] | PackedWeights,
    state: LstmState,
    lengths: Tensor | None,
    *,
    cell_clip: float | None,
    projection_clip: float | None,
    skip_connections: bool,
    dropout: float,
    resets: Tensor | None,
    dtype: torch.dtype,
    hopper: bool,
) -> tuple[Tensor, LstmState]:
    D, T, B, E = inputs.shape
    ready = isinstance(weights, PackedWeights)
    L, projected = (weights.L, weights.projected) if ready else (len(weights[0]), weights[0][0].weight_hr is not None)
    sizes = Sizes(
        D=D, L=L, T=T, B=B, E=E, P=state.hidden.shape[-1], C=state.memory.shape[-1],
        row_tile=128 if hopper else row_tile(B), cell_clip=cell_clip,
        projection_clip=projection_clip if projected else None, skip=skip_connections and L > 1, dropout=dropout,
        ragged=lengths is not None, resets=resets is not None, dtype=dtype,
    )  # fmt: skip
    rows = _rows(sizes, lengths, resets, inputs.device)
    kernels = _kernels(sizes, hopper=hopper)
    flat = [] if ready else [tensor for layer in _by_cell(weights) for tensor in layer]
    given = [inputs, state.hidden, state.memory, *flat]
    packed = weights.packed if ready else None
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)):
        packed = packed or pack(sizes, _by_cell(weights))  # pyright: ignore[reportArgumentType]
        outputs, hidden, memory, _ = waves.forward(
            sizes, kernels, inputs, packed, state.hidden, state.memory, rows, save=False
        )
    else:
        outputs, hidden, memory = _Lstmp.apply(sizes, kernels, rows, packed, *given)  # type: ignore[misc]
    return outputs, LstmState(hidden, memory)


def row_tile(rows: int) -> int:
    """Rows of a tile: as few as tensor cores take for a sentence, and 128 for a batch."""
    return next((tile for tile in (16, 32, 64) if rows <= tile), 128)


def _by_cell(weights: Sequence[Sequence[LayerWeights]]) -> list[LayerWeights]:
    return [stack[k] for k in range(len(weights[0])) for stack in weights]


def _kernels(sizes: Sizes, *, hopper: bool) -> waves.Kernels:
    if not hopper:
        return waves.TRITON
    from elmofire.kernels.lstmp_gpu import hopper as hopper_kernels

    return hopper_kernels.kernels(sizes)


def _rows(s: Sizes, lengths: Tensor | None, resets: Tensor | None, device: torch.device) -> Rows:
    """Padded rows have the length 0."""
    empty = torch.empty(0, dtype=torch.int32, device=device)
    if lengths is not None:
        lengths = F.pad(lengths.to(device=device, dtype=torch.int32), (0, s.B_ - s.B))
    if resets is not None:
        resets = F.pad(resets.to(device=device, dtype=torch.uint8), (0, s.B_ - s.B))
        if lengths is not None:  # past its end a row keeps its state
            resets = resets * (torch.arange(s.T, device=device)[:, None] < lengths)
        resets = resets.to(torch.uint8).contiguous()
    seed = torch.randint(2**31, (1,), device=device) if s.dropout and s.L > 1 else empty
    return Rows(empty if lengths is None else lengths, empty if resets is None else resets, seed)


class _Lstmp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, sizes: Sizes, kernels: waves.Kernels, rows: Rows, packed: Packed | None, inputs, hidden, memory, *flat
    ):
        layers: list[Layer] = [flat[k : k + 4] for k in range(0, len(flat), 4)]
        if packed is None:
            packed = pack(sizes, layers)
        outputs, hidden_after, memory_after, buffers = waves.forward(
            sizes, kernels, inputs, packed, hidden, memory, rows, save=True
        )
        ctx.call = (sizes, kernels, rows, packed, buffers)
        ctx.given = (inputs, hidden, memory)
        ctx.layers = layers
        return outputs, hidden_after, memory_after

    @staticmethod
    @once_differentiable
    @in_given_types
    def backward(ctx, d_outputs, d_hidden, d_memory):  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.call is None:
            raise RuntimeError(
                "gates were overwritten by their gradients: there is one backward pass to a forward pass"
            )
        sizes, kernels, rows, packed, buffers = ctx.call
        ctx.call = None
        *d_given, d_layers = waves.backward(
            sizes, kernels, buffers, packed, rows, d_outputs, d_hidden, d_memory, ctx.layers
        )
        d_flat = []
        for (*of_gates, of_projection), layer in zip(d_layers, ctx.layers, strict=False):
            d_flat += [*of_gates, None if layer[3] is None else of_projection.to(layer[3].dtype)]
        d_given = [d.to(tensor.dtype) for d, tensor in zip(d_given, ctx.given, strict=True)]
        return None, None, None, None, *d_given, *d_flat
