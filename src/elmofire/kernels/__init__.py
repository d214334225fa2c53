"""`lstmp`: LSTM layers with projection, for torch. One entry point; which path runs is decided here and nowhere else."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from elmofire.errors import InputError
from elmofire.kernels.paths import choose_path, operand_dtype, without_autocast

if TYPE_CHECKING:
    from elmofire.kernels.lstmp_gpu import PackedWeights


_NUMBERS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_KINDS = {"lengths": (torch.int64, torch.int32), "resets": (torch.bool,)}


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


def pack_weights(
    weights: Sequence[Sequence[LayerWeights]], precision: str
) -> "Sequence[Sequence[LayerWeights]] | PackedWeights":
    """Weights laid out once for many calls that do not change them; as they are where the plain path serves."""
    tensor = weights[0][0].weight_ih
    dtype = operand_dtype(precision, tensor)
    if choose_path("auto", tensor.device, dtype, rows=1) == "torch":
        return weights
    from elmofire.kernels.lstmp_gpu import PackedWeights

    return PackedWeights.of(weights, dtype)


def lstmp(
    inputs: Tensor,
    weights: "Sequence[Sequence[LayerWeights]] | PackedWeights",
    state: LstmState,
    lengths: Tensor | None = None,
    *,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
    skip_connections: bool = True,
    dropout: float = 0.0,
    resets: Tensor | None = None,
    path: str = "auto",
    precision: str | None = None,
) -> tuple[Tensor, LstmState]:
    """All layers of all directions over a batch: outputs (D, L, T, B, P) and the state after it.

    `inputs` (D, T, B, E) are in each direction's own reading order; `weights[d][l]` are its layers (or `pack_weights` of them). Past its
    length (B,) a row gives zeros and keeps its state. Where `resets` (D, T, B) is true, the state is zero before that step. A layer
    after the first adds its input to its output (never to its state) with `skip_connections`. `dropout` falls on what goes from layer
    to layer, and the sum is with the dropped input. Gradients flow to inputs, weights and state; clips pass none outside their range.

    `path` is "torch" (any device), "triton" (GPUs), "gluon" (Hopper GPUs, bfloat16) or "auto", the fastest that fits; one that is
    asked for by name and cannot be taken is an error. `precision` is that of the products' operands, "float32" or "bfloat16", and by
    default what autocast or the inputs say; sums, memories and outputs are float32 all the same.
    """
    _check(inputs, weights, state, lengths, resets)
    _check_numbers(cell_clip=cell_clip, projection_clip=projection_clip, dropout=dropout)
    packed = not isinstance(weights, Sequence)
    dtype = weights.dtype if packed and precision is None else operand_dtype(precision, inputs)
    options = {
        "cell_clip": cell_clip,
        "projection_clip": projection_clip,
        "skip_connections": skip_connections,
        "dropout": dropout,
        "resets": resets,
    }
    chosen = choose_path(path, inputs.device, dtype, inputs.shape[2])
    if packed and (chosen == "torch" or dtype != weights.dtype):
        raise InputError(f"these weights were packed in {_shown(weights.dtype)} for triton and gluon")
    if chosen != "torch":
        from elmofire.kernels import lstmp_gpu

        with without_autocast(inputs.device):
            return lstmp_gpu.run(inputs, weights, state, lengths, **options, dtype=dtype, hopper=chosen == "gluon")
    from elmofire.kernels import lstmp_torch

    assert isinstance(weights, Sequence)
    half = dtype in (torch.bfloat16, torch.float16)
    if not half:
        _check_one_type(inputs, weights)
    with torch.autocast(inputs.device.type, dtype) if half else without_autocast(inputs.device):
        return lstmp_torch.run(inputs, weights, state, lengths, **options)


def _check(
    inputs: Tensor,
    weights: "Sequence[Sequence[LayerWeights]] | PackedWeights",
    state: LstmState,
    lengths: Tensor | None,
    resets: Tensor | None,
) -> None:
    """All shapes that do not fit each other, at once: kernels would read past the end of what is too small."""
    if inputs.dim() != 4 or 0 in inputs.shape[:2]:
        raise InputError(f"inputs {tuple(inputs.shape)}: directions, steps (at least one of each), rows, width")
    D, T, B, E = inputs.shape
    C, P = state.memory.shape[-1], state.hidden.shape[-1]
    found: dict[str, Tensor | None] = {"hidden": state.hidden, "memory": state.memory}
    if isinstance(weights, Sequence):
        L = len(weights[0]) if weights else 0
        if len(weights) != D or not L or any(len(stack) != L for stack in weights):
            layers = ", ".join(str(len(stack)) for stack in weights)
            raise InputError(f"weights of {layers or 'no'} layers: as many in each of {D} directions, at least one")
        expected = {}
        for d, stack in enumerate(weights):
            for k, layer in enumerate(stack):
                shapes = [(4 * C, P if k else E), (4 * C, P), (4 * C,), (P, C)]
                for name, tensor, shape in zip(LayerWeights._fields, layer, shapes, strict=True):
                    found[f"{name} of layer {k} of direction {d}"] = tensor
                    expected[f"{name} of layer {k} of direction {d}"] = shape
        if len({layer.weight_hr is None for stack in weights for layer in stack}) > 1:
            raise InputError("some layers have a projection (weight_hr) and some have none: all have one, or none has")
        if weights[0][0].weight_hr is None and P != C:
            raise InputError(f"a state of {P} hidden numbers and {C} cells: without a projection they are as many")
    else:
        L, expected = weights.L, {}
        if (given := (weights.D, weights.E, weights.P, weights.C)) != (D, E, P, C):
            names = "directions, width of the inputs, width of a layer, cells"
            raise InputError(f"weights were packed for {given} ({names}), but inputs and state are {(D, E, P, C)}")
    expected |= {"hidden": (D, L, B, P), "memory": (D, L, B, C), "lengths": (B,), "resets": (D, T, B)}
    found |= {"lengths": lengths, "resets": resets}
    problems = [
        f"{name} {tuple(tensor.shape)}, not {expected[name]}"
        for name, tensor in found.items()
        if tensor is not None and tuple(tensor.shape) != expected[name]
    ]
    found |= {"inputs": inputs}
    problems += [
        f"{name} in {_shown(tensor.dtype)}, not {' or '.join(map(_shown, allowed))}"
        for name, tensor in found.items()
        for allowed in [_KINDS.get(name, _NUMBERS)]
        if tensor is not None and tensor.dtype not in allowed
    ]
    if problems:
        raise InputError(f"inputs {tuple(inputs.shape)} do not fit: {'; '.join(problems)}")


def _check_one_type(inputs: Tensor, weights: Sequence[Sequence[LayerWeights]]) -> None:
    of_weights = {tensor.dtype for stack in weights for layer in stack for tensor in layer if tensor is not None}
    if other := of_weights - {inputs.dtype}:
        raise InputError(
            f"inputs in {_shown(inputs.dtype)} with weights in {', '.join(map(_shown, other))}: torch multiplies one type",
            hint="convert one of them, or say precision='bfloat16'",
        )


def _check_numbers(*, dropout: float, **clips: float | None) -> None:
    for name, clip in clips.items():
        if clip is not None and not clip > 0:
            raise InputError(f"{name} is {clip}, but should be more than 0, or None for no clip")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout is {dropout}, but should be a share from 0 to below 1")


def _shown(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
