"""TensorBoard's event files, scalars only: protocol buffers in TFRecord frames, written without either library."""

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elmofire.formats.published.from_tensorflow.crc32c import crc32c, masked
from elmofire.train.files.log import append_whole, open_to_append

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


class EventWriter:
    """Writes scalars for TensorBoard into a folder, each into the file before `add` returns.

    Every start of a run begins a new file. One that goes on from a checkpoint gives its update as `resume_at`: TensorBoard then hides
    the points that the killed run has left behind it.
    """

    def __init__(self, folder: str | os.PathLike[str], resume_at: int | None) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(file.suffix[1:]) for file in folder.glob("events.out.tfevents.*") if file.suffix[1:].isdigit()]
        # TensorBoard reads files in the order of their names.
        path = folder / f"events.out.tfevents.{max(numbers, default=0) + 1:06}"
        self._file = open_to_append(path)
        start = 0 if resume_at is None else resume_at + 1
        self._write(_event(start) + _field(3, b"brain.Event:2"))
        if numbers:
            # A session log whose status is START hides later steps.
            self._write(_event(start) + _field(7, _field(1, 1)))

    def add(self, update: int, values: Mapping[str, float]) -> None:
        """Points of several curves at one update."""
        summary = b"".join(_field(1, _field(1, name.encode()) + _field(2, float(x))) for name, x in values.items())
        self._write(_event(update) + _field(5, summary))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        append_whole(self._file, length + _checksum(length) + event + _checksum(event))


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a record of the log, by the names of their curves.

    >>> scalars({"update": 5, "kind": "train", "loss": 5.5, "softmax": "full", "clock": {"tokens_per_second": 9000.0}})
    {'train/loss': 5.5, 'train/tokens_per_second': 9000.0}
    """
    facts = {**record, **record.get("clock", {})}
    return {
        f"{record['kind']}/{name}": float(value)
        for name, value in facts.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "update"
    }


def _event(step: int) -> bytes:
    return _key(1, _FIXED64) + struct.pack("<d", time.time()) + _field(2, step)


def _field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return _key(number, _BYTES) + _varint(len(value)) + value
    if isinstance(value, float):
        with np.errstate(over="ignore"):  # a perplexity beyond float32 is infinite
            return _key(number, _FIXED32) + struct.pack("<f", np.float32(value))
    return _key(number, _VARINT) + _varint(value)


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked(crc32c(np.frombuffer(data, dtype=np.uint8))))
