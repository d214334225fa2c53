"""Settings of torch that hold for the whole process: a run turns some of them, and puts all back when it ends."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextlib.contextmanager
def switches_put_back(device: torch.device) -> Iterator[None]:
    """Whatever happens inside, afterwards torch is as the caller of a run had it."""
    exact, only_warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()  # fmt: skip
    deterministic: Any = torch.utils.deterministic
    filled = deterministic.fill_uninitialized_memory
    workspace = os.environ.get(_WORKSPACE)
    share = torch.cuda.get_per_process_memory_fraction(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(exact, warn_only=only_warned)
        deterministic.fill_uninitialized_memory = filled
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
        else:
            os.environ[_WORKSPACE] = workspace
        if share is not None:
            torch.cuda.set_per_process_memory_fraction(share, device)


def repeat_exactly() -> None:
    """Have torch add up in one order always; must be called before the GPU's first product."""
    os.environ.setdefault(_WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
