"""What was saved comes back bit for bit; killed at any moment, a run goes on from its last checkpoint or the one before."""

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from train.run import kills

from elmofire.errors import DataError
from elmofire.train.files.checkpoints import Checkpoints


def filled(update: int) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((5, 3), float(update)), "position": torch.tensor([update, -update])}


def saved(folder, *updates: int) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for update in updates:
        checkpoints.save(update, filled(update), {"loss": update / 7})
    return checkpoints


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestWhole:
    def test_none_yet(self, tmp_path):
        assert Checkpoints(tmp_path / "none").newest() is None
        assert Checkpoints(tmp_path).newest() is None

    @pytest.mark.parametrize(
        "dtype",
        ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"],
    )
    @pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (2, 3, 5)], ids=str)
    def test_tensors_of_any_type_and_shape_come_back(self, tmp_path, dtype, shape):
        given = (torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 9).to(getattr(torch, dtype))
        Checkpoints(tmp_path).save(4, {"x": given}, {})
        read = Checkpoints(tmp_path).newest().tensors["x"]
        assert read.dtype == given.dtype
        assert read.shape == given.shape
        assert torch.equal(read, given)

    @pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "i4", "u4", "u8", "u1", "?"])
    def test_arrays_come_back_as_tensors(self, tmp_path, dtype):
        given = np.array([[0, 1, 200], [3, 0, 2]]).astype(dtype)
        given.flags.writeable = False  # as those of a mapped corpus
        Checkpoints(tmp_path).save(4, {"x": given, "turned": given.T, "single": given[0, 1:2].reshape(())}, {})
        read = Checkpoints(tmp_path).newest().tensors
        for name, expected in (("x", given), ("turned", given.T), ("single", given[0, 1])):
            assert read[name].shape == expected.shape
            assert read[name].numpy().dtype == expected.dtype
            np.testing.assert_array_equal(read[name].numpy(), expected)

    def test_tensors_may_share_memory_and_need_gradients(self, tmp_path):
        flat = torch.arange(24.0).requires_grad_()
        given = {
            "flat": flat,
            "part": flat[4:10],
            "turned": flat.view(4, 6).T,
            "same": flat,
            "wide": flat[:1].expand(9),
        }
        Checkpoints(tmp_path).save(1, given, {})
        read = Checkpoints(tmp_path).newest().tensors
        assert read.keys() == given.keys()
        assert all(torch.equal(read[name], given[name]) for name in given)
        assert not any(tensor.requires_grad for tensor in read.values())

    def test_what_was_read_can_be_changed_and_outlives_its_file(self, tmp_path):
        read = saved(tmp_path, 3).newest()
        shutil.rmtree(tmp_path)
        read.tensors["weights"] += 1
        assert torch.equal(read.tensors["weights"], torch.full((5, 3), 4.0))

    def test_facts_come_back(self, tmp_path):
        facts = {"epoch": 0.1 + 0.2, "best": None, "nested": [{"café": [1, 2.5, "x"]}], "infinite": float("inf")}
        Checkpoints(tmp_path).save(12, {}, facts)
        assert Checkpoints(tmp_path).newest() == (12, {}, facts)

    def test_facts_that_are_no_json_fail_before_anything_is_written(self, tmp_path):
        with pytest.raises(TypeError):
            Checkpoints(tmp_path / "new").save(1, {}, {"x": np.zeros(3)})
        assert not (tmp_path / "new").exists()

    def test_the_last_two_are_kept_in_files_that_others_can_read(self, tmp_path):
        assert saved(tmp_path, 0, 250, 500).newest().update == 500
        assert names(tmp_path) == ["00000250", "00000500"]
        assert names(tmp_path / "00000500") == ["checkpoint.json", "state.safetensors"]
        read = load_file(tmp_path / "00000500/state.safetensors")
        assert torch.equal(read["position"], torch.tensor([500, -500]))
        assert json.loads((tmp_path / "00000500/checkpoint.json").read_text())["facts"] == {"loss": 500 / 7}

    def test_one_saved_again_takes_the_place_of_the_first(self, tmp_path):
        checkpoints = saved(tmp_path, 250, 500)
        checkpoints.save(500, {"x": torch.ones(2)}, {"finished": True})
        assert names(tmp_path) == ["00000250", "00000500"]
        assert checkpoints.newest().facts == {"finished": True}

    def test_the_newest_is_that_of_the_greatest_number_not_of_the_last_name(self, tmp_path):
        saved(tmp_path, 99_999_999, 100_000_000)
        assert Checkpoints(tmp_path).newest().update == 100_000_000

    def test_what_others_keep_there_stays(self, tmp_path):
        (tmp_path / "copy of 00000250").mkdir()
        (tmp_path / ".notes").write_text("mine")
        saved(tmp_path, 1, 2, 3)
        assert names(tmp_path) == [".notes", "00000002", "00000003", "copy of 00000250"]


def _truncate(folder):
    file = folder / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


def _flip(folder):
    file = folder / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def _edit(folder):
    file = folder / "checkpoint.json"
    file.write_text(file.read_text().replace('"update": 500', '"update": 501'))


BREAKERS = {
    "has 203 bytes, but should have 212": _truncate,
    "state.safetensors has another checksum than checkpoint.json says": _flip,
    "checkpoint.json has another checksum than it says": _edit,
    "state.safetensors'": lambda folder: (folder / "state.safetensors").unlink(),
    "checkpoint.json: cannot be read: No such file": lambda folder: (folder / "checkpoint.json").unlink(),
    "checkpoint.json:1: is not valid JSON": lambda folder: (folder / "checkpoint.json").write_text("{"),
    "checkpoint.json: should hold a JSON object": lambda folder: (folder / "checkpoint.json").write_text("[]"),
    "checkpoint.json: is not utf-8": lambda folder: (folder / "checkpoint.json").write_bytes(b"\xff\xff"),
    "checkpoint.json: cannot be read": lambda folder: [shutil.rmtree(folder), folder.mkdir()],
    "cannot be read: Not a directory": lambda folder: [shutil.rmtree(folder), folder.write_text("x")],
}


class TestBroken:
    @pytest.mark.parametrize("why", BREAKERS)
    def test_a_broken_newest_one_falls_back_to_the_one_before(self, tmp_path, why):
        saved(tmp_path, 250, 500)
        BREAKERS[why](tmp_path / "00000500")
        with pytest.warns(UserWarning, match="00000500: is broken") as caught:
            read = Checkpoints(tmp_path).newest()
        assert read.update == 250
        assert torch.equal(read.tensors["weights"], filled(250)["weights"])
        (warning,) = caught
        assert why in str(warning.message)
        assert str(warning.message).endswith(f"; going on from {tmp_path / '00000250'}")

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_no_changed_byte_goes_unnoticed(self, tmp_path_factory, data):
        folder = tmp_path_factory.mktemp("run")
        saved(folder, 250, 500)
        file = folder / "00000500" / data.draw(st.sampled_from(["state.safetensors", "checkpoint.json"]))
        content = bytearray(file.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            read = Checkpoints(folder).newest()
        # A space in the JSON's layout may be another one; numbers and names may not.
        expected = 500 if read.update == 500 else 250
        assert read.facts == {"loss": expected / 7}
        assert all(torch.equal(tensor, filled(expected)[name]) for name, tensor in read.tensors.items())
        assert file.name == "checkpoint.json" or expected == 250

    def test_all_broken_says_each_reason_and_what_to_do(self, tmp_path):
        saved(tmp_path, 250, 500)
        _truncate(tmp_path / "00000250")
        _flip(tmp_path / "00000500")
        with pytest.raises(DataError) as caught:
            Checkpoints(tmp_path).newest()
        told = str(caught.value)
        assert told.startswith(f"{tmp_path}: no checkpoint is whole")
        assert "00000250: is broken: state.safetensors has 203 bytes" in told
        assert "00000500: is broken: state.safetensors has another checksum" in told
        assert f"hint: put back a copy of one of them, or remove {tmp_path} to start the run anew" in told

    @pytest.mark.parametrize(("next_update", "left"), [(300, ["00000250", "00000300"]), (500, ["00000250", "00000500"]), (700, ["00000250", "00000700"])])  # fmt: skip
    def test_a_run_that_fell_back_goes_on_and_the_broken_one_goes(self, tmp_path, next_update, left):
        checkpoints = saved(tmp_path, 250, 500)
        _flip(tmp_path / "00000500")
        with pytest.warns(UserWarning, match="going on from"):
            checkpoints.newest()
        checkpoints.save(next_update, filled(next_update), {})
        assert names(tmp_path) == left
        assert Checkpoints(tmp_path).newest().update == next_update


PROGRAM = """
import torch
torch.set_num_threads(1)  # a fork has none of its parent's threads
from train.run.kills import kill_at_every_step, kill_at_random
from elmofire.train.files.checkpoints import Checkpoints

def tensors(update, size=5):
    return {"weights": torch.full((size,), float(update)), "update": torch.tensor(update)}

def whole(folder):
    found = Checkpoints(folder).newest()
    if found:
        size = len(found.tensors["weights"])
        assert all(torch.equal(found.tensors[name], tensor) for name, tensor in tensors(found.update, size).items())
    return found
"""


class TestKilled:
    def test_a_kill_before_any_file_operation_loses_nothing(self):
        kills.run(f"""{PROGRAM}
for before, now in [((), 10), ((10, 20), 30), ((10,), 10)]:
    def prepare(folder):
        for update in before:
            Checkpoints(folder).save(update, tensors(update), {{"take": 1}})

    def act(folder):
        Checkpoints(folder).save(now, tensors(now), {{"take": 2}})

    def check(folder, killed):
        found, last = whole(folder), max(before, default=None)
        allowed = [last and (last, 1), (now, 2)] if killed else [(now, 2)]
        assert (found and (found.update, found.facts["take"])) in allowed, (found, killed)
        Checkpoints(folder).save(100, tensors(100), {{}})  # the next one leaves nothing of the killed writer behind
        assert whole(folder).update == 100
        left = sorted(path.name for path in folder.iterdir())
        assert left == ([f"{{found.update:08}}"] if found else []) + ["00000100"], left

    assert kill_at_every_step(prepare, act, check) >= 4""")

    def test_kills_at_random_moments_leave_a_whole_one(self):
        kills.run(f"""{PROGRAM}
def act(folder):
    checkpoints = Checkpoints(folder)
    found = checkpoints.newest()
    update = found.update if found else 0
    while True:
        update += 1
        checkpoints.save(update, tensors(update, 300_000), {{}})

reached = []

def check(folder, killed):
    found = whole(folder)
    numbered = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    assert len(numbered) <= 3
    reached.append(found.update)
    assert reached == sorted(set(reached)), reached
kill_at_random(act, check, kills=10)""")
