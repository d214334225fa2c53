"""TensorFlow checkpoints as the written rules say, by code that shares nothing with the reader's: a table, messages, a slow checksum."""

from pathlib import Path

import numpy as np

from elmofire.formats.config import BilmConfig
from elmofire.formats.weights import Weights

TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
MAGIC = bytes.fromhex("57fb808b247547db")


def _eight_steps(register: int) -> int:
    for _ in range(8):
        register = (register >> 1) ^ (0x82F63B78 * (register & 1))
    return register


_TABLE = [_eight_steps(byte) for byte in range(256)]


def slow_crc32c(data: bytes) -> int:
    """Byte by byte."""
    register = 0xFFFFFFFF
    for byte in data:
        register = _TABLE[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def checksum(data: bytes) -> bytes:
    """The masked CRC-32C, as files hold it."""
    crc = slow_crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: int | bytes) -> bytes:
    """A field of a message: a number, or bytes with their length."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def header(shards: int = 1, *, more: bytes = b"") -> bytes:
    return field(1, shards) + more + field(3, field(1, 1))


def entry(
    *,
    dtype: int = 1,
    shape: tuple[int, ...] = (),
    shard: int = 0,
    offset: int = 0,
    size: int = 0,
    crc: bytes = b"\0" * 4,
) -> bytes:
    message = field(1, dtype) + field(2, b"".join(field(2, field(1, axis)) for axis in shape))
    message += (field(3, shard) if shard else b"") + (field(4, offset) if offset else b"")
    return message + field(5, size) + varint(6 << 3 | 5) + crc


def content(items: list[tuple[bytes, bytes]], *, restarts: tuple[int, ...] = (0,)) -> bytes:
    """A block: entries whose keys share their beginnings, then where entries start that share nothing."""
    data, last = b"", b""
    for key, value in items:
        shared = next((k for k, (a, b) in enumerate(zip(last, key, strict=False)) if a != b), min(len(last), len(key)))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return data + b"".join(restart.to_bytes(4, "little") for restart in (*restarts, len(restarts)))


def sealed(block: bytes, *, compression: int = 0) -> bytes:
    """A block with what stands behind it: the kind of compression, and the checksum."""
    return block + bytes([compression]) + checksum(block + bytes([compression]))


def table(blocks: list[bytes], *, index: bytes | None = None) -> bytes:
    """Sealed blocks, the sealed index of them (a true one unless it is given), and the footer."""
    data, handles = b"", []
    for number, each in enumerate(blocks):
        handles.append((b"%05d" % number, varint(len(data)) + varint(len(each) - 5)))
        data += each
    index = index or sealed(content(handles))
    about = sealed(content([]))
    ends = [len(data), len(about) - 5, len(data) + len(about), len(index) - 5]
    return data + about + index + b"".join(map(varint, ends)).ljust(40, b"\0") + MAGIC


def write_bundle(prefix: Path, variables: dict[str, np.ndarray], *, shards: int = 1, in_a_block: int = 20) -> None:
    """`PREFIX.index` and its data files."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    data = [b"\7" * shard for shard in range(shards)]  # the numbers need not be aligned
    items = [(b"", header(shards))]
    for number, name in enumerate(sorted(variables, key=str.encode)):
        array, shard = variables[name], number % shards
        stored = array.astype(array.dtype.newbyteorder("<")).tobytes()
        place = {"shard": shard, "offset": len(data[shard]), "size": len(stored), "crc": checksum(stored)}
        items.append((name.encode(), entry(dtype=TYPES[array.dtype.name], shape=array.shape, **place)))
        data[shard] += stored
    cut = [sealed(content(items[k : k + in_a_block])) for k in range(0, len(items), in_a_block)]
    Path(f"{prefix}.index").write_bytes(table(cut))
    for shard, stored in enumerate(data):
        Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}").write_bytes(stored)


def variables_of(weights: Weights, scope: str = "lm") -> dict[str, np.ndarray]:
    """The variables that the trainer (`lm`) or a TF-Hub module (`bilm`) has for a model."""
    ours, config = weights.arrays, weights.config
    theirs: dict[str, np.ndarray] = {}
    for name, array in ours.items():
        part = name.split(".")
        letter = {"weight": "W", "bias": "b"}.get(part[-1])
        if name in ("encoder.characters", "encoder.words"):
            theirs["char_embed" if part[1] == "characters" else "embedding"] = array
        elif part[:2] == ["encoder", "convolutions"]:
            theirs[f"CNN/{letter}_cnn_{part[2]}"] = array.transpose(2, 1, 0)[None] if letter == "W" else array
        elif part[:2] == ["encoder", "highways"]:
            theirs[f"CNN_high_{part[2]}/{letter}_{'carry' if part[3] == 'gate' else 'transform'}"] = array.T
        elif part[:2] == ["encoder", "projection"]:
            theirs[f"CNN_proj/{letter}_proj"] = array.T
        elif part[0] == "head":
            theirs[f"softmax/{letter}"] = array
        else:
            cell = _cell(config, part[0], int(part[1]), scope)
            if part[2] == "weight_ih":
                both = np.concatenate([array, ours[f"{part[0]}.{part[1]}.weight_hh"]], axis=1)
                theirs[f"{cell}kernel"] = _their_gates(both).T
            elif part[2] == "bias":
                theirs[f"{cell}bias"] = _their_gates(array)
            elif part[2] == "weight_hr":
                theirs[f"{cell}projection/kernel"] = array.T
    return {f"{scope}/{name}": np.ascontiguousarray(array) for name, array in theirs.items()}


def _cell(config: BilmConfig, direction: str, layer: int, scope: str) -> str:
    number = 0 if direction == "forward" else 1
    if scope == "bilm":
        return f"RNN_{number}/RNN/MultiRNNCell/Cell{layer}/rnn/lstm_cell/"
    stack = f"RNN_{number}/rnn" if len(config.directions) == 2 else "rnn"
    return f"{stack}/lstm_cell/" if config.layers == 1 else f"{stack}/multi_rnn_cell/cell_{layer}/lstm_cell/"


def _their_gates(array: np.ndarray) -> np.ndarray:
    """torch's i, f, g, o as TensorFlow's i, j, f, o, along the first axis."""
    i, f, g, o = np.split(array, 4)
    return np.concatenate([i, g, f, o])
