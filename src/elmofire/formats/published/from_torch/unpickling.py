"""The pickle of a state dict, interpreted by the few opcodes that it needs. Nothing that it names is ever called.

Each global that may occur stands for something of ours; every other is an error that names it. Python's own unpickler would do more than
is wanted even so: it sizes its memo by what the file says, and hashes whatever a dict is given as a key.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from elmofire.errors import ModelError
from elmofire.recipe import named, shown

LONGEST = 4 << 20  # bytes of a pickle; a tensor takes some 200 of them
_MOST_AXES = 16
_MOST_OF_NOTHING = 1 << 40  # other sizes of a tensor that has a size of 0

_KINDS = {
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
    "HalfStorage": "f2",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "bool",
}
_SIZES = {"bfloat16": 2, "bool": 1}


@dataclass(frozen=True)
class Storage:
    """Numbers in a row, somewhere in the file: `count` of them from number `first` of what is called `key`."""

    key: str
    kind: str  # numpy's letters for it, bfloat16, or bool
    count: int
    first: int = 0

    @property
    def itemsize(self) -> int:
        return _SIZES.get(self.kind) or int(self.kind[1:])


@dataclass(frozen=True)
class Tensor:
    """A window on a storage, and certainly inside it; counted in numbers, not bytes."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Pickle:
    """One pickle at the start of some bytes. After `read`, `storages` are those it spoke of, and `length` is its own."""

    def __init__(self, data: bytes, where: str) -> None:
        self.storages: dict[str, Storage] = {}
        self.length = 0
        self._data = data[:LONGEST]
        self._where = where
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> Any:
        """The object, as plain dicts, lists, tuples, numbers, strings and `Tensor`s."""
        try:
            while (code := self._take(1)) != b".":
                if code not in _OPCODES:
                    self._refuse(f"has the opcode {code!r}, which no state dict needs")
                _OPCODES[code](self)
            return self._pop()
        except (IndexError, struct.error):
            self._refuse("is cut off, or damaged")
        except KeyError as error:
            self._refuse(f"refers to {shown(error.args[0])}, which it never had")
        except UnicodeDecodeError:
            self._refuse("has a string that is not utf-8")

    def _refuse(self, problem: str, *, hint: str = "") -> NoReturn:
        raise ModelError(f"{self._where}: the pickle {problem}", hint=hint) from None

    def _take(self, count: int) -> bytes:
        taken = self._data[self.length : self.length + count]
        if len(taken) < count or count < 0:
            raise IndexError
        self.length += count
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self._data.find(b"\n", self.length)
        return self._take(end + 1 - self.length if end >= 0 else -1)[:-1].decode()

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise IndexError
        return self._stack.pop()

    def _since_mark(self) -> list[Any]:
        first = self._marks.pop()
        items = self._stack[first:]
        del self._stack[first:]
        return items

    def _push_tuple(self, count: int) -> None:
        items = [self._pop() for _ in range(count)]
        self._push(tuple(items[::-1]))

    def _append(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            self._refuse("appends to what is no list")
        self._stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not dict or len(items) % 2:
            self._refuse("sets items of what is no dict")
        self._stack[-1].update(self._pairs(zip(items[::2], items[1::2], strict=True)))

    def _pairs(self, pairs: Any) -> dict[str | int, Any]:
        pairs = list(pairs)
        # Tuples of tuples of tuples can take forever to hash.
        if not all(type(pair) in (tuple, list) and len(pair) == 2 and type(pair[0]) in (str, int) for pair in pairs):
            self._refuse("has a dict whose keys are no strings")
        return dict(pairs)

    def _set_one(self) -> None:
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def _append_one(self) -> None:
        self._append([self._pop()])

    def _build(self) -> None:
        """The attributes of an object: an OrderedDict has `_metadata`, which nobody needs."""
        self._pop()
        if type(self._stack[-1]) is not dict:
            self._refuse("gives attributes to what has none")

    def _global(self, module: Any, name: Any) -> None:
        if module in ("torch", "torch.cuda", "torch.storage") and type(name) is str and name in _KINDS:
            self._push(_Kind(_KINDS[name]))
        elif type(module) is str and type(name) is str and f"{module}.{name}" in _STAND_INS:
            self._push(_StandIn(_STAND_INS[f"{module}.{name}"]))
        else:
            full = named(f"{module}.{name}") if type(module) is type(name) is str else shown((module, name))
            self._refuse(
                f"asks for the global {full}, which is not among those of weights; it was not run",
                hint="save the state_dict() of a model, not the model itself",
            )

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if type(function) is not _StandIn or type(arguments) is not tuple:
            self._refuse("calls what is no function")
        self._push(function.make(self, *arguments[:10]))

    # -- what the globals stand for --------------------------------------------------------------------------------

    def _dict(self, pairs: Any = (), *_: Any) -> dict[str | int, Any]:
        if type(pairs) not in (list, tuple):
            self._refuse("has a damaged OrderedDict")
        return self._pairs(pairs)

    def _size(self, shape: Any = None, *_: Any) -> tuple[Any, ...]:
        if type(shape) is not tuple:
            self._refuse("has a damaged Size")
        return shape

    def _parameter(self, tensor: Any = None, *_: Any) -> Tensor:
        if type(tensor) is not Tensor:
            self._refuse("has a damaged parameter")
        return tensor

    def _tensor(
        self, storage: Any = None, offset: Any = None, shape: Any = None, strides: Any = None, *_: Any
    ) -> Tensor:
        if type(storage) is not Storage or type(shape) is not tuple or type(strides) is not tuple:
            self._refuse("has a damaged tensor")
        numbers = (offset, *shape, *strides)
        if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers) or len(shape) > _MOST_AXES:
            self._refuse(
                f"has a tensor of the shape {shown(shape)}, strides {shown(strides)} and offset {shown(offset)}"
            )
        fits = len(shape) == len(strides)
        if fits and 0 in shape:
            fits = math.prod(filter(None, shape)) < _MOST_OF_NOTHING
        elif fits:
            last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
            expanded = any(length > 1 and stride == 0 for length, stride in zip(shape, strides, strict=True))
            fits = last < storage.count and math.prod(shape) <= storage.count and not expanded
        if not fits:
            self._refuse(
                f"has a tensor of the shape {shown(shape)}, strides {shown(strides)} and offset {offset}, which does not "
                f"fit its storage of {storage.count:,} numbers"
            )
        return Tensor(storage, offset, shape, strides)

    def _persistent(self) -> None:
        """('storage', kind, key, device, count), and in the old layout None or (key, first, count) of a part of it."""
        said = self._pop()
        if type(said) is not tuple or len(said) not in (5, 6) or said[0] != "storage":
            self._refuse(f"refers to {shown(said)}, which is no storage")
        _, kind, key, _, count, *part = said
        if type(kind) is not _Kind or type(key) is not str or type(count) is not int or not 0 <= count < 1 << 62:
            self._refuse(f"has a damaged storage: {shown(said)}")
        root = Storage(key, kind.kind, count)
        if self.storages.setdefault(key, root) != root:
            self._refuse(f"has two storages of the name {named(key)}")
        if part and part[0] is not None:
            _, first, length = part[0] if type(part[0]) is tuple and len(part[0]) == 3 else (None, None, None)
            if type(first) is not int or type(length) is not int or min(first, length) < 0 or first + length > count:
                self._refuse(f"has a damaged part of storage {named(key)}: {shown(part[0])}")
            root = Storage(key, kind.kind, length, first)
        self._push(root)


@dataclass(frozen=True)
class _Kind:
    """Stands for a class of storages."""

    kind: str


@dataclass(frozen=True)
class _StandIn:
    """Stands for a function: a method of `Pickle` that makes plain data of its arguments."""

    make: Callable[..., Any]


_STAND_INS = {
    "collections.OrderedDict": Pickle._dict,
    "torch.Size": Pickle._size,
    "torch._utils._rebuild_tensor": Pickle._tensor,
    "torch._utils._rebuild_tensor_v2": Pickle._tensor,
    "torch._utils._rebuild_parameter": Pickle._parameter,
}


def _memoize(pickle: Pickle, place: int) -> None:
    pickle._memo[place] = pickle._stack[-1]


def _stack_global(pickle: Pickle) -> None:
    name, module = pickle._pop(), pickle._pop()
    pickle._global(module, name)


_OPCODES: dict[bytes, Callable[[Pickle], None]] = {
    b"\x80": lambda p: (p._take(1), None)[1],  # protocol
    b"\x95": lambda p: (p._take(8), None)[1],  # frame
    b"(": lambda p: p._marks.append(len(p._stack)),
    b"N": lambda p: p._push(None),
    b"\x88": lambda p: p._push(True),
    b"\x89": lambda p: p._push(False),
    b"K": lambda p: p._push(p._number("<B")),
    b"M": lambda p: p._push(p._number("<H")),
    b"J": lambda p: p._push(p._number("<i")),
    b"\x8a": lambda p: p._push(int.from_bytes(p._take(p._number("<B")), "little", signed=True)),
    b"G": lambda p: p._push(p._number(">d")),
    b"X": lambda p: p._push(p._take(p._number("<I")).decode()),
    b"\x8c": lambda p: p._push(p._take(p._number("<B")).decode()),
    b"T": lambda p: p._push(p._take(p._number("<i")).decode()),  # Python 2's strings
    b"U": lambda p: p._push(p._take(p._number("<B")).decode()),
    b")": lambda p: p._push(()),
    b"\x85": lambda p: p._push_tuple(1),
    b"\x86": lambda p: p._push_tuple(2),
    b"\x87": lambda p: p._push_tuple(3),
    b"t": lambda p: p._push(tuple(p._since_mark())),
    b"]": lambda p: p._push([]),
    b"}": lambda p: p._push({}),
    b"a": Pickle._append_one,
    b"e": lambda p: p._append(p._since_mark()),
    b"s": Pickle._set_one,
    b"u": lambda p: p._set(p._since_mark()),
    b"q": lambda p: _memoize(p, p._number("<B")),
    b"r": lambda p: _memoize(p, p._number("<I")),
    b"\x94": lambda p: _memoize(p, len(p._memo)),
    b"h": lambda p: p._push(p._memo[p._number("<B")]),
    b"j": lambda p: p._push(p._memo[p._number("<I")]),
    b"c": lambda p: p._global(p._line(), p._line()),
    b"\x93": _stack_global,
    b"R": Pickle._reduce,
    b"b": Pickle._build,
    b"Q": Pickle._persistent,
}
