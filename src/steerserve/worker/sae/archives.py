"""Untrusted zip archives, checked before any entry is read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steerserve.rules import archive as archive_rules
from steerserve.rules.archive import is_stored
from steerserve.rules.bounds import ARCHIVE_LIST_BYTES
from steerserve.worker.sae.stored import check_count, failed

__all__ = ["Bounded", "is_stored", "opened"]


ZIP = b"PK\x03\x04"
"""What a zip archive begins with."""


class Bounded(io.BufferedReader):
    """A file of which at most `maximum` bytes are read, until `allow` lifts the limit.

    It has no file number, so that a reader cannot pass the limit by opening the file itself.
    """

    def __init__(self, path: Path, maximum: int) -> None:
        super().__init__(io.FileIO(path))
        self._left: int | None = maximum
        self._name = path

    def allow(self) -> None:
        """Lift the limit."""
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

    def _counted(self, part: bytes) -> bytes:
        self._check(len(part))
        if self._left is not None:
            self._left -= len(part)
        return part


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive whose entries follow one another, are stored or deflated, and have different names.

    Raises:
        Refusal: SAE_LOAD_FAILED for a file that is not a zip archive, and for an archive that contradicts itself.
    """
    with Bounded(path, ARCHIVE_LIST_BYTES) as file:
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
    fault = archive_rules.fault(entries, size)
    if fault is not None:
        raise failed(path, fault)
