"""Which way a call goes: plain torch, Triton, or Gluon. What is asked for by name is done that way or not at all."""

import contextlib
import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from elmofire.errors import InputError

PATHS = ("torch", "triton", "gluon")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SENTENCES = 64  # up to so many rows, tiles of 128 would be mostly padding


def operand_dtype(precision: str | None, inputs: torch.Tensor) -> torch.dtype:
    """What products are made of: as asked, else as autocast or the inputs say."""
    if precision is not None:
        if precision not in PRECISIONS:
            raise InputError(f"precision is {precision!r}, but should be one of {', '.join(PRECISIONS)}")
        return PRECISIONS[precision]
    kind = inputs.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs.dtype


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Inside, products are made in the types that they were given, whatever the program around has turned on."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def in_given_types(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The backward pass of an autograd function, `without_autocast`: `backward()` may be called inside one."""

    @functools.wraps(backward)
    def without(ctx: Any, *grads: torch.Tensor) -> Any:
        with without_autocast(grads[0].device):
            return backward(ctx, *grads)

    return without


def choose_path(path: str, device: torch.device, dtype: torch.dtype, rows: int) -> str:
    """`auto` is the fastest that fits: gluon for batches in bfloat16 on Hopper, triton on other GPUs and precisions, torch elsewhere."""
    if path == "auto":
        if device.type != "cuda" or why_not("triton", device, dtype):
            return "torch"
        return "gluon" if rows > _SENTENCES and not why_not("gluon", device, dtype) else "triton"
    if path not in PATHS:
        raise InputError(f"path is {path!r}, but should be auto or one of {', '.join(PATHS)}")
    reason = why_not(path, device, dtype)
    if reason:
        raise InputError(f"the path {path} cannot be taken: {reason}", hint="path='auto' chooses one that can be used")
    return path


def why_not(path: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """What stands in the way of a path, or None."""
    if path == "torch":
        return None
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not (device.type == "cuda" or _interpreted()):
        return f"the tensors are on {device.type}, not on a GPU"
    if dtype not in PRECISIONS.values():
        return f"its products are in float32 or bfloat16, not in {str(dtype).removeprefix('torch.')}"
    if path == "gluon":
        if dtype != torch.bfloat16:
            return "its products are in bfloat16"
        if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9 or torch.version.hip:
            return "it is written for Hopper GPUs (compute capability 9.0)"
        if importlib.util.find_spec("triton.experimental") is None or not importlib.util.find_spec(
            "triton.experimental.gluon"
        ):
            return "this triton has no Gluon"
    return None


def _interpreted() -> bool:
    from triton import knobs  # pyright: ignore[reportMissingImports]

    return knobs.runtime.interpret
