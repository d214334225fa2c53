"""Settings that hold for the whole process: a run turns some of them, and puts all back when it ends."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from elmofire.kernels.paths import without_autocast

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextlib.contextmanager
def switches_put_back(device: torch.device) -> Iterator[None]:
    """Whatever happens inside, afterwards torch is as the caller of a run had it, down to the next random number."""
    exact = _exactness()
    deterministic: Any = torch.utils.deterministic
    filled = deterministic.fill_uninitialized_memory
    gpus = [device] if device.type == "cuda" else []
    shares = [torch.cuda.get_per_process_memory_fraction(gpu) for gpu in gpus]
    with (
        variables_put_back(_WORKSPACE),
        torch.random.fork_rng(gpus, device_type="cuda"),
        without_autocast(device),
    ):
        try:
            yield
        finally:
            if exact != _exactness():  # to ask is quick, to set imports torch's compiler
                torch.use_deterministic_algorithms(exact[0], warn_only=exact[1])
            deterministic.fill_uninitialized_memory = filled
            for gpu, share in zip(gpus, shares, strict=True):
                torch.cuda.set_per_process_memory_fraction(share, gpu)


def _exactness() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


@contextlib.contextmanager
def variables_put_back(*names: str) -> Iterator[None]:
    """Of the environment."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def current_gpu_put_back() -> Iterator[None]:
    """The one that torch takes where none is named: the first one, as long as nobody has asked for any."""
    before = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    try:
        yield
    finally:
        if torch.cuda.is_initialized():
            torch.cuda.set_device(before)


def repeat_exactly() -> None:
    """Have torch add up in one order always; must be called before the GPU's first product."""
    os.environ.setdefault(_WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
