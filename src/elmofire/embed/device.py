"""Where a model runs. torch is slow to import, so the CUDA driver itself is asked first whether there is a GPU."""

import ctypes
import re
import sys
import textwrap
from typing import TYPE_CHECKING

from elmofire.engine import Engine
from elmofire.engine.compiled.packing import PRECISIONS
from elmofire.errors import InputError, require_count
from elmofire.formats.weights import Weights

if TYPE_CHECKING:
    import torch

    from elmofire.model.torch_engine import TorchEngine

CPU_PRECISIONS = tuple(PRECISIONS)
GPU_PRECISIONS = ("float32", "bfloat16")
# What torch knows by name, which most builds of it cannot use.
_DEVICE = re.compile(r"auto|(cpu|cuda|hip|hpu|ipu|lazy|maia|meta|mps|mtia|npu|privateuseone|ve|vulkan|xla|xpu)(:\d+)?")


def cuda_devices() -> int:
    """How many GPUs the CUDA driver sees; 0 without a driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        count = ctypes.c_int(0)
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return 0
    except (OSError, AttributeError):
        return 0
    return count.value


def check_device_name(device: str) -> None:
    """Without torch, which is slow to import: can it be a device at all?"""
    if not _DEVICE.fullmatch(device):
        raise InputError(f"device is {device!r}, but should be auto, cpu or a torch device such as cuda or cuda:1")


def make_engine(
    weights: Weights, *, device: "str | torch.device", precision: str, threads: int | None
) -> "Engine | TorchEngine":
    """The CPU engine, or the torch model on a GPU."""
    device = str(device)
    check_device_name(device)
    if threads is not None:
        require_count(threads, "threads")
    if precision not in {*CPU_PRECISIONS, *GPU_PRECISIONS}:
        known = ", ".join(dict.fromkeys([*CPU_PRECISIONS, *GPU_PRECISIONS]))
        raise InputError(f"precision is {precision!r}, but should be one of {known}")
    if device == "auto":  # which has what was asked for
        on_gpu = precision in GPU_PRECISIONS and cuda_devices() and torch_sees_a_gpu()
        device = "cuda" if on_gpu else "cpu"
    here = CPU_PRECISIONS if device == "cpu" else GPU_PRECISIONS
    if precision not in here:
        raise InputError(
            f"precision is {precision!r}, but the device {device} supports {', '.join(here)}",
            hint="int16 and int8 need a CPU, bfloat16 a GPU",
        )
    if device == "cpu":
        return Engine(weights, threads=threads, precision=precision)

    from elmofire.model.torch_engine import TorchEngine  # first, since it says which extra is missing

    try:
        import torch

        kind = torch.device(device)
        torch.empty(1, device=kind).cpu()  # torch has devices that hold no numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        raise InputError(
            f"the device {device!r} cannot be used: {textwrap.shorten(str(error).splitlines()[0], 90)}",
            hint="the device cpu always works",
        ) from None
    return TorchEngine(weights, device, precision=precision)


def torch_sees_a_gpu() -> bool:
    """What the driver sees may be too new or too old for this torch, or torch a build without CUDA, or not there."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
