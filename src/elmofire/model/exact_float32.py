"""Products of float32 in full, whatever the program around has allowed: TF32 has errors of a thousandth, autocast of a hundredth."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

import torch

from elmofire.kernels.paths import without_autocast


class _NoTf32(contextlib.AbstractContextManager[None]):
    """torch has one switch for all threads: the first of those that are inside turns it, and the last puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._put_back: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._put_back = _forbid_tf32()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._put_back()


def _forbid_tf32() -> Callable[[], None]:
    """Forbid TF32 -> what restores the setting. torch has an old and a new one, and refuses the old once the new was used."""
    try:
        allowed = torch.get_float32_matmul_precision()
    except RuntimeError:
        matmul = torch.backends.cuda.matmul
        put_back = partial(setattr, matmul, "fp32_precision", matmul.fp32_precision)
        matmul.fp32_precision = "ieee"
        return put_back
    if allowed == "highest":
        return lambda: None
    torch.set_float32_matmul_precision("highest")
    return partial(torch.set_float32_matmul_precision, allowed)


_NO_TF32 = _NoTf32()


@contextlib.contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Inside, products of float32 are exact to rounding."""
    with without_autocast(device), _NO_TF32:
        yield
