"""What a run turns on in torch for the whole process is as it was when the run is over."""

import os
from dataclasses import replace

import pytest
import torch
from train.run import small_runs
from train.run.small_runs import RECIPES

from elmofire.train.run.switches import repeat_exactly, switches_put_back

_SHORT = replace(RECIPES["sentences"], train=replace(RECIPES["sentences"].train, updates=4))


def switches():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


TURNED = (True, False, False, ":4096:8")


@pytest.fixture(params=["as torch has it", "as its caller wants it"])
def before(request, monkeypatch):
    """The settings of two callers; put back by other means than those under test."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if request.param == "as its caller wants it":
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    yield switches()
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_leaves_torch_as_it_was(corpus, tmp_path, before, fails):
    seen = []

    def show(record):
        if record["kind"] == "train":
            repeat_exactly()  # as `deterministic=true` does on a GPU
            seen.append(switches())
            if fails:
                raise OSError("the watcher failed")

    if fails:
        with pytest.raises(OSError, match="the watcher failed"):
            small_runs.train(corpus, tmp_path / "run", _SHORT, show)
    else:
        small_runs.train(corpus, tmp_path / "run", _SHORT, show)
    assert seen[0] == (*TURNED[:3], before[3] or TURNED[3])
    assert switches() == before


def test_the_share_of_a_gpus_memory_is_given_back(monkeypatch):
    shares = {0: 0.9, 1: 0.5}
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: shares[device.index])
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.update({device.index: share})
    )
    with switches_put_back(torch.device("cuda", 1)):
        torch.cuda.set_per_process_memory_fraction(0.1, torch.device("cuda", 1))
        assert shares == {0: 0.9, 1: 0.1}
    assert shares == {0: 0.9, 1: 0.5}
