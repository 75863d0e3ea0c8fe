"""The content of a model of this machine, as one digest that is the same on every machine.

The digest is the SHA-256 of a text with one line for each file, sorted by name: `<SHA-256 of the file> <bytes> <name>`,
with a line end after each.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path

from steerserve.files import gguf

_PART = 1 << 22
"""Bytes that are read at once. Between two parts, the reading can be ended."""


class ReadingEnded(Exception):
    """The digest was given up before its end."""


def stamp(place: Path) -> str:
    """A digest of the names, sizes and times of the files, which reads none of them. Equal stamps mean that nobody has
    written to the files.

    Raises:
        OSError
    """
    seen = [(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in _files(place)]
    return _sha256(f"{size} {time} {name}" for name, size, time in seen)


def digest(place: Path, ended: threading.Event) -> str:
    """The digest of the content. Every byte is read: a gigabyte takes about a second.

    Raises:
        OSError
        ReadingEnded: `ended` was set.
    """
    lines = []
    for path in _files(place):
        whole, size = hashlib.sha256(), 0
        with path.open("rb") as opened:
            while part := opened.read(_PART):
                if ended.is_set():
                    raise ReadingEnded
                whole.update(part)
                size += len(part)
        lines.append(f"{whole.hexdigest()} {size} {path.name}")
    return _sha256(lines)


def _files(place: Path) -> list[Path]:
    """The files of a model: the files of a GGUF model, or those directly in the folder of a checkpoint. Hidden files do
    not count, because they hold the state of downloads.

    Raises:
        OSError
    """
    if place.name.lower().endswith(".gguf"):
        try:
            return sorted(gguf.entry(place))
        except gguf.GGUFError as error:
            raise FileNotFoundError(str(error)) from error
    return sorted(p for p in place.iterdir() if p.is_file() and not p.name.startswith("."))


def _sha256(lines: Iterable[str]) -> str:
    text = "".join(f"{line}\n" for line in lines)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
