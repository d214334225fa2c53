"""Where a model runs. torch is slow to import, so the CUDA driver itself is asked first whether there is a GPU."""

import ctypes
import sys

from elmofire.engine import Engine
from elmofire.errors import InputError
from elmofire.formats.weights import Weights


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


def make_engine(weights: Weights, *, device: str, precision: str, threads: int | None):
    """The CPU engine, or the torch model on a GPU."""
    if threads is not None and threads < 1:
        raise InputError(f"threads is {threads}, but should be at least 1")
    if precision != "float32":
        raise InputError(f"precision is {precision!r}, but only float32 is available on this device")
    if device == "auto":
        device = "cuda" if cuda_devices() and _torch_sees_a_gpu() else "cpu"
    if device == "cpu":
        return Engine(weights, threads=threads)

    from elmofire.model.torch_engine import TorchEngine, torch

    try:
        kind = torch.device(device)
        torch.empty(0, device=kind)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"the device {device!r} cannot be used: {str(error).splitlines()[0][:90]}",
            hint="the device cpu always works",
        ) from None
    return TorchEngine(weights, device)


def _torch_sees_a_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
