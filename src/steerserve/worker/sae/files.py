"""Reads weights files and configurations from disk: headers first, and without executing anything in them.

It knows containers (safetensors, NumPy's npz, PyTorch's zip and older pickles, JSON) and nothing about SAEs.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open

from steerserve.rules.bounds import WEIGHTS_INDEX_BYTES
from steerserve.rules.saes.shapes import plain_names
from steerserve.worker.sae import archives, npz, pickles
from steerserve.worker.sae.stored import Info, Tensors, check_count, failed, faults, info_of

__all__ = ["SUFFIXES", "Info", "Tensors", "check_index", "open_tensors", "read_json"]

JSON_MAXIMUM = 1_000_000
"""The largest configuration in bytes."""

_HEADER_LENGTH = 8
_SAFETENSORS = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


def open_tensors(path: Path) -> Tensors:
    """The tensors of a `.safetensors`, `.npz`, `.pt`, `.pth` or `.bin` file, by their headers.

    Nothing is executed, and no tensor is read. The older layout of PyTorch has no headers: the first `read` of such a
    file reads all its tensors.

    Raises:
        Refusal: SAE_LOAD_FAILED for a file that is missing, empty or damaged, that would execute code, that declares
            more than it stores, or that has another suffix.
    """
    opening = _OPENING.get(path.suffix.lower())
    if opening is None:
        raise failed(path, f"is not a weights file of a known kind: {', '.join(SUFFIXES)}")
    _check_is_file(path)
    with faults(path):
        return _unwrapped(opening(path))


def check_index(path: Path, most: int) -> None:
    """Check, before a file is opened, that the list of its tensors has at most so many bytes, and that each tensor can
    be read alone.

    Raises:
        Refusal: SAE_LOAD_FAILED, also for a file of PyTorch's older layout.
    """
    _check_is_file(path)
    with faults(path):
        with path.open("rb") as begun:
            head = begun.read(_HEADER_LENGTH)
        if path.suffix.lower() == ".safetensors":
            is_large = most < int.from_bytes(head, "little") < path.stat().st_size
        elif head.startswith(archives.ZIP):
            with archives.Bounded(path, most) as file, zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
            is_large = any(e.filename.endswith(".pkl") and e.file_size > most for e in entries)
        elif path.suffix.lower() in _PICKLED:
            raise failed(path, "is no file of torch.save of PyTorch 1.6 or later; save it again")
        else:
            is_large = False
    if is_large:
        raise failed(path, f"has an index larger than {most} bytes")


def _unwrapped(tensors: Tensors) -> Tensors:
    """The same tensors under names without PyTorch's wrappers (`module.`, `_orig_mod.`)."""
    stored = plain_names([*tensors.infos, *tensors.scalars])
    return replace(
        tensors,
        infos={plain: tensors.infos[n] for plain, n in stored.items() if n in tensors.infos},
        scalars={plain: tensors.scalars[n] for plain, n in stored.items() if n in tensors.scalars},
        reading=lambda plain: tensors.reading(stored[plain]),
    )


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file.

    Raises:
        Refusal: SAE_LOAD_FAILED when the file is missing, too large or not a JSON object.
    """
    text = _text(path, JSON_MAXIMUM)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise failed(path, "is not valid JSON") from error
    if not isinstance(value, dict):
        raise failed(path, "is not a JSON object")
    return value


def _text(path: Path, maximum: int) -> bytes:
    _check_is_file(path)
    if path.stat().st_size > maximum:
        raise failed(path, f"is larger than {maximum} bytes")
    with faults(path):
        return path.read_bytes()


def _check_is_file(path: Path) -> None:
    """Refuse pipes and devices: reading a pipe could wait forever, and a device may never end."""
    try:
        is_file, is_empty = path.is_file(), path.stat().st_size == 0
    except (OSError, ValueError) as error:
        raise failed(path, "is missing") from error
    if not is_file:
        raise failed(path, "is not a regular file")
    if is_empty:
        raise failed(path, "is empty")


def _open_safetensors(path: Path) -> Tensors:
    """The tensors of a safetensors file. The library checks sizes, offsets, gaps and overlaps of the header."""
    infos: dict[str, Info] = {}
    with path.open("rb") as begun:
        length = int.from_bytes(begun.read(_HEADER_LENGTH), "little")
    if WEIGHTS_INDEX_BYTES < length < path.stat().st_size:
        raise failed(path, f"has a header larger than {WEIGHTS_INDEX_BYTES} bytes")
    # with framework="pt" the whole file is mapped as writable, which fails for a file larger than the memory
    with safe_open(path, framework="np") as file:
        names = list(file.keys())
        check_count(path, len(names))
        for name in names:
            part = file.get_slice(name)
            dtype = str(part.get_dtype())
            shape = tuple(part.get_shape())
            infos[name] = info_of(path, name, shape, _SAFETENSORS.get(dtype, dtype))

    def read(name: str) -> torch.Tensor:
        with safe_open(path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    return Tensors(path, infos, read)


_PICKLED = (".pt", ".pth", ".bin")
_OPENING: dict[str, Callable[[Path], Tensors]] = {
    ".safetensors": _open_safetensors,
    ".npz": npz.open_npz,
    **dict.fromkeys(_PICKLED, pickles.open_pickle),
}
SUFFIXES = tuple(_OPENING)
