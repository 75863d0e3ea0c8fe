"""Paths in the database. A path inside the data folder is stored relative to it, so that the folder can be moved."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import String
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.types import TypeDecorator

_ATTRIBUTE = "steerserve_data_folder"
_AS_NAMED = "./"
"""How a stored path begins that goes through the links in the setting of the data folder."""
_LEAST_PARTS = 2
"""Parts of a path inside the data folder, by which its former place is recognised: `models/name`."""


class DataFolder:
    """The folder of all data of a service, as it is now."""

    def __init__(self, folder: Path) -> None:
        self._named = os.path.abspath(folder)
        self._real = os.path.realpath(folder)

    def stored(self, path: str) -> str:
        """The path as it is stored."""
        for begin, base in (("", self._real), (_AS_NAMED, self._named)):
            if path.startswith(base + os.sep):
                return begin + path[len(base) + 1 :]
        return path

    def found(self, stored: str) -> str:
        """The path that is stored so."""
        if os.path.isabs(stored):
            return stored
        base = self._named if stored.startswith(_AS_NAMED) else self._real
        return os.path.join(base, stored.removeprefix(_AS_NAMED))

    def stored_after_move(self, path: str) -> str:
        """The path as it is stored, of a path that was written down before paths were relative. If nothing is there any
        more, and the end of the path leads to a file or a folder in the data folder, then the data folder has been
        moved."""
        parts = Path(path).parts[1:]
        if self.stored(path) == path and os.path.isabs(path) and not os.path.lexists(path):
            for first in range(1, len(parts) - _LEAST_PARTS + 1):
                end = os.path.join(*parts[first:])
                if os.path.lexists(os.path.join(self._real, end)):
                    return end
        return self.stored(path)


def set_data_folder(engine: AsyncEngine, folder: DataFolder | None) -> None:
    """Let the paths in all statements of an engine be stored relative to the data folder."""
    setattr(engine.dialect, _ATTRIBUTE, folder)


class DataPath(TypeDecorator[str]):
    """A path of this machine."""

    impl = String(4096)
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> object:
        folder: DataFolder | None = getattr(dialect, _ATTRIBUTE, None)
        return value if value is None or folder is None else folder.stored(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        folder: DataFolder | None = getattr(dialect, _ATTRIBUTE, None)
        return value if value is None or folder is None else folder.found(value)
