"""What a run turns on in torch for the whole process is as it was when the run is over."""

import contextlib
import os
from dataclasses import replace

import pytest
import torch
from train.run import small_runs
from train.run.small_runs import RECIPES

from elmofire.errors import InputError
from elmofire.train.run import ranks
from elmofire.train.run.ranks import joined
from elmofire.train.run.switches import repeat_exactly, switches_put_back

_SHORT = replace(RECIPES["sentences"], train=replace(RECIPES["sentences"].train, updates=4))


def switches():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        torch.get_rng_state().tolist(),
    )


TURNED = (True, False, False, ":4096:8")
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


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


def test_a_run_inside_autocast_is_the_same_run(corpus, tmp_path):
    for kind in ("sentences-full", "sentences-sampled"):
        short = replace(RECIPES[kind], train=_SHORT.train)
        small_runs.train(corpus, tmp_path / f"{kind} outside", short)
        with torch.autocast("cpu", torch.bfloat16):
            small_runs.train(corpus, tmp_path / f"{kind} inside", short)
            assert torch.is_autocast_enabled("cpu")
        small_runs.assert_same(*(small_runs.outcome(tmp_path / f"{kind} {way}") for way in ("outside", "inside")))


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
    assert seen[0][:4] == (*TURNED[:3], before[3] or TURNED[3])
    assert seen[0][4] != before[4]  # dropout draws
    assert switches() == before


def test_random_numbers_of_a_callers_gpus_are_left_alone(corpus, tmp_path, monkeypatch):
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, lambda seed: pytest.fail("a run on a CPU seeds GPUs"))
    small_runs.train(corpus, tmp_path / "run", _SHORT)


@pytest.mark.parametrize("fails", [False, True])
def test_the_current_gpu_and_the_allocators_variables_are_given_back(monkeypatch, fails):
    device, empty = [3], torch.empty
    monkeypatch.delenv(ALLOCATOR[0], raising=False)
    monkeypatch.setenv(ALLOCATOR[1], "max_split_size_mb:64")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda place: device.__setitem__(0, getattr(place, "index", place)))
    monkeypatch.setattr(ranks, "_own_stream", lambda place: contextlib.nullcontext())
    seen = []

    def first_use(*sizes, device):
        seen.append((torch.cuda.current_device(), *(os.environ.get(name) for name in ALLOCATOR)))
        if fails:
            raise RuntimeError("out of order")
        return empty(*sizes)

    monkeypatch.setattr(torch, "empty", first_use)
    refused = pytest.raises(InputError, match="out of order") if fails else contextlib.nullcontext()
    with refused, joined("cuda:1") as one:
        assert one.device == torch.device("cuda", 1)
    assert seen == [(1, "expandable_segments:True", "max_split_size_mb:64")]
    assert device == [3]
    assert [os.environ.get(name) for name in ALLOCATOR] == [None, "max_split_size_mb:64"]


def test_the_share_of_a_gpus_memory_and_its_random_numbers_are_given_back(monkeypatch):
    shares, states = {0: 0.9, 1: 0.5}, {0: "a", 1: "b"}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device.index])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({device.index: state}))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: shares[device.index])
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.update({device.index: share})
    )
    with switches_put_back(torch.device("cuda", 1)):
        torch.cuda.set_per_process_memory_fraction(0.1, torch.device("cuda", 1))
        assert shares == {0: 0.9, 1: 0.1}
        states[1] = "c"
    assert shares == {0: 0.9, 1: 0.5}
    assert states == {0: "a", 1: "b"}


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"WORLD_SIZE": "2"}, "RANK and MASTER_ADDR and MASTER_PORT are not set\nhint: .*torchrun"),
        ({"WORLD_SIZE": "many"}, "the variable WORLD_SIZE is 'many', but should be a number"),
    ],
)
def test_processes_that_cannot_find_each_other_are_told(monkeypatch, variables, told):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=told), joined("cpu"):
        pass
