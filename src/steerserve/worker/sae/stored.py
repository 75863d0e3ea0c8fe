"""Tensors as a weights file stores them: the headers, which are known first, and reading one tensor.

The readers of all containers use this module. It turns the exceptions that damaged and hostile files cause into
refusals.
"""

from __future__ import annotations

import pickle
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from steerserve.errors import Refusal
from steerserve.rules.bounds import ARCHIVE_ENTRIES
from steerserve.worker import memory

AXES_MAXIMUM = 8

BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
}
"""The bytes of one element for each dtype that is read, by PyTorch's names."""

Scalar = float | int | str | bool

_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SafetensorError,
    SyntaxError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""The exceptions that readers raise on damaged files."""

_UNMAPPED = "Cannot allocate memory"


@dataclass(frozen=True, slots=True)
class Info:
    """The header of one tensor. `dtype` is PyTorch's name: "float32", "bfloat16", "int64"."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of one file. `scalars` are plain numbers and texts beside them; `config` is a configuration in the
    file."""

    path: Path
    infos: dict[str, Info]
    reading: Callable[[str], torch.Tensor]
    scalars: dict[str, Scalar] = field(default_factory=dict)
    config: dict[str, object] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self.infos.values())

    def read(self, name: str) -> torch.Tensor:
        """One tensor in main memory, with the shape and dtype of its `Info`. It may be a view of the mapped file.

        Raises:
            Refusal: SAE_LOAD_FAILED when there is no such tensor, or when its data contradict the header.
        """
        if name not in self.infos:
            raise failed(
                self.path, f"has no tensor {name!r}; it has {shown(self.infos)}", tensor=name
            )
        with faults(self.path, is_reading=True):
            tensor = self.reading(name)
        info = self.infos[name]
        if tuple(tensor.shape) != info.shape or name_of(tensor.dtype) != info.dtype:
            raise failed(self.path, f"holds another {name!r} than its header says", tensor=name)
        return tensor


def info_of(path: Path, name: str, shape: tuple[int, ...], dtype: str) -> Info:
    """The checked header of a tensor.

    Raises:
        Refusal: SAE_LOAD_FAILED for a dtype that cannot be read, too many axes, or an axis of negative length.
    """
    if dtype not in BYTES:
        raise failed(path, f"holds {name!r} as {dtype}, which cannot be read", tensor=name)
    if len(shape) > AXES_MAXIMUM or any(type(n) is not int or n < 0 for n in shape):
        raise failed(path, f"gives {name!r} the shape {list(shape)[:20]}", tensor=name)
    return Info(shape, dtype, prod(shape) * BYTES[dtype])


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_count(path: Path, count: int) -> None:
    """Check the number of entries in a file.

    Raises:
        Refusal: SAE_LOAD_FAILED for more than `ARCHIVE_ENTRIES`.
    """
    if count > ARCHIVE_ENTRIES:
        raise failed(path, f"holds {count} entries, more than {ARCHIVE_ENTRIES}")


@contextmanager
def faults(path: Path, *, is_reading: bool = False) -> Iterator[None]:
    """Turns the exceptions of a file's reader into a refusal with the name of the file and the fault.

    If memory runs out while a tensor is read, the file is not at fault, and MemoryError is raised. If it runs out while
    headers are read, the file is at fault.

    Raises:
        Refusal: SAE_LOAD_FAILED.
    """
    try:
        yield
    except _FAULTS as error:
        if is_reading and (memory.is_exhausted(error) or _UNMAPPED in str(error)):
            raise MemoryError(str(error)) from error
        raise failed(path, f"cannot be read: {_fault(error, path)}") from error


def failed(path: Path, fault: str, **details: Any) -> Refusal:
    """The refusal of a file, with its name and without its folder."""
    return Refusal("SAE_LOAD_FAILED", f"{path.name} {fault}", file=path.name, **details)


def shown(infos: Mapping[str, Info], most: int = 20) -> str:
    """Names and shapes of tensors, for the message of a refusal."""
    texts = [f"{name[:80]} {list(info.shape)}" for name, info in list(infos.items())[:most]]
    return (
        ", ".join(texts) + (f" and {len(infos) - most} more" if len(infos) > most else "")
        or "(none)"
    )


def _fault(error: BaseException, path: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).replace(f"{path.parent}/", "").strip().split("\n", 1)[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
