"""The log of a run that was killed and resumed is that of a run that was not."""

import json
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train.run import kills

from elmofire.errors import DataError
from elmofire.train.files.log import RunLog, read_log


def train(run, resume_at: int | None, last: int, *, hour: float = 0.0) -> None:
    """What a loop writes from one update to another: each update's records are a function of its number."""
    log = RunLog(run, resume_at)
    for update in range(resume_at or 0, last):
        log.write("train", update + 1, loss=1 / (update + 1), softmax="full", clock={"seconds": hour + update})
        if update % 3 == 2:
            log.write("evaluation", update + 1, forward=2.0, backward=None, mean=2.0)
    log.close()


def without_clock(records):
    return [{key: value for key, value in record.items() if key != "clock"} for record in records]


def test_records_come_back_in_their_order_while_the_run_goes_on(tmp_path):
    log = RunLog(tmp_path, None)
    first = log.write("note", 0, text='a "note" é\n\r\u2028', clock={"seconds": 1.5})
    second = log.write("train", 100, loss=5.25, rate=1e-3)
    assert read_log(tmp_path) == [first, second]
    assert first == {"update": 0, "kind": "note", "text": 'a "note" é\n\r\u2028', "clock": {"seconds": 1.5}}
    assert second == {"update": 100, "kind": "train", "loss": 5.25, "rate": 1e-3}
    assert (tmp_path / "log.jsonl").read_bytes().count(b"\n") == 2
    log.close()


def test_numbers_that_json_has_not_become_null(tmp_path):
    log = RunLog(tmp_path, None)
    log.write("train", 1, loss=float("nan"), clock={"left": float("inf")}, norms=[1.0, float("-inf")], nested={"x": [(float("nan"),)]})  # fmt: skip
    log.close()
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    read = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert read == {"update": 1, "kind": "train", "loss": None, "norms": [1.0, None], "nested": {"x": [[None]]}, "clock": {"left": None}}  # fmt: skip


def test_a_disk_that_is_full_takes_a_record_whole_or_not_at_all(tmp_path):
    """Past a file's limit the system behaves as on a full disk: it takes what fits, and says nothing before the next write."""
    program = f"""
import resource
from elmofire.train.files.events import EventWriter
from elmofire.train.files.log import RunLog, read_log

log, events = RunLog({str(tmp_path)!r}, None), EventWriter({str(tmp_path / "events")!r}, None)
refused = []
resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
for update in range(20):
    for write in (lambda: log.write("train", update, loss=0.5), lambda: events.add(update, {{"loss": 0.5}})):
        try:
            write()
        except OSError:
            refused.append(update)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert 0 < len(refused) < 40
log.write("train", 20, loss=0.5)
updates = [record["update"] for record in read_log({str(tmp_path)!r})]
assert updates[-1] == 20 and updates[:-1] == list(range(len(updates) - 1)), updates
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    (file,) = (tmp_path / "events").iterdir()
    data, frames = file.read_bytes(), 0
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert len(data) >= length + 16
        data, frames = data[length + 16 :], frames + 1
    assert frames > 2


def test_a_run_that_begins_anew_has_a_new_log(tmp_path):
    train(tmp_path, None, 5)
    train(tmp_path, None, 2)
    assert [record["update"] for record in read_log(tmp_path)] == [1, 2]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_killed_anywhere_and_resumed_the_log_is_the_same(tmp_path_factory, data):
    whole, killed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    train(whole, None, 12)
    train(killed, None, data.draw(st.integers(1, 12)))
    file = killed / "log.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    checkpoint = data.draw(st.integers(0, json.loads(lines[-1])["update"]))
    # All that was written before the checkpoint is there; of what came after it, any number of bytes.
    sure = sum(len(line) for line in lines if json.loads(line)["update"] <= checkpoint)
    file.write_bytes(file.read_bytes()[: data.draw(st.integers(sure, sum(map(len, lines))))])
    train(killed, checkpoint, 12, hour=3600.0)
    assert without_clock(read_log(killed)) == without_clock(read_log(whole))
    assert [path.name for path in killed.iterdir()] == ["log.jsonl"]


def test_a_kill_while_the_log_is_cut_loses_nothing(tmp_path):
    kills.run("""
from train.run.kills import kill_at_every_step
from train.files.test_log import read_log, train, without_clock

def prepare(folder):
    train(folder, None, 9)

def act(folder):
    train(folder, 6, 12)

def check(folder, killed):
    train(folder, 6, 12)
    assert [record["update"] for record in read_log(folder)] == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 12]
    assert [path.name for path in folder.iterdir()] == ["log.jsonl"]

assert kill_at_every_step(prepare, act, check) >= 4
""")


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "train"}', '{"update": "5"}', "", "\xff"])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    train(tmp_path, None, 2)
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(line.encode("latin-1") + b'\n{"update": 3, "kind": "train"}\n')
    with pytest.raises(DataError, match=r"log\.jsonl:3: is no record of a run"):
        read_log(tmp_path)
    with pytest.raises(DataError, match=r"log\.jsonl:3: is no record of a run"):
        RunLog(tmp_path, 2)


def test_a_folder_without_a_log_is_no_run(tmp_path):
    with pytest.raises(DataError, match=r"has no log\.jsonl"):
        read_log(tmp_path)
