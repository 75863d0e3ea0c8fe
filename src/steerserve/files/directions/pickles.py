"""Files of `torch.save` in the zip layout, read without PyTorch and without running any part of their pickle.

The pickle is interpreted here: of its instructions, those that make dicts, lists, texts, numbers and tensors are
understood. Every other instruction, and every name other than those of tensors, is refused.
Source: the pickle protocols 2 to 5, and the archives that `torch.save` writes since PyTorch 1.6.
"""

from __future__ import annotations

import io
import math
import pickletools
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from steerserve.errors import Refusal
from steerserve.files.directions.stored import SIZES, Numbers
from steerserve.rules import archive as archive_rules
from steerserve.rules.bounds import (
    ARCHIVE_ENTRIES,
    PICKLE_INSTRUCTIONS,
    PICKLED_INDEX_BYTES,
    VECTOR_WIDTH,
)
from steerserve.rules.steering.vector import invalid
from steerserve.rules.text import shown

ZIP = b"PK\x03\x04"
PROTOCOL = b"\x80"
VALUES_MAXIMUM = 20_000
"""The most values in the object of an archive, one that stands twice counted twice."""

AXES_MAXIMUM = 8
ADVICE = (
    "save the directions as plain tensors instead: torch.save({layer: direction, ...}, path), or "
    "safetensors.torch.save_file({'layer12': direction, ...}, path)"
)

_DTYPES = {
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.DoubleStorage": "float64",
}
_OTHER_STORAGES = {
    f"torch.{kind}Storage": kind.lower()
    for kind in ("Long", "Int", "Short", "Char", "Byte", "Bool", "Untyped")
}
_INTEGERS: Mapping[int, Literal["H", "I", "Q"]] = {2: "H", 4: "I", 8: "Q"}
"""The integers by which numbers of so many bytes are copied."""

_TENSORS = frozenset({"torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"})
_PARAMETER = "torch._utils._rebuild_parameter"
_ORDERED = "collections.OrderedDict"
_ALLOWED = _TENSORS | {_PARAMETER, _ORDERED} | _DTYPES.keys() | _OTHER_STORAGES.keys()


class _Mark:
    pass


@dataclass(frozen=True, slots=True)
class _Name:
    """A name that the pickle refers to."""

    text: str


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    key: str


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as the pickle describes it: its storage, where it begins there, its shape and its strides, all counted
    in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Odd(Exception):
    """The pickle has an instruction or a value that no dict of tensors has. The message says which."""


def read(file: str, data: bytes) -> object:
    """The object in a file: `Numbers` for each tensor, in dicts and lists, beside texts and plain numbers.

    Raises:
        Refusal: INVALID_VECTOR for a damaged archive, and for a pickle that names more than tensors; nothing of it is
            executed.
    """
    if archive_rules.has_more_entries(data, ARCHIVE_ENTRIES):
        raise invalid(file, f"has more than {ARCHIVE_ENTRIES} entries")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            why = archive_rules.fault(entries, len(data))
            if why is None and not all(map(archive_rules.is_stored, entries)):
                why = "has compressed entries, which torch.save does not write"
            if why is not None:
                raise invalid(file, why)
            contents = {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, EOFError, ValueError, OverflowError, NotImplementedError) as error:
        raise invalid(file, "is not a complete zip archive") from error
    except (RuntimeError, OSError) as error:  # an encrypted entry, or an offset outside of the file
        raise invalid(file, "has an entry that cannot be read") from error
    pickles = [name for name in contents if name.endswith("data.pkl")]
    if len(pickles) != 1:
        raise invalid(file, f"is no file of torch.save; {ADVICE}")
    if contents.get(pickles[0].removesuffix("data.pkl") + "byteorder", b"little") != b"little":
        raise invalid(file, "was written by a big-endian machine")
    return _resolved(
        file,
        _object(file, contents[pickles[0]]),
        contents,
        pickles[0].removesuffix("data.pkl"),
        len(data),
    )


def refuse_other(file: str) -> Refusal:
    """The refusal of a pickle that is no archive of tensors."""
    return invalid(
        file,
        f"is a pickle, or a file of a PyTorch before 1.6; nothing of it was executed; {ADVICE}",
    )


# ------------------------------------------------------------- the pickle


def _object(file: str, data: bytes) -> object:
    """The object that a pickle describes."""
    if len(data) > PICKLED_INDEX_BYTES:
        raise invalid(file, f"has an index larger than {PICKLED_INDEX_BYTES} bytes")
    machine = _Machine()
    try:
        for count, (code, argument, _) in enumerate(pickletools.genops(data)):
            if count == PICKLE_INSTRUCTIONS:
                raise _Odd(f"has an index of more than {PICKLE_INSTRUCTIONS} instructions")
            machine.step(code.name, argument)
        return machine.result
    except _Odd as odd:
        raise invalid(file, f"{odd}; nothing was executed; {ADVICE}") from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise invalid(file, "has a damaged pickle") from error


class _Machine:
    """The stack and the memory of one pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, object] = {}
        self.result: object = None

    def step(self, code: str, argument: Any) -> None:
        """Raises:
        _Odd
        """
        if code in _PUSHED:
            self._stack.append(_PUSHED[code](argument))
        elif code in _DONE:
            _DONE[code](self, argument)
        elif code not in ("PROTO", "FRAME"):
            raise _Odd(f"is a pickle with the instruction {code}")

    def stop(self, _: object) -> None:
        (self.result,) = self._stack

    def put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def memoize(self, _: object) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def tuple_of(self, count: int) -> None:
        self._stack.append(tuple(self._stack.pop() for _ in range(count))[::-1])

    def marked(self) -> list[object]:
        """What stands above the last mark."""
        above: list[object] = []
        while not isinstance(top := self._stack.pop(), _Mark):
            above.append(top)
        return above[::-1]

    def tuple_marked(self, _: object) -> None:
        self._stack.append(tuple(self.marked()))

    def append(self, items: list[object]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise _Odd("is a pickle that appends to something other than a list")
        target.extend(items)

    def set_items(self, items: list[object]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise _Odd("is a pickle that sets the items of something other than a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):
                raise _Odd("is a pickle with a key that is neither a text nor a number")
            if key in target:
                raise _Odd(f"is a pickle that has {shown(str(key))!r} twice")
            target[key] = value

    def name(self, text: str) -> None:
        if text not in _ALLOWED:
            raise _Odd(f"is a pickle that names {shown(text)}")
        self._stack.append(_Name(text))

    def stack_name(self, _: object) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self.name(f"{module}.{name}")

    def persistent(self, _: object) -> None:
        kind, storage, key, _, count = self._stack.pop()
        if kind != "storage" or not isinstance(storage, _Name) or not isinstance(key, str):
            raise _Odd("is a pickle that refers to something other than a storage")
        name = storage.text
        dtype = _DTYPES.get(name) or _OTHER_STORAGES.get(name)
        if dtype is None or not isinstance(count, int):
            raise _Odd(f"is a pickle that takes {name} for a storage")
        self._stack.append(_Storage(dtype, key))

    def reduce(self, _: object) -> None:
        arguments, name = self._stack.pop(), self._stack.pop()
        called = name.text if isinstance(name, _Name) else ""
        if called == _ORDERED and arguments == ():
            self._stack.append({})
        elif called == _PARAMETER and isinstance(arguments[0], StoredTensor):
            self._stack.append(arguments[0])
        elif called in _TENSORS:
            self._stack.append(_tensor(*arguments[:4]))
        else:
            raise _Odd(f"is a pickle that calls {shown(called) or 'a value'}")

    def build(self, _: object) -> None:
        """A dict of PyTorch may carry attributes (`_metadata`), which say nothing about its tensors."""
        self._stack.pop()
        if not isinstance(self._stack[-1], dict):
            raise _Odd("is a pickle that changes an object")


def _tensor(storage: object, offset: object, shape: object, strides: object) -> StoredTensor:
    if not isinstance(storage, _Storage) or not isinstance(offset, int) or offset < 0:
        raise _Odd("is a pickle with a tensor of an unknown form")
    return StoredTensor(storage, offset, _counts(shape), _counts(strides))


def _counts(value: object) -> tuple[int, ...]:
    is_counts = isinstance(value, tuple) and len(value) <= AXES_MAXIMUM
    if not is_counts or not all(type(n) is int and 0 <= n < 1 << 40 for n in value):  # type: ignore[attr-defined]
        raise _Odd("is a pickle with a tensor whose shape is no list of counts")
    return value  # type: ignore[return-value]


_PUSHED: Mapping[str, Callable[[object], object]] = {
    "MARK": lambda _: _Mark(),
    "EMPTY_DICT": lambda _: {},
    "EMPTY_LIST": lambda _: [],
    "EMPTY_TUPLE": lambda _: (),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    **dict.fromkeys(
        (
            "BINUNICODE",
            "SHORT_BINUNICODE",
            "BINUNICODE8",
            "BININT",
            "BININT1",
            "BININT2",
            "LONG1",
            "BINFLOAT",
        ),
        lambda argument: argument,
    ),
}
"""Instructions that push a value."""

_DONE: Mapping[str, Callable[[_Machine, Any], None]] = {
    "STOP": _Machine.stop,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "TUPLE": _Machine.tuple_marked,
    "APPEND": lambda machine, _: machine.append([machine._stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.marked()),
    "SETITEM": lambda machine, _: machine.set_items(
        [machine._stack.pop(), machine._stack.pop()][::-1]
    ),
    "SETITEMS": lambda machine, _: machine.set_items(machine.marked()),
    "GLOBAL": lambda machine, argument: machine.name(argument.replace(" ", ".")),
    "STACK_GLOBAL": _Machine.stack_name,
    "BINPERSID": _Machine.persistent,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}
"""Instructions that work on the stack."""


# ------------------------------------------------------------- the tensors


def _resolved(
    file: str, value: object, contents: Mapping[str, bytes], prefix: str, size: int
) -> object:
    """The object with the numbers of its tensors. Dicts and lists are two deep at most, so that an object which holds
    itself ends."""
    read_bytes = seen = 0

    def resolved(value: object, key: str, deep: int) -> object:
        nonlocal read_bytes, seen
        seen += 1
        if seen > VALUES_MAXIMUM:
            raise invalid(file, f"holds more than {VALUES_MAXIMUM} values")
        if isinstance(value, StoredTensor):
            numbers = _numbers(file, key or "the tensor", value, contents, prefix, size)
            read_bytes += len(numbers.data)
            if read_bytes > 4 * size:
                raise invalid(file, "declares far more numbers than it has")
            return numbers
        if isinstance(value, dict | list) and deep == 0:
            raise invalid(file, f"nests dicts or lists more than two deep; {ADVICE}")
        if isinstance(value, dict):
            return {k: resolved(v, str(k), deep - 1) for k, v in value.items()}
        if isinstance(value, list):
            return [resolved(v, str(i), deep - 1) for i, v in enumerate(value)]
        if value is None or isinstance(value, str | int | float):
            return value
        raise invalid(file, f"holds something other than tensors and plain values; {ADVICE}", key)

    return resolved(value, "", 2)


def _numbers(
    file: str,
    key: str,
    tensor: StoredTensor,
    contents: Mapping[str, bytes],
    prefix: str,
    size: int,
) -> Numbers:
    """Raises:
    Refusal: INVALID_VECTOR naming the tensor: no floats, or outside of its storage.
    """
    dtype, shape = tensor.storage.dtype, tensor.shape
    if dtype not in SIZES:
        raise invalid(file, f"holds numbers of the kind {dtype}; a direction has floats", key)
    if len(tensor.strides) != len(shape):
        raise invalid(file, "has a shape and strides that do not fit each other", key)
    stored = contents.get(f"{prefix}data/{tensor.storage.key}")
    if stored is None:
        raise invalid(file, "lacks the numbers of a tensor", key)
    width, count = SIZES[dtype], math.prod(shape)
    last = tensor.offset + sum((n - 1) * s for n, s in zip(shape, tensor.strides, strict=True))
    if count and (last + 1) * width > len(stored):
        raise invalid(file, "has a tensor that ends outside of its storage", key)
    if count * width > size:
        raise invalid(file, "declares more numbers than the file has", key)
    if not count or tensor.strides == _contiguous(shape):
        begin = tensor.offset * width
        return Numbers(dtype, shape, stored[begin : begin + count * width])
    return Numbers(dtype, shape, _gathered(file, key, tensor, stored, width))


def _gathered(file: str, key: str, tensor: StoredTensor, stored: bytes, width: int) -> bytes:
    """The numbers of a tensor that are not side by side in its storage, in C order. `width` is the bytes of one.

    They are copied along the longer one of two axes, so that no number becomes an object of its own.

    Raises:
        Refusal: INVALID_VECTOR for more axes than directions have, and for axes that are too long.
    """
    axes = [(n, s) for n, s in zip(tensor.shape, tensor.strides, strict=True) if n != 1]
    if len(axes) > 2:
        shape = list(tensor.shape)
        raise invalid(file, f"has the shape {shape}; a direction has one axis", key)
    (rows, down), (columns, right) = [(1, 1)] * (2 - len(axes)) + axes
    if max(rows, columns) > VECTOR_WIDTH:
        most = max(rows, columns)
        raise invalid(file, f"has an axis of {most}; a direction has 1 to {VECTOR_WIDTH}", key)
    source = memoryview(stored)[: len(stored) // width * width].cast(_INTEGERS[width])
    made = bytearray(rows * columns * width)
    target = memoryview(made).cast(_INTEGERS[width])
    if rows <= columns:
        for row in range(rows):
            begin = tensor.offset + row * down
            end = (row + 1) * columns
            target[row * columns : end] = _line(source, begin, columns, right)
    else:
        for column in range(columns):
            begin = tensor.offset + column * right
            target[column::columns] = _line(source, begin, rows, down)
    return bytes(made)


def _line(source: memoryview[int], begin: int, count: int, step: int) -> memoryview[int]:
    """Every `step`-th number from the number `begin` on, or this number alone again and again."""
    if step:
        return source[begin : begin + (count - 1) * step + 1 : step]
    one = source[begin : begin + 1]
    return memoryview(one.tobytes() * count).cast(_INTEGERS[source.itemsize])


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor in C order."""
    strides = [1]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * length)
    return tuple(strides[::-1]) if shape else ()
