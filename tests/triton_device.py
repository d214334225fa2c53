"""Where tests run Triton's kernels: on a GPU, or without one in Triton's interpreter. Folders of such tests import this in their conftest.py,
since the interpreter must be chosen before kernels are defined."""

import os
from importlib.util import find_spec

import pytest
import torch

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def triton_device() -> str:
    """The device for tensors that Triton's kernels are given; skips where there is none."""
    pytest.importorskip("triton", reason="triton is not installed")
    if CUDA:
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no GPU, and TRITON_INTERPRET is not 1")
    return "cpu"


@pytest.fixture(autouse=True)
def scalars_are_indexes(monkeypatch):
    """The interpreter keeps a scalar as an array of one number, which numpy from 2.4 on does not take for an index."""
    if CUDA or find_spec("triton") is None:
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
