"""Packed weights on disk are used while they are what was written for this very model, and never otherwise."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from models import lively, tiny

from elmofire import load_weights, save_weights
from elmofire.engine import Engine
from elmofire.engine.batches import make_pool, token_ids
from elmofire.engine.compiled import library, packed_files, packing

pytestmark = pytest.mark.skipif(not library.available(), reason="no compiled kernels on this machine")

CONFIG = tiny(cells=40, projection=12, encoder_width=12)
TOKENS = ["the", "cat", "日本語"]
IN_THE_BACKGROUND = packed_files._in_the_background


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache, in which models of any size are kept."""
    monkeypatch.setenv("ELMOFIRE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(packed_files, "_LEAST_PARAMETERS", 0)
    monkeypatch.setattr(packed_files, "_in_the_background", lambda function, *arguments: function(*arguments))
    return tmp_path / "home" / "packed"


@pytest.fixture
def model(tmp_path):
    return saved(tmp_path / "model", seed=1)


def saved(folder, *, seed):
    save_weights(lively(CONFIG, seed=seed), folder)
    return folder


def vectors(weights, **settings):
    engine = Engine(weights, **settings)
    ids = token_ids(TOKENS, weights.config, None, weights.alphabet)
    return np.stack(next(iter(engine.run(engine.encode(ids), [make_pool([np.array([0, 1, 2, 1])], np.array([0]))]))))


def in_memory(folder, **settings):
    """What the same weights give without any file."""
    weights = load_weights(folder)
    return vectors(replace(weights, arrays=dict(weights.arrays), source=None), **settings)


@pytest.fixture
def packings(monkeypatch):
    """Counts how often a model is packed."""
    count = []
    monkeypatch.setattr(packed_files, "pack", lambda *all: count.append(1) or packing.pack(*all))
    return count


@pytest.mark.parametrize("precision", ["float32", "int16", "int8"])
def test_a_second_start_maps_what_the_first_one_wrote(home, model, packings, precision):
    expected = in_memory(model, precision=precision)
    packings.clear()
    for _ in range(3):
        np.testing.assert_array_equal(vectors(load_weights(model), precision=precision), expected)
    assert len(packings) == 1
    assert len(list(home.iterdir())) == 1


def test_nobody_waits_for_the_file(home, model, monkeypatch):
    monkeypatch.setattr(packed_files, "_in_the_background", IN_THE_BACKGROUND)
    may_write, written = Event(), packed_files._written
    monkeypatch.setattr(packed_files, "_written", lambda *arguments: may_write.wait(60) and written(*arguments))
    np.testing.assert_array_equal(vectors(load_weights(model)), in_memory(model))
    assert not home.exists()
    may_write.set()
    for thread in threading.enumerate():
        if thread.name == "elmofire-packed":
            thread.join()
    assert len(list(home.iterdir())) == 1


def test_where_no_thread_can_be_started_there_is_no_file(home, model, monkeypatch):
    monkeypatch.setattr(packed_files, "_in_the_background", IN_THE_BACKGROUND)

    def refused(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    np.testing.assert_array_equal(vectors(load_weights(model), threads=1), in_memory(model, threads=1))
    assert not home.exists()


def test_mapped_weights_are_shared_pages_that_nobody_can_write(home, model):
    Engine(load_weights(model))
    engine = Engine(load_weights(model))
    array = engine._stacks["forward"][0]._layer._matrices[0]._arrays.packed
    assert not array.flags.writeable
    assert array.ctypes.data % 64 == 0
    file = next(home.iterdir())
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(file) in line]
    assert maps
    assert all(line[1] == "r--s" for line in maps)


def test_each_precision_and_layout_has_a_file_of_its_own(home, model):
    for precision in ("float32", "int16", "int8"):
        Engine(load_weights(model), precision=precision)
    assert len(list(home.iterdir())) == 3
    for name in library.available():
        np.testing.assert_allclose(
            vectors(load_weights(model), instruction_set=name), in_memory(model), rtol=1e-5, atol=2e-6
        )


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"x" * 7,
        lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
        lambda data: bytes(len(data)),
        lambda data: data[:-60] + b"?" * 20 + data[-40:],
        lambda data: data[:-8] + (1 << 62).to_bytes(8, "little"),
        lambda data: b"x" * 64 + data,
    ],
    ids=["half", "empty", "short", "one bit", "zeros", "index", "size of the index", "shifted"],
)
def test_a_broken_file_is_made_anew(home, model, packings, damage):
    expected = in_memory(model)
    Engine(load_weights(model))
    file = next(home.iterdir())
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    packings.clear()
    np.testing.assert_array_equal(vectors(load_weights(model)), expected)
    assert len(packings) == 1
    assert file.read_bytes() == whole


def test_another_models_file_in_its_place_is_not_used(home, model, tmp_path):
    other = saved(tmp_path / "other", seed=2)
    Engine(load_weights(model))
    mine = next(home.iterdir())
    Engine(load_weights(other))
    theirs = next(file for file in home.iterdir() if file != mine)
    mine.write_bytes(theirs.read_bytes())
    np.testing.assert_array_equal(vectors(load_weights(model)), in_memory(model))


@pytest.mark.parametrize("differs", ["", "forward.1.bias"], ids=["everything", "a bias"])
def test_other_weights_of_the_same_size_and_time_are_not_confused(home, model, monkeypatch, differs):
    monkeypatch.setattr(packed_files, "_SAMPLE", 1)  # so that a bias lies between the places that are looked at
    Engine(load_weights(model))
    status = [(file.name, file.stat()) for file in model.iterdir()]
    old, new = lively(CONFIG, seed=1), lively(CONFIG, seed=2)
    arrays = {name: (new if name.startswith(differs) else old).arrays[name] for name in old.arrays}
    save_weights(replace(old, arrays=arrays), model)
    for name, stat in status:
        os.utime(model / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert [(name, (model / name).stat().st_size) for name, _ in status] == [(name, s.st_size) for name, s in status]
    np.testing.assert_array_equal(vectors(load_weights(model)), in_memory(model))


def test_weights_whose_folder_was_saved_anew_are_not_kept_as_the_new_ones(home, model):
    old = load_weights(model)
    saved(model, seed=2)
    np.testing.assert_array_equal(vectors(old), vectors(lively(CONFIG, seed=1)))
    np.testing.assert_array_equal(vectors(load_weights(model)), in_memory(model))


def test_weights_whose_folder_is_saved_anew_while_they_are_packed_are_not_kept(home, model, monkeypatch):
    def slowly(*all):
        saved(model, seed=2)
        return packing.pack(*all)

    with monkeypatch.context() as patch:
        patch.setattr(packed_files, "pack", slowly)
        Engine(load_weights(model))
    assert not home.exists()


def test_arrays_changed_in_memory_and_another_config_are_not_those_of_the_file(home, model):
    Engine(load_weights(model))
    weights = load_weights(model)
    doubled = replace(weights, arrays={name: 2 * array for name, array in weights.arrays.items()})
    assert not np.array_equal(vectors(doubled), in_memory(model))
    forgetful = replace(weights, config=replace(weights.config, forget_bias=5.0))
    expected = vectors(replace(forgetful, arrays=dict(weights.arrays), source=None))
    np.testing.assert_array_equal(vectors(forgetful), expected)


def test_a_small_model_and_one_from_memory_leave_no_file(home, model, monkeypatch):
    Engine(lively(CONFIG))
    monkeypatch.undo()
    monkeypatch.setenv("ELMOFIRE_HOME", str(home.parent))
    Engine(load_weights(model))
    assert not home.exists()


def test_another_users_file_is_mapped_though_its_time_cannot_be_set(home, model, packings, monkeypatch):
    Engine(load_weights(model))
    packings.clear()

    def refused(*all, **others):
        raise PermissionError

    monkeypatch.setattr(os, "utime", refused)
    Engine(load_weights(model))
    assert not packings


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.pop("forward.0.recurrent.packed") and index,
        lambda index: {**index, "forward.0.recurrent.packed": [*index["forward.0.input.bias"]]},
        lambda index: {**index, "encoder.filter_bias": ["<f8", [0], 0, 0]},
        lambda index: {**index, "encoder.tables": ["<f4", index["encoder.tables"][1], -64, 0]},
        lambda index: list(index),
    ],
    ids=["missing", "smaller", "another dtype", "elsewhere", "no index"],
)
def test_a_file_that_is_whole_but_holds_other_arrays_is_made_anew(home, model, packings, change):
    expected = in_memory(model)
    Engine(load_weights(model))
    file = next(home.iterdir())
    whole = file.read_bytes()
    end = len(whole) - 8 - packed_files._DIGEST
    start = end - int.from_bytes(whole[-8:], "little")
    index = json.dumps(change(json.loads(whole[start:end]))).encode()
    file.write_bytes(whole[:start] + index + packed_files._digest(file, index) + len(index).to_bytes(8, "little"))
    packings.clear()
    np.testing.assert_array_equal(vectors(load_weights(model)), expected)
    assert len(packings) == 1
    assert file.read_bytes() == whole


def test_where_no_folder_can_be_made_the_arrays_are_in_memory(home, model):
    home.parent.mkdir()
    home.write_text("not a folder")
    np.testing.assert_array_equal(vectors(load_weights(model)), in_memory(model))


def test_where_the_disk_is_full_the_arrays_are_in_memory_and_nothing_is_left_behind(home, model):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        found = vectors(load_weights(model))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    np.testing.assert_array_equal(found, in_memory(model))
    assert not list(home.iterdir())


def test_the_files_not_used_for_longest_go_first(home, model, monkeypatch):
    for precision in ("float32", "int16"):
        Engine(load_weights(model), precision=precision)
    first, second = sorted(home.iterdir(), key=lambda file: -file.stat().st_size)
    for file, age in ((first, 500), (second, 400)):
        os.utime(file, (time.time() - age,) * 2)
    Engine(load_weights(model), precision="float32")  # which is a use
    left_behind = home / ".left-behind.packed"
    left_behind.write_bytes(b"of a process that was killed")
    os.utime(left_behind, (time.time() - 7200,) * 2)
    monkeypatch.setattr(packed_files, "MOST_BYTES", first.stat().st_size + second.stat().st_size)
    Engine(load_weights(model), precision="int8")
    assert first.exists()
    assert not second.exists()
    assert not left_behind.exists()
    assert len(list(home.iterdir())) == 2


def test_processes_that_start_at_the_same_time_all_get_their_vectors(home, model):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from elmofire.engine.compiled import packed_files; "
        "packed_files._LEAST_PARAMETERS = 0; from engine.test_packed_files import *; "
        "sys.stdout.buffer.write(vectors(load_weights(sys.argv[2])).tobytes())"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parents[1]), str(model)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: subprocess.run(command, capture_output=True, check=True).stdout, range(3)))
    assert found == [in_memory(model).tobytes()] * 3
    assert len(list(home.iterdir())) == 1
