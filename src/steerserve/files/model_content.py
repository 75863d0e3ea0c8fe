"""The content of a model of this machine, as one digest that is the same on every machine.

Only files that decide what the model computes or reads count: `COUNTED`. The digest is `v2:` and the SHA-256 of a text
with one line for each file, sorted by name: `<SHA-256 of the file> <bytes> <name>`, with a line end after each. The
files of a GGUF model have their numbers in the place of their names.

The first version of this digest had no `v2:`, and counted every file by its name. It is told as an alias.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from steerserve.files import gguf

VERSION = "v2:"
COUNTED = (
    *("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf"),  # weights
    *("config.json", "*_config.json", "*.index.json"),
    *("tokenizer.*", "vocab*", "merges*", "added_tokens.json", "special_tokens_map.json"),
    *("*.model", "*.spm", "*.tiktoken", "tekken.json"),  # tokenizers too
    *("chat_template*", "*.jinja"),
    "*.py",
)
"""Patterns of the names of files that count, in small letters."""
NOT_COUNTED = ("training_args.*", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*")
"""Patterns of files that match the others, and only say how a training goes on."""
_PART = 1 << 22
"""Bytes that are read at once. Between two parts, the reading can be ended."""


class ReadingEnded(Exception):
    """The digest was given up before its end."""


class Digests(NamedTuple):
    """The digests of one content."""

    content: str
    first_version: str


def stamp(place: Path) -> str:
    """A digest of the names, sizes and times of the files that count, which reads none of them. Equal stamps mean that
    nobody has written to these files.

    Raises:
        OSError
    """
    files = [path for path in _files(place) if _is_counted(path)]
    seen = [(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
    return _sha256(f"{size} {time} {name}" for name, size, time in seen)


def digest(place: Path, ended: threading.Event) -> Digests:
    """The digests of the content. Every byte is read: a gigabyte takes about a second.

    Raises:
        OSError
        ReadingEnded: `ended` was set.
    """
    counted, every = [], []
    for number, path in enumerate(_files(place), 1):
        whole, size = hashlib.sha256(), 0
        with path.open("rb") as opened:
            while part := opened.read(_PART):
                if ended.is_set():
                    raise ReadingEnded
                whole.update(part)
                size += len(part)
        line = f"{whole.hexdigest()} {size}"
        every.append(f"{line} {path.name}")
        if _is_counted(path):
            counted.append(f"{line} {number if _is_gguf(path) else path.name}")
    return Digests(VERSION + _sha256(counted), _sha256(every))


def _is_counted(path: Path) -> bool:
    name = path.name.lower()
    is_named = any(fnmatchcase(name, pattern) for pattern in COUNTED)
    return is_named and not any(fnmatchcase(name, pattern) for pattern in NOT_COUNTED)


def _is_gguf(path: Path) -> bool:
    return path.name.lower().endswith(".gguf")


def _files(place: Path) -> list[Path]:
    """The files of a model: the files of a GGUF model, or those directly in the folder of a checkpoint. Hidden files do
    not count, because they hold the state of downloads.

    Raises:
        OSError
    """
    if _is_gguf(place):
        try:
            return sorted(gguf.entry(place))
        except gguf.GGUFError as error:
            raise FileNotFoundError(str(error)) from error
    return sorted(p for p in place.iterdir() if p.is_file() and not p.name.startswith("."))


def _sha256(lines: Iterable[str]) -> str:
    text = "".join(f"{line}\n" for line in lines)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
