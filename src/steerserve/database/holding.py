"""Keeps a database for one service, because a second service on it would reset the statuses of the first.

SQLite: a lock on a file beside the database, and one on the database itself, which has the same file under all its
names (`sqlite_file.py`). PostgreSQL: an advisory lock, which lasts as long as one connection.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Protocol, TextIO

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

ADVISORY_KEY = 0x57EE25E2
"""The number of the advisory lock. Every steerserve uses the same number."""


IN_USE = "another steerserve uses it; stop that one, or name another database in DATABASE_URL"


def lock(descriptor: int) -> bool:
    """Lock an open file until it is closed. Returns False where another service has locked it. A file system without
    such locks locks nothing. SQLite's own locks are of another kind, and are not touched."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class Hold(Protocol):
    """The exclusive right of one service to use a database."""

    async def take(self) -> bool:
        """Try to take the right, and return whether this service has it now. A service that has it may call this
        again."""

    async def release(self) -> None: ...


class FileHold:
    """A lock on the file `<database>.lock`; it ends with the process. If the lock file was deleted, `take` makes and
    locks another one, unless another service has done so."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._file: TextIO | None = None

    async def take(self) -> bool:
        """Raises:
        OSError: the lock file cannot be created.
        """
        return self.lock()

    async def release(self) -> None:
        self.unlock()

    def lock(self) -> bool:
        """Do what `take` does."""
        if self._file is not None and self._is_at_path(self._file):
            return True
        file = self._path.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self.unlock()
        self._file = file
        return True

    def unlock(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_at_path(self, file: TextIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False


class AdvisoryHold:
    """An advisory lock of PostgreSQL. A restart of the PostgreSQL server drops the lock, and `take` takes it again."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._connection: AsyncConnection | None = None
        self._taking = asyncio.Lock()

    async def take(self) -> bool:
        """Raises any exception of the driver if the server does not answer."""
        # a connection can only run one statement at a time
        async with self._taking:
            return await self._take()

    async def _take(self) -> bool:
        if self._connection is not None:
            try:
                await self._connection.execute(text("SELECT 1"))
                return True
            except Exception:
                # any exception of the driver means that the connection is lost, and the lock with it
                await self.release()
        connection = await self._engine.connect()
        try:
            # without AUTOCOMMIT, a transaction would stay open as long as the service runs
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            question = text(f"SELECT pg_try_advisory_lock({ADVISORY_KEY})")
            is_taken = bool(await connection.scalar(question))
        except BaseException:
            await connection.close()
            raise
        if is_taken:
            self._connection = connection
        else:
            await connection.close()
        return is_taken

    async def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.invalidate()
            await connection.close()
