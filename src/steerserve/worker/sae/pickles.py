"""Files of `torch.save`: a zip archive of storages (since PyTorch 1.6), or a stream of pickles followed by storages.

Unpickling can call any function that a file names. Therefore the names are read first, without calling anything, and
compared with a list that is shorter than PyTorch's own. Then PyTorch's restricted reader reads the file. Nothing else
ever reads it.
"""

from __future__ import annotations

import io
import pickletools
import re
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch
from torch.serialization import skip_data

from steerserve.rules.bounds import PICKLE_INSTRUCTIONS, WEIGHTS_INDEX_BYTES
from steerserve.worker.sae import archives
from steerserve.worker.sae.stored import Info, Scalar, Tensors, failed, info_of, name_of

DECLARED_MAXIMUM = 4
"""Tensors may share storage (tied weights), so that a file may declare this many times its size."""

DEPTH_MAXIMUM = 8
VALUES_MAXIMUM = 20_000
WRAPPERS = ("state_dict", "model_state_dict", "autoencoder", "model")
CONFIGS = ("cfg", "config")

_ALLOWED = re.compile(
    r"collections\.OrderedDict|builtins\.set"
    r"|torch\.nn\.parameter\.Parameter|torch\.(Size|device|Tensor)"
    r"|torch\._utils\._rebuild_(tensor|tensor_v2|tensor_v3|parameter)"
    r"|torch\.(cuda\.)?(Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage"
    r"|torch\.storage\.(UntypedStorage|TypedStorage)"
    r"|torch\.(bool|bfloat16|u?int(8|16|32|64)|float(16|32|64|8_e4m3fn|8_e5m2))"
)
"""All names that the pickle of a dict of tensors needs."""

_PICKLES_BEFORE_STORAGES = 5  # magic number, protocol, system, the object, keys of the storages


def open_pickle(path: Path) -> Tensors:
    """The tensors of a dict that `torch.save` wrote, by name. The names of nested dicts are joined with dots.

    If a level has no tensors and exactly one of `WRAPPERS`, the wrapper adds no prefix to the names, and a
    configuration beside it becomes `config`.

    Raises:
        Refusal: SAE_LOAD_FAILED for a pickle that names something other than tensors, and for tensors larger than their
            storage.
    """
    with path.open("rb") as file:
        is_zip = file.read(len(archives.ZIP)) == archives.ZIP
    value = _mapped(path) if is_zip else _stream(path)
    _check_object(path, value)
    leaves, config = _flat(path, value)
    tensors = {n: v for n, v in leaves.items() if isinstance(v, torch.Tensor)}
    infos = {name: _info(path, name, tensor) for name, tensor in tensors.items()}
    _check_sizes(path, infos, tensors)

    @cache
    def whole() -> dict[str, Any]:
        return _flat(path, torch.load(path, map_location="cpu", weights_only=True))[0]

    def read(name: str) -> torch.Tensor:
        tensor: torch.Tensor = tensors[name] if is_zip else whole()[name]
        return tensor.detach()

    scalars = {n: v for n, v in leaves.items() if isinstance(v, Scalar)}
    return Tensors(path, infos, read, scalars, config)


def _mapped(path: Path) -> Any:
    """The object in a zip archive. Its tensors are views of the mapped file."""
    left = PICKLE_INSTRUCTIONS
    with archives.opened(path) as archive:
        for entry in archive.infolist():
            if not archives.is_stored(entry):
                raise failed(path, f"has a compressed entry, {entry.filename[:80]!r}")
            if entry.filename.endswith(".pkl"):
                if entry.file_size > WEIGHTS_INDEX_BYTES:
                    raise failed(path, f"has an index larger than {WEIGHTS_INDEX_BYTES} bytes")
                left -= _check_names(path, io.BytesIO(archive.read(entry)), left)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _stream(path: Path) -> Any:
    """The object in the older layout. Its tensors have their shapes and no values."""
    left = PICKLE_INSTRUCTIONS
    with archives.Bounded(path, WEIGHTS_INDEX_BYTES) as file:
        for _ in range(_PICKLES_BEFORE_STORAGES):
            left -= _check_names(path, file, left)
    with archives.Bounded(path, WEIGHTS_INDEX_BYTES) as file, skip_data():
        return torch.load(file, map_location="cpu", weights_only=True)


def _check_names(path: Path, file: IO[bytes], most: int) -> int:
    """Check every name in a pickle, without executing the pickle, and return the number of its instructions.

    Raises:
        Refusal: SAE_LOAD_FAILED for a name that is not in `_ALLOWED`, and for more than `most` instructions.
    """
    count = 0
    for code, argument, _ in pickletools.genops(file):
        count += 1
        if count > most:
            raise failed(path, f"has an index of more than {PICKLE_INSTRUCTIONS} instructions")
        if code.name == "GLOBAL":
            name = str(argument).replace(" ", ".").replace("__builtin__", "builtins")
            if not _ALLOWED.fullmatch(name):
                raise failed(
                    path, f"is a pickle that calls {name[:120]}; nothing was executed", found=name
                )
        elif code.name in ("INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            raise failed(path, "is a pickle that calls more than tensors; nothing was executed")
    return count


def _check_object(path: Path, value: object) -> None:
    """Check depth and size before other code walks the object: a few bytes of pickle can repeat one dict a thousand
    times, or make a dict that contains itself.

    Raises:
        Refusal: SAE_LOAD_FAILED.
    """
    if not isinstance(value, dict):
        raise failed(path, f"holds a {type(value).__name__}, not a dict of tensors")
    pending: list[tuple[object, int]] = [(value, 0)]
    seen = 0
    while pending:
        part, depth = pending.pop()
        if isinstance(part, dict) and not all(isinstance(key, str | int) for key in part):
            raise failed(path, "has a key that is neither a text nor a number")
        inner = list(part.values()) if isinstance(part, dict) else part
        if not isinstance(inner, list | tuple | set):
            continue
        seen += len(inner)
        if seen > VALUES_MAXIMUM or depth == DEPTH_MAXIMUM:
            raise failed(
                path, f"nests more than {DEPTH_MAXIMUM} deep, or over {VALUES_MAXIMUM} values"
            )
        pending += [(each, depth + 1) for each in inner]


def _flat(
    path: Path, values: dict[object, object], prefix: str = "", *, is_outer: bool = True
) -> tuple[dict[str, object], dict[str, object]]:
    """Every value by its dotted name, and the configuration."""
    leaves: dict[str, object] = {}
    config: dict[str, object] = {}
    wrapper = _wrapper(values) if is_outer else None
    for key, value in values.items():
        inner = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        more = {f"{prefix}{key}": value}
        if is_outer and key in CONFIGS and isinstance(value, dict):
            config |= _plain(value)
            continue
        if isinstance(inner, dict):
            is_wrapper = key == wrapper
            below = prefix if is_wrapper else f"{prefix}{key}."
            more, inner_config = _flat(path, inner, below, is_outer=is_wrapper)
            config |= inner_config
        if leaves.keys() & more.keys():
            raise failed(path, f"has two values named {min(leaves.keys() & more.keys())[:80]!r}")
        leaves |= more
    return leaves, config


def _wrapper(values: dict[object, object]) -> str | None:
    wrappers = [name for name in WRAPPERS if isinstance(values.get(name), dict)]
    has_tensors = any(isinstance(value, torch.Tensor) for value in values.values())
    return wrappers[0] if len(wrappers) == 1 and not has_tensors else None


def _plain(value: Any) -> Any:
    """A value as JSON holds it. Values of types that JSON lacks become text."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, Scalar | None) else str(value)[:200]


def _info(path: Path, name: str, tensor: torch.Tensor) -> Info:
    """The header of a tensor.

    Raises:
        Refusal: SAE_LOAD_FAILED for a tensor that declares more bytes than its storage has.
    """
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise failed(path, f"holds {name!r} in a layout that is not read", tensor=name)
    info = info_of(path, name, tuple(tensor.shape), name_of(tensor.dtype))
    stored = tensor.untyped_storage().nbytes()
    if info.size_bytes > stored:
        what = f"declares {info.size_bytes} bytes of {name!r} and stores {stored}"
        raise failed(path, what, tensor=name)
    return info


def _check_sizes(path: Path, infos: dict[str, Info], tensors: dict[str, torch.Tensor]) -> None:
    size = path.stat().st_size
    declared = sum(info.size_bytes for info in infos.values())
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()
    }
    if declared > DECLARED_MAXIMUM * size or sum(storages.values()) > size:
        raise failed(path, f"declares {declared} bytes of tensors and has {size}")
