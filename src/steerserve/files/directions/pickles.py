"""Files of `torch.save` in the zip layout, read without PyTorch.

Python's unpickler reads them, and finds no names but those of tensors. It runs in a process that reads one file
(`engines/sandbox/directions.py`).
Source: the archives that `torch.save` writes since PyTorch 1.6.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
"""The most values in the dict of a file."""

AXES_MAXIMUM = 8
DECLARED_MAXIMUM = 4
"""Tensors may share storage, so that a file may declare this many times its size."""

ADVICE = (
    "save the directions as plain tensors instead: torch.save({layer: direction, ...}, path), or "
    "safetensors.torch.save_file({'layer12': direction, ...}, path)"
)
_INTEGERS: Mapping[int, Literal["H", "I", "Q"]] = {2: "H", 4: "I", 8: "Q"}
"""The integers by which numbers of so many bytes are copied."""


class _Odd(Exception):
    """The pickle has a value that no dict of tensors has. The message says which."""


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    key: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor as the pickle describes it: its storage, where it begins there, its shape and its strides, all counted
    in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tensor(storage: object, offset: object, shape: object, strides: object, *_: object) -> _Tensor:
    if not isinstance(storage, _Storage) or not isinstance(offset, int) or offset < 0:
        raise _Odd("is a pickle with a tensor of an unknown form")
    return _Tensor(storage, offset, _counts(shape), _counts(strides))


def _counts(value: object) -> tuple[int, ...]:
    is_counts = isinstance(value, tuple) and len(value) <= AXES_MAXIMUM
    if not is_counts or not all(type(n) is int and 0 <= n < 1 << 40 for n in value):  # type: ignore[attr-defined]
        raise _Odd("is a pickle with a tensor whose shape is no list of counts")
    return value  # type: ignore[return-value]


_NAMES: Mapping[str, object] = {
    "collections.OrderedDict": OrderedDict,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.DoubleStorage": "float64",
    **{
        f"torch.{kind}Storage": kind.lower()
        for kind in ("Long", "Int", "Short", "Char", "Byte", "Bool", "Untyped")
    },
}
"""All names that a pickle may have, with what stands for them."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        named = f"{module}.{name}"
        if named not in _NAMES:
            raise _Odd(f"is a pickle that names {shown(named)}")
        return _NAMES[named]

    def persistent_load(self, reference: object) -> _Storage:
        match reference:
            case ("storage", str(dtype), str(key), _, int()):
                return _Storage(dtype, key)
        raise _Odd("is a pickle that refers to something other than a storage")


def read(file: str, data: bytes) -> Numbers | list[tuple[str, Numbers | None]]:
    """The tensor in a file, or its tensors by their names, with None for what is no tensor.

    Raises:
        Refusal: INVALID_VECTOR for a damaged archive, for a pickle that names more than tensors, and for a value that
            is neither a tensor nor a dict.
    """
    contents = _contents(file, data)
    pickles = [name for name in contents if name.endswith("data.pkl")]
    if len(pickles) != 1:
        raise invalid(file, f"is no file of torch.save; {ADVICE}")
    folder = pickles[0].removesuffix("data.pkl")
    if contents.get(f"{folder}byteorder", b"little") != b"little":
        raise invalid(file, "was written by a big-endian machine")
    value = _object(file, contents[pickles[0]])
    storages = {name.removeprefix(f"{folder}data/"): one for name, one in contents.items()}
    if isinstance(value, _Tensor):
        return _numbers(file, "the tensor", value, storages, len(data))
    if not isinstance(value, dict):
        raise invalid(file, f"holds neither a tensor nor a dict of tensors; {ADVICE}")
    if len(value) > VALUES_MAXIMUM:
        raise invalid(file, f"holds more than {VALUES_MAXIMUM} values")
    named: list[tuple[str, Numbers | None]] = []
    read_bytes = 0
    for key, one in value.items():
        numbers = None
        if isinstance(one, _Tensor):
            numbers = _numbers(file, str(key), one, storages, len(data))
            read_bytes += len(numbers.data)
        if read_bytes > DECLARED_MAXIMUM * len(data):
            raise invalid(file, "declares far more numbers than it has")
        named.append((str(key), numbers))
    return named


def refuse_other(file: str) -> Refusal:
    """The refusal of a pickle that is no archive of tensors."""
    return invalid(
        file,
        f"is a pickle, or a file of a PyTorch before 1.6; nothing of it was executed; {ADVICE}",
    )


def _contents(file: str, data: bytes) -> dict[str, bytes]:
    """The entries of the archive."""
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
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, EOFError, ValueError, OverflowError, NotImplementedError) as error:
        raise invalid(file, "is not a complete zip archive") from error
    except (RuntimeError, OSError) as error:  # an encrypted entry, or an offset outside of the file
        raise invalid(file, "has an entry that cannot be read") from error


def _object(file: str, index: bytes) -> object:
    """The object that a pickle describes."""
    if len(index) > PICKLED_INDEX_BYTES:
        raise invalid(file, f"has an index larger than {PICKLED_INDEX_BYTES} bytes")
    try:
        if any(count == PICKLE_INSTRUCTIONS for count, _ in enumerate(pickletools.genops(index))):
            raise _Odd(f"has an index of more than {PICKLE_INSTRUCTIONS} instructions")
        value = _Unpickler(io.BytesIO(index)).load()
        if isinstance(value, dict) and not all(isinstance(key, str | int) for key in value):
            raise _Odd("is a pickle with a key that is neither a text nor a number")
        return value
    except _Odd as odd:
        raise invalid(file, f"{odd}; nothing was executed; {ADVICE}") from None
    except Exception as error:
        # a damaged pickle may raise any error
        raise invalid(file, "has a damaged pickle") from error


def _numbers(
    file: str, key: str, tensor: _Tensor, storages: Mapping[str, bytes], size: int
) -> Numbers:
    """Raises:
    Refusal: INVALID_VECTOR naming the tensor: no floats, or outside of its storage.
    """
    dtype, shape, strides = tensor.storage.dtype, tensor.shape, tensor.strides
    if dtype not in SIZES:
        raise invalid(file, f"holds numbers of the kind {dtype}; a direction has floats", key)
    if len(strides) != len(shape):
        raise invalid(file, "has a shape and strides that do not fit each other", key)
    stored = storages.get(tensor.storage.key)
    if stored is None:
        raise invalid(file, "lacks the numbers of a tensor", key)
    width, count = SIZES[dtype], math.prod(shape)
    last = tensor.offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if count and (last + 1) * width > len(stored):
        raise invalid(file, "has a tensor that ends outside of its storage", key)
    if count * width > size:
        raise invalid(file, "declares more numbers than the file has", key)
    axes = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n != 1]
    begin = tensor.offset * width
    lengths = [n for n, _ in axes]
    if not count or all(axes[at][1] == math.prod(lengths[at + 1 :]) for at in range(len(axes))):
        return Numbers(dtype, shape, stored[begin : begin + count * width])
    if len(axes) > 2:
        raise invalid(file, f"has the shape {list(shape)}; a direction has one axis", key)
    if max(lengths) > VECTOR_WIDTH:
        why = f"has an axis of {max(lengths)}; a direction has 1 to {VECTOR_WIDTH}"
        raise invalid(file, why, key)
    (rows, down), (columns, right) = [(1, 0)] * (2 - len(axes)) + axes
    numbers = memoryview(stored)[: len(stored) // width * width].cast(_INTEGERS[width])
    lines = [_line(numbers, tensor.offset + row * down, columns, right) for row in range(rows)]
    return Numbers(dtype, shape, b"".join(lines))


def _line(numbers: memoryview[int], begin: int, count: int, step: int) -> bytes:
    """Every `step`-th number from the number `begin` on, or this number alone again and again."""
    if step == 0:
        return numbers[begin : begin + 1].tobytes() * count
    return numbers[begin : begin + (count - 1) * step + 1 : step].tobytes()
