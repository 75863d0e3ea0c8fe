"""NumPy's archives. Each array is an entry with its own header, and is read without any pickle.

Source: NumPy's description of the npy format, versions 1.0 and 2.0 (numpy.lib.format).
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.lib import format as npy

from steerserve.worker import memory
from steerserve.worker.sae import archives
from steerserve.worker.sae.stored import Info, Scalar, Tensors, failed, info_of

HARMLESS = 64 << 20
"""A compressed archive of any size may unpack to this many bytes, because biases of zeros compress a thousandfold."""

RATIO_MAXIMUM = 50
"""Above HARMLESS, an archive may unpack to this many times its size. Weights do not compress better; a bomb does."""

TEXT_MAXIMUM = 1000
_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class _Array:
    """An array as its header describes it."""

    entry: str
    dtype: np.dtype
    shape: tuple[int, ...]
    is_fortran: bool


def open_npz(path: Path) -> Tensors:
    """The arrays of a `.npz` by their headers.

    Raises:
        Refusal: SAE_LOAD_FAILED for objects and structures, for headers that contradict the archive, and for archives
            that would unpack to far more than their size.
    """
    infos: dict[str, Info] = {}
    arrays: dict[str, _Array] = {}
    scalars: dict[str, Scalar] = {}
    with archives.opened(path) as archive:
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name == entry.filename:
                raise failed(path, f"holds {name[:80]!r}, which is not an array")
            with archive.open(entry) as file:
                array, header = _header(path, name, entry, file)
                if array.dtype.kind == "U" and array.shape == ():
                    scalars[name] = _text(path, name, array, file)
                    continue
            infos[name] = info = info_of(path, name, array.shape, array.dtype.name)
            if header + info.size_bytes != entry.file_size:
                raise failed(
                    path, f"declares {info.size_bytes} bytes of {name!r} and stores another number"
                )
            arrays[name] = array
        _check_unpacked(path, archive.infolist())

    def read(name: str) -> torch.Tensor:
        with archives.opened(path) as archive, archive.open(arrays[name].entry) as file:
            return _tensor(path, name, arrays[name], file)

    return Tensors(path, infos, read, scalars)


def _header(path: Path, name: str, entry: zipfile.ZipInfo, file: IO[bytes]) -> tuple[_Array, int]:
    """The description of an array, and the length of its header in bytes."""
    version = npy.read_magic(file)
    reader = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if reader is None:
        raise failed(path, f"has a header of version {version} for {name!r}")
    shape, is_fortran, dtype = reader(file)
    if dtype.hasobject or dtype.kind not in "fiubU":
        raise failed(path, f"holds {name!r} as {dtype}, which is not read", tensor=name)
    return _Array(entry.filename, dtype, shape, is_fortran), file.tell()


def _check_unpacked(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Check the sizes of deflated entries, which only the directory states. Stored entries have the size of their
    data."""
    unpacked = sum(e.file_size for e in entries if not archives.is_stored(e))
    if unpacked > max(HARMLESS, RATIO_MAXIMUM * path.stat().st_size):
        raise failed(path, f"would unpack to {unpacked} bytes, out of proportion to its size")
    free = memory.free(torch.device("cpu"))
    if unpacked > free:
        raise failed(path, f"would unpack to {unpacked} bytes, and {free} are free")


def _text(path: Path, name: str, array: _Array, file: IO[bytes]) -> str:
    if array.dtype.itemsize > 4 * TEXT_MAXIMUM:
        raise failed(path, f"holds a text of more than {TEXT_MAXIMUM} characters, {name!r}")
    return str(np.frombuffer(file.read(array.dtype.itemsize), array.dtype, 1)[0])


def _tensor(path: Path, name: str, array: _Array, file: IO[bytes]) -> torch.Tensor:
    _header(path, name, zipfile.ZipInfo(array.entry), file)
    flat = np.empty(int(np.prod(array.shape, dtype=object)), array.dtype)
    target = flat.view(np.uint8).data  # reading whole entries would hold each array in memory twice
    at = 0
    while at < len(target):
        part = file.read(min(_CHUNK, len(target) - at))
        if not part:
            raise failed(path, f"ends within {name!r}", tensor=name)
        target[at : at + len(part)] = part
        at += len(part)
    flat = flat.astype(array.dtype.newbyteorder("="), copy=False)
    if array.is_fortran:
        return torch.from_numpy(flat.reshape(array.shape[::-1])).permute(
            *reversed(range(len(array.shape)))
        )
    return torch.from_numpy(flat.reshape(array.shape))
