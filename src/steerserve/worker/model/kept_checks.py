"""What the checks of a model found, kept for its next load: they take as long as some passes over a prompt.

A record is for the code of this package and its libraries, one processor or card, and one folder of files. A model
whose rows are stepped alone has none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import torch
import transformers

from steerserve.rules.models.nearness import FOLDER, Checked
from steerserve.worker.model import native
from steerserve.worker.model.native import compiling

MOST = 64
"""The records that are kept. The one that was used longest ago goes first."""


def key(path: Path, quantization: str, devices: Sequence[str], packed: int) -> str:
    """The name of the record of a folder of weights, held in this way on these devices. How many layers are packed
    depends on the free memory of a load, and other layers round otherwise."""
    told: list[object] = [torch.__version__, transformers.__version__]
    told += [quantization, list(devices), torch.get_num_threads(), compiling.processor()]
    told += [packed, native.kernels() is not None]
    told += [torch.cuda.get_device_name(name) for name in devices if name.startswith("cuda")]
    told += [*_files(path), *_files(Path(__file__).parent)]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    """The name, the size and the time of each file, which tell whether it is the same as before."""
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            stat = file.stat()
            yield str(file.relative_to(path)), stat.st_size, stat.st_mtime_ns


def read(name: str) -> Checked | None:
    """The record of this name; None where there is none, or none that can be read."""
    with suppress(OSError, msgspec.DecodeError, compiling.Unavailable):
        file = _folder() / f"{name}.json"
        found = msgspec.json.decode(file.read_bytes(), type=Checked)
        os.utime(file)
        return found
    return None


def keep(name: str, checked: Checked) -> None:
    """Keep a record. Where nothing can be written, the next load makes the checks again."""
    with suppress(OSError, compiling.Unavailable):
        folder = _folder()
        partial = folder / f"{name}.{os.getpid()}.partial"
        partial.write_bytes(msgspec.json.encode(checked))
        partial.rename(folder / f"{name}.json")
        files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        for old in files[:-MOST]:
            old.unlink(missing_ok=True)


def _folder() -> Path:
    folder = compiling.folder() / FOLDER
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder
