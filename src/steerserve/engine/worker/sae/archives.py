"""Zip archives that others made, checked before anything is taken out of them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steerserve.engine.worker.sae.stored import check_count, failed

DIRECTORY_MAXIMUM = 4 << 20
"""Most bytes read to learn what an archive holds; an entry takes about a hundred."""

_LOCAL_HEADER = 30


class Bounded(io.BufferedReader):
    """A file of which no more than so many bytes are read; `allow` lifts that.

    It has no file number, so that readers take its bytes from here.
    """

    def __init__(self, path: Path, maximum: int) -> None:
        super().__init__(io.FileIO(path))
        self._left: int | None = maximum
        self._name = path

    def allow(self) -> None:
        self._left = None

    def fileno(self) -> int:
        raise io.UnsupportedOperation

    def read(self, size: int | None = -1, /) -> bytes:
        self._check(size)
        return self._counted(super().read(size))

    def readline(self, size: int | None = -1, /) -> bytes:
        left = -1 if self._left is None else self._left + 1
        return self._counted(super().readline(left if size in (None, -1) else size))

    def _check(self, size: int | None) -> None:
        if self._left is not None and size is not None and size > self._left:
            raise failed(self._name, "declares an index too large to be read")

    def _counted(self, found: bytes) -> bytes:
        self._check(len(found))
        if self._left is not None:
            self._left -= len(found)
        return found


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive whose entries lie one after the other, are stored or deflated, and have one name each.

    Raises:
        Refusal: SAE_LOAD_FAILED for what is no zip archive, or one that is built to deceive.
    """
    with Bounded(path, DIRECTORY_MAXIMUM) as file:
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile as error:
            raise failed(path, "is not a complete zip archive") from error
        file.allow()
        with archive:
            _check(path, archive.infolist(), path.stat().st_size)
            yield archive


def _check(path: Path, entries: list[zipfile.ZipInfo], size: int) -> None:
    check_count(path, len(entries))
    if len({entry.filename for entry in entries}) < len(entries):
        raise failed(path, "has two entries of one name")
    end = 0
    for entry in sorted(entries, key=lambda e: e.header_offset):
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise failed(path, f"has an entry of unknown compression, {entry.filename[:80]!r}")
        if is_stored(entry) and entry.file_size != entry.compress_size:
            raise failed(path, f"gives two sizes of the entry {entry.filename[:80]!r}")
        if entry.header_offset < end:
            raise failed(path, "has entries that overlap")
        end = entry.header_offset + _LOCAL_HEADER + entry.compress_size
    if end > size:
        raise failed(path, "ends before its last entry")


def is_stored(entry: zipfile.ZipInfo) -> bool:
    return entry.compress_type == zipfile.ZIP_STORED
