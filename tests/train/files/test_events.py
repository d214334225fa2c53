"""Event files are what TensorBoard writes byte for byte, and a decoder of their own reads from them what was given."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elmofire.train.files import events
from elmofire.train.files.events import EventWriter, scalars

# Made with tensorboard 2.21's RecordWriter and protocol buffers at wall_time 1.5: brain.Event:2 and a session log's START, both at step
# 301, and a summary at step 100000 with train/loss = 5.25 and Pürplexity = infinity.
THEIRS = bytes.fromhex(
    "1b000000000000001a0d9e1309000000000000f83f10ad021a0d627261696e2e4576656e743a32d3087f9d"
    "100000000000000095fbfe1809000000000000f83f10ad023a020801d17949d4"
    "36000000000000004f578cef09000000000000f83f10a08d062a270a110a0a747261696e2f6c6f7373150000a840"
    "0a120a0b50c3bc72706c6578697479150000807f17df014b"
)


def test_the_bytes_are_those_that_tensorboard_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(events.time, "time", lambda: 1.5)
    EventWriter(tmp_path, None).close()
    writer = EventWriter(tmp_path, 300)
    writer.add(100_000, {"train/loss": 5.25, "Pürplexity": math.inf})
    writer.close()
    assert sorted(tmp_path.iterdir())[-1].read_bytes() == THEIRS


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum, bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ 0x82F63B78 * (register & 1)
    return register ^ 0xFFFFFFFF


def records(file: Path) -> Iterator[bytes]:
    """The frames of a TFRecord file; what a kill has torn off its end is left out."""
    data = file.read_bytes()
    while len(data) >= 16 and len(data) >= 16 + (length := int.from_bytes(data[:8], "little")):
        body = data[12 : 12 + length]
        for covered, said in ((data[:8], data[8:12]), (body, data[12 + length : 16 + length])):
            checksum = crc32c(covered)
            rotated = (checksum >> 15 | checksum << 17) & 0xFFFFFFFF
            assert int.from_bytes(said, "little") == (rotated + 0xA282EAD8) % 2**32
        yield body
        data = data[16 + length :]


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """A protocol buffer's fields in their order."""

    def varint() -> int:
        nonlocal message
        size = next(place for place, byte in enumerate(message) if byte < 128) + 1
        digits, message = message[:size], message[size:]
        return sum((byte & 127) << 7 * place for place, byte in enumerate(digits))

    while message:
        number, wire_type = divmod(varint(), 8)
        if wire_type == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(wire_type) or varint()
        assert size <= len(message)
        yield number, message[:size]
        message = message[size:]


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows: files in the order of their names, and a START hides the steps from its own on."""
    shown: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.iterdir()):
        events = [dict(fields(body)) for body in records(file)]
        assert events[0][3] == b"brain.Event:2"
        for event in events:
            step = event[2]
            if event.get(7) == bytes([8, 1]):
                shown = {name: [point for point in points if point[0] < step] for name, points in shown.items()}
            for _, value in fields(event.get(5, b"")):
                parts = dict(fields(value))
                (number,) = struct.unpack("<f", parts[2])
                shown.setdefault(parts[1].decode(), []).append((step, number))
    return shown


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**40),
            st.dictionaries(st.text(min_size=1, max_size=200), st.floats(width=32, allow_nan=False), max_size=5),
        ),
        max_size=5,
    )
)
@example([(127, {"x" * 127: 0.0}), (128, {"x" * 128: -0.0}), (2**40, {"x": 2.0**-149})])
def test_any_names_steps_and_numbers_are_read_back(tmp_path_factory, points):
    folder = tmp_path_factory.mktemp("events")
    writer = EventWriter(folder, None)
    expected: dict[str, list[tuple[int, float]]] = {}
    for update, values in points:
        writer.add(update, values)
        for name, value in values.items():
            expected.setdefault(name, []).append((update, value))
    writer.close()
    assert curves(folder) == expected


def test_numbers_that_float32_has_not_are_infinite_or_nan(tmp_path):
    writer = EventWriter(tmp_path, None)
    writer.add(1, {"huge": 1e300, "lost": math.nan})
    writer.close()
    assert curves(tmp_path)["huge"] == [(1, math.inf)]
    assert math.isnan(curves(tmp_path)["lost"][0][1])


@pytest.mark.parametrize("torn", [0, 1, 11, 30])
def test_a_resumed_run_shows_the_curves_of_one_that_was_not_killed(tmp_path, torn):
    def train(folder, resume_at, last):
        writer = EventWriter(folder, resume_at)
        for update in range((resume_at or 0) + 1, last + 1):
            writer.add(update, {"loss": 8 / update, "rate": float(update)})
        writer.close()

    train(tmp_path / "whole", None, 30)
    train(tmp_path / "killed", None, 7)  # before its first checkpoint
    for resume_at, last in ((None, 14), (10, 18), (15, 16), (15, 30)):
        file = max((tmp_path / "killed").iterdir())
        file.write_bytes(file.read_bytes()[: -torn or None])
        train(tmp_path / "killed", resume_at, last)
    assert curves(tmp_path / "killed") == curves(tmp_path / "whole")
    assert len(list((tmp_path / "killed").iterdir())) == 5


def test_the_numbers_of_a_record_are_curves_and_nothing_else_is():
    record = {
        "update": 5,
        "kind": "evaluation",
        "forward": 80.5,
        "backward": None,
        "events": 1000,
        "convention": "full",
    }
    record |= {"skipped": True, "clock": {"seconds": 2.5, "at": "noon"}}
    assert scalars(record) == {"evaluation/forward": 80.5, "evaluation/events": 1000.0, "evaluation/seconds": 2.5}
