"""Tensors as a weights file stores them: what is known of them before any is read, and how one is read.

Owns nothing. What a damaged or hostile file raises becomes a refusal here; the readers of each container use it.
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

from steerserve.engine.worker import memory
from steerserve.errors import Refusal

TENSORS_MAXIMUM = 10_000
"""Most tensors in one file; the largest published SAE files hold some dozens."""

AXES_MAXIMUM = 8

BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
}
"""Bytes of one element, by dtype: the dtypes that are read. The names are PyTorch's."""

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
"""What readers of foreign formats raise on damaged input."""

_UNMAPPED = "Cannot allocate memory"


@dataclass(frozen=True, slots=True)
class Info:
    """One tensor by its header. `dtype` is PyTorch's name of it: "float32", "bfloat16", "int64"."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of one file. `scalars` are plain numbers and texts stored beside them, `config` a configuration in it."""

    path: Path
    infos: dict[str, Info]
    reading: Callable[[str], torch.Tensor]
    scalars: dict[str, Scalar] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self.infos.values())

    def read(self, name: str) -> torch.Tensor:
        """One tensor on the processor, shaped and typed as its `Info` says. It may be a view of the mapped file.

        Raises:
            Refusal: SAE_LOAD_FAILED when there is no such tensor, or what is stored is not what the header says.
        """
        if name not in self.infos:
            raise failed(
                self.path, f"has no tensor {name!r}, found {shown(self.infos)}", tensor=name
            )
        with faults(self.path, is_reading=True):
            tensor = self.reading(name)
        info = self.infos[name]
        if tuple(tensor.shape) != info.shape or name_of(tensor.dtype) != info.dtype:
            raise failed(self.path, f"holds another {name!r} than its header says", tensor=name)
        return tensor


def info_of(path: Path, name: str, shape: tuple[int, ...], dtype: str) -> Info:
    """What a header says of a tensor.

    Raises:
        Refusal: SAE_LOAD_FAILED for a dtype that is not read, too many axes, or an axis of negative length.
    """
    if dtype not in BYTES:
        raise failed(path, f"holds {name!r} as {dtype}, which cannot be read", tensor=name)
    if len(shape) > AXES_MAXIMUM or any(type(n) is not int or n < 0 for n in shape):
        raise failed(path, f"gives {name!r} the shape {list(shape)[:20]}", tensor=name)
    return Info(shape, dtype, prod(shape) * BYTES[dtype])


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_count(path: Path, count: int) -> None:
    """
    Raises:
        Refusal: SAE_LOAD_FAILED for more than `TENSORS_MAXIMUM`.
    """
    if count > TENSORS_MAXIMUM:
        raise failed(path, f"holds {count} entries, more than {TENSORS_MAXIMUM}")


@contextmanager
def faults(path: Path, *, is_reading: bool = False) -> Iterator[None]:
    """What a damaged file makes its reader raise becomes a refusal that names the file and the fault. Memory that runs out
    while a tensor is read is no fault of the file; while headers are read it is.

    Raises:
        Refusal: SAE_LOAD_FAILED.
    """
    try:
        yield
    except _FAULTS as error:
        if is_reading and (memory.is_exhausted(error) or _UNMAPPED in str(error)):
            raise MemoryError(str(error)) from error
        raise failed(path, f"cannot be read: {_fault(error, path)}") from error


def failed(path: Path, what: str, **details: Any) -> Refusal:
    """The refusal of a file, which is named without its folder."""
    return Refusal("SAE_LOAD_FAILED", f"{path.name} {what}", file=path.name, **details)


def shown(infos: Mapping[str, Info], most: int = 20) -> str:
    """The names and shapes found, for a refusal."""
    found = [f"{name[:80]} {list(info.shape)}" for name, info in list(infos.items())[:most]]
    return (
        ", ".join(found) + (f" and {len(infos) - most} more" if len(infos) > most else "")
        or "(none)"
    )


def _fault(error: BaseException, path: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    told = str(error).replace(f"{path.parent}/", "").strip().split("\n", 1)[0][:200]
    return f"{type(error).__name__}: {told}" if told else type(error).__name__
