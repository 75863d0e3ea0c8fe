"""Checkpoint folders on this machine: checks the path that a client names, and reads the facts about the model without
loading it."""

from __future__ import annotations

import json
import math
import struct
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules.models.precision import StoredTensor
from steerserve.rules.paths import is_protected
from steerserve.rules.text import line_fault, shown

HEADER_BYTES = 1 << 24
"""The largest header of one file of weights. No other thread of the service runs while a JSON text is parsed, so the
bounds of JSON texts are bounds of that time too."""

HEADERS_BYTES = 1 << 26
"""The most bytes of headers in all files of a checkpoint."""

CONFIGURATION_BYTES = 1 << 22
INDEX_BYTES = 1 << 25
_DIMENSIONS_MAXIMUM = 16
_LENGTH_MAXIMUM = 1 << 40
_ARCHITECTURE_CHARACTERS = 255
_DTYPE_CHARACTERS = 20
STORED_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
STORED_BITS |= {"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32}
STORED_BITS |= {"F64": 64, "I64": 64, "U64": 64, "C64": 64}
"""Dtype as safetensors names it -> bits of an element."""
_INDEX = "model.safetensors.index.json"
JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    _INDEX,
)
"""The JSON files of a checkpoint that an engine reads."""


PathCheck = Callable[[str], None]
"""Raises a Refusal for a path that a client may not name."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The facts about a checkpoint folder. `size_bytes` counts all its files. `parameters` is None if no header tells
    the shapes."""

    path: Path
    architecture: str | None
    dtype: str | None
    parameters: int | None
    size_bytes: int


def resolve(named: str) -> Path:
    """The folder that a client names, with links resolved.

    Raises:
        Refusal: INVALID_LOCAL_PATH when the path is not absolute, does not exist, is not a folder, or is in a system
        folder.
    """
    if "\x00" in named or not named.startswith("/"):
        raise bad_path("the path must be absolute", named)
    try:
        path = Path(named).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise bad_path("the path does not exist", named) from None
    if is_protected(path):
        raise bad_path("the path is in a protected system folder", named)
    check_written(path)
    with reading(path):
        if not path.is_dir():
            raise bad_path("the path is not a folder", named)
    return path


def check_written(path: Path) -> None:
    """Check that a path can be stored and answered. File names are bytes: they may have line ends, and need not be
    UTF-8.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    fault = line_fault(str(path))
    if fault is not None:
        raise bad_path(f"the path cannot be written in UTF-8 on one line: {fault}", str(path))


def resolve_file(named: str) -> Path:
    """The file that a client names. Links in the path of its folder are resolved. A file that is a link keeps its own
    name, because the link may lead into a cache whose file names are digests.

    Raises:
        Refusal: INVALID_LOCAL_PATH, also when the link leads to a system folder.
    """
    folder, _, name = named.rpartition("/")
    try:
        file = resolve(folder or "/") / name
    except Refusal as refusal:
        raise bad_path(refusal.message, named) from None
    if not _is_file(file):
        with reading(file.parent):
            is_there = file.exists()
        raise bad_path("the path is not a file" if is_there else "the file does not exist", named)
    if is_protected(file.resolve()):
        raise bad_path("the path is in a protected system folder", named)
    check_written(file)
    return file


def resolve_either(named: str) -> Path:
    """The folder or the file that a client names, resolved as in `resolve` and `resolve_file`.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    if "\x00" in named or not named.startswith("/") or not _is_file(Path(named)):
        return resolve(named)
    return resolve_file(named)


def read_model(path: Path) -> ModelFolder:
    """The facts about the model in a folder.

    Raises:
        Refusal: INVALID_LOCAL_PATH when the folder is not a checkpoint, cannot be read, or has an index that names
        files outside the folder.
    """
    config = configuration(path)
    check_encoding(path)
    weights = weight_files(path)
    with reading(path):
        total = sum(f.stat().st_size for f in path.iterdir() if f.is_file())
    counts = [t.count for t in stored_tensors(weights)]
    return ModelFolder(
        path=path,
        architecture=architecture(config),
        dtype=dtype(config.get("dtype", config.get("torch_dtype"))),
        parameters=sum(counts) if counts else None,
        size_bytes=total,
    )


def check_encoding(path: Path) -> None:
    """Check that no JSON file that the engine reads begins with a byte order mark, because the engine would refuse it
    only when the model is loaded.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    for name in JSON_FILES:
        if _is_file(file := path / name):
            with reading(path), file.open("rb") as opened:
                if opened.read(len(BOM_UTF8)) == BOM_UTF8:
                    why = f"{name} begins with a byte order mark; save it as UTF-8 without one"
                    raise bad_path(why, str(path))


def model_at(place: Path) -> str | None:
    """The architecture of the model in this folder, or whose weights are this file; None where there is no model."""
    try:
        return architecture(configuration(place if place.is_dir() else place.parent))
    except Refusal:
        return None


def configuration(path: Path) -> dict[str, object]:
    """The `config.json` of a model folder.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    return _json(path / "config.json", path, CONFIGURATION_BYTES)


def architecture(config: Mapping[str, object]) -> str | None:
    """The first architecture that a configuration names; None if it names none."""
    named = config.get("architectures")
    return _text(named[0], _ARCHITECTURE_CHARACTERS) if isinstance(named, list) and named else None


def dtype(named: object) -> str | None:
    """A dtype as a configuration names it; None if the value is not a text."""
    return _text(named, _DTYPE_CHARACTERS)


def weight_files(path: Path) -> list[Path]:
    """The files with weights. Each is a regular file directly in the folder.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    with reading(path):
        names = sorted(f.name for f in path.glob("*.safetensors"))
        pickles = sorted(f.name for f in path.glob("pytorch_model*.bin"))
        has_index = (path / _INDEX).exists()
    if has_index:
        listed = _json(path / _INDEX, path, INDEX_BYTES).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(n, str) for n in listed.values()):
            raise bad_path(f"{_INDEX} has no weight_map", str(path))
        names = sorted(set(listed.values()))
    names = names or pickles
    if not names:
        raise bad_path("the folder has no model weights", str(path))
    files = []
    for name in names:
        file = path / name
        if Path(name).name != name or not _is_file(file):
            raise bad_path(
                f"the weights name {name!r}, which is not a file of the folder", str(path)
            )
        files.append(file)
    return files


def _json(file: Path, folder: Path, most: int) -> dict[str, object]:
    if not _is_file(file):
        raise bad_path(f"the folder has no readable {file.name}", str(folder))
    try:
        with file.open("rb") as opened:
            raw = opened.read(most + 1)
        if len(raw) > most:
            raise bad_path(f"{file.name} is larger than {most} bytes", str(folder))
        value = json.loads(raw)
    except OSError:
        raise bad_path(f"the folder has no readable {file.name}", str(folder)) from None
    except (ValueError, RecursionError):
        raise bad_path(f"{file.name} is not valid JSON", str(folder)) from None
    if not isinstance(value, dict):
        raise bad_path(f"{file.name} is not a JSON object", str(folder))
    return value


def stored_tensors(files: Iterable[Path]) -> list[StoredTensor]:
    """The tensors of those files that are safetensors files. Only headers are read.

    Raises:
        Refusal: INVALID_LOCAL_PATH when a header is damaged or cannot be read, or all headers together are too large.
    """
    listed: list[StoredTensor] = []
    size = 0
    for file in files:
        if file.suffix == ".safetensors":
            raw, available = _header(file)
            size += len(raw)
            if size > HEADERS_BYTES:
                why = f"the headers of the weights are larger than {HEADERS_BYTES} bytes"
                raise bad_path(why, str(file.parent))
            try:
                listed += header_tensors(raw, available)
            except ValueError as error:
                why = f"{file.name} is damaged or cut short: {error}"
                raise bad_path(why, str(file.parent)) from None
    return listed


def _header(file: Path) -> tuple[bytes, int]:
    """The header of a safetensors file as JSON, and the number of bytes behind it. The file begins with 8 bytes of
    length."""
    with reading(file.parent), file.open("rb") as opened:
        prefix = opened.read(8)
        size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        whole = file.stat().st_size
        if not 0 < size <= min(HEADER_BYTES, whole):
            raise bad_path(
                f"{file.name} is not a safetensors file, or is cut short, or has a header of more than "
                f"{HEADER_BYTES} bytes",
                str(file.parent),
            )
        return opened.read(size), whole - 8 - size


def header_tensors(raw: bytes, available: int) -> list[StoredTensor]:
    """The tensors that the JSON header `raw` of a safetensors file lists. `available` bytes follow the header in the
    file. The bytes of the tensors lie one after the other, without gaps and overlaps.

    Raises:
        ValueError: the header is damaged, or names bytes that the file does not have.
    """
    try:
        header = json.loads(raw)
        entries = [(n, entry) for n, entry in header.items() if n != "__metadata__"]
        listed = [_tensor(name, entry, available) for name, entry in entries]
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("a header that is not JSON") from None
    except (KeyError, TypeError, AttributeError, IndexError):
        raise ValueError("a header that is no list of tensors") from None
    end = 0
    for first, last in sorted(tuple(entry["data_offsets"]) for _, entry in entries):
        if first != end:
            raise ValueError("tensors that overlap or leave a gap")
        end = last
    return listed


def _tensor(name: str, entry: dict[str, Any], available: int) -> StoredTensor:
    """One tensor of a header. Its bytes must lie within the available bytes, and their number must fit its shape.

    Raises:
        ValueError: the bytes do not.
    """
    begin, end = entry["data_offsets"]
    shape, bits = entry["shape"], STORED_BITS[entry["dtype"]]
    numbers = [begin, end, *shape]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("not a count")
    # each number is bounded, because the product of huge numbers could take minutes to compute
    if len(shape) > _DIMENSIONS_MAXIMUM or any(length > _LENGTH_MAXIMUM for length in shape):
        raise ValueError("not a shape")
    if end > available or (end - begin) * 8 != math.prod(shape) * bits:
        raise ValueError("offsets do not fit the shape")
    return StoredTensor(name, entry["dtype"], tuple(shape), end - begin)


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn errors of the operating system (no permission, a file that vanished, a bad disk) into a refusal of the
    folder.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    try:
        yield
    except OSError as error:
        why = f"the folder cannot be read: {error.strerror or type(error).__name__}"
        raise bad_path(why, str(folder)) from None


def _text(value: object, longest: int) -> str | None:
    """The first printable characters of a text; None if it has none."""
    if not isinstance(value, str):
        return None
    return "".join(c for c in value[: 2 * longest] if c.isprintable())[:longest] or None


def _is_file(path: Path) -> bool:
    """Whether the path is a regular file. Reading a pipe or a device might never end."""
    try:
        return path.is_file()
    except OSError:
        return False


def bad_path(why: str, named: str) -> Refusal:
    return Refusal("INVALID_LOCAL_PATH", why, local_path=shown(named, 500))
