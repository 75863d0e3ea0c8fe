"""Keeps a database for one service, because a second service on it would reset the statuses of the first.

SQLite: a lock on a file beside the database, and one on the database itself, which has the same file under all its
names (`sqlite_file.py`). PostgreSQL: an advisory lock, which lasts as long as one connection.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TextIO

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from steerserve.database import sessions
from steerserve.database.sessions import Session
from steerserve.logs import background

log = structlog.get_logger(__name__)
ADVISORY_KEY = 0x57EE25E2
"""The number of the advisory lock. Every steerserve uses the same number."""


IN_USE = "another steerserve uses it; stop that one, or name another database in DATABASE_URL"
HEARTBEAT_SECONDS = 2.0
"""Seconds between two signs of life in the session of a lock, by which a service that starts tells a live session from
a dead one."""
START_SECONDS = 20.0
"""Seconds that a start waits for the end of a dead session. The server ends it before that, after `DEAD_SECONDS` of
`sessions.py`."""
POLL_SECONDS = 0.5
"""Seconds between two questions of a start that waits."""


def in_use(holder: str | None) -> str:
    """The refusal of a database that another service has; `holder` is what is known about that service."""
    if holder is None:
        return IN_USE
    return (
        f"{IN_USE}; it is {holder}. If that process does not run any more, the server ends its session "
        f"{sessions.DEAD_SECONDS} seconds after it could reach it last; pg_terminate_backend(...) with the number of "
        "the session ends it at once"
    )


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

    async def try_acquire(self, *, waits: bool = False) -> bool:
        """Try to take the right, and return whether this service has it now. A service that has it may call this
        again. With `waits`, the end of a session that may be dead is waited for."""
        ...

    def holder(self) -> str | None:
        """Who had the right when it was last refused; None if nothing is known about that."""
        ...

    async def release(self) -> None: ...


class FileHold:
    """A lock on the file `<database>.lock`; it ends with the process. If the lock file was deleted, `try_acquire` makes
    and locks another one, unless another service has done so."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._file: TextIO | None = None

    async def try_acquire(self, *, waits: bool = False) -> bool:
        """Raises:
        OSError: the lock file cannot be created.
        """
        return self.lock()

    def holder(self) -> str | None:
        return None

    async def release(self) -> None:
        self.unlock()

    def lock(self) -> bool:
        """Do what `try_acquire` does."""
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
    """An advisory lock of PostgreSQL, which lasts as long as a session. A restart of the PostgreSQL server drops the
    lock, and `try_acquire` takes it again.

    A cut of the network can leave a session at the server that nobody uses any more, and that has the lock. The server
    ends it after DEAD_SECONDS without an answer (`sessions.py`). A session that is known to be dead is ended at once:
    an earlier one of this hold, and one whose process has run on this machine and is gone.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._connection: AsyncConnection | None = None
        self._driver: Any = None
        self._taking = asyncio.Lock()
        self._own: set[tuple[int, datetime]] = set()
        self._holder: Session | None = None
        self._beating: asyncio.Task[None] | None = None

    async def try_acquire(self, *, waits: bool = False) -> bool:
        """Raises any exception of the driver if the server does not answer."""
        if waits:
            return await self._wait_and_take()
        # a connection can only run one statement at a time
        async with self._taking:
            return await self._take()

    async def _wait_and_take(self) -> bool:
        first: Session | None = None
        for attempt in range(int(START_SECONDS / POLL_SECONDS)):
            if await self.try_acquire():
                return True
            found = self._holder
            if first is None and found is not None:
                first = found
                log.warning("database_held", holder=found.sentence, waits_seconds=START_SECONDS)
            if found is not None and first is not None and found.has_lived_since(first):
                return False
            if attempt:
                await asyncio.sleep(POLL_SECONDS)
        return False

    def holder(self) -> str | None:
        return None if self._holder is None else self._holder.sentence

    async def release(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait({beating})
        await self._drop()

    async def _take(self) -> bool:
        if self._connection is not None:
            try:
                await self._connection.execute(text("SELECT 1"))
                return True
            except Exception:
                # any exception of the driver means that the connection is lost, and the lock with it
                await self._drop()
        connection = await self._engine.connect()
        try:
            # without AUTOCOMMIT, a transaction would stay open as long as the service runs
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            self._own.add(await sessions.read_own(connection))
            is_taken = await self._lock(connection)
        except BaseException:
            await connection.close()
            raise
        if is_taken:
            self._connection = connection
            self._driver = (await connection.get_raw_connection()).driver_connection
            if self._beating is None or self._beating.done():
                self._beating = background.start(self._beat())
        else:
            await connection.close()
        return is_taken

    async def _lock(self, connection: AsyncConnection) -> bool:
        question = text(f"SELECT pg_try_advisory_lock({ADVISORY_KEY})")
        if await connection.scalar(question):
            return True
        self._holder = holder = await sessions.read_holder(connection, ADVISORY_KEY)
        if holder is None:
            return False
        if holder.key not in self._own and not holder.has_dead_process:
            return False
        log.warning("dead_session_ended", session=holder.sentence)
        return await sessions.end(connection, holder) and bool(await connection.scalar(question))

    async def _beat(self) -> None:
        is_held = True
        # a service that another one has followed does not take the lock from it again
        while is_held:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            # the next access to the database finds the same fault, and says so
            with suppress(Exception):
                is_held = await self.try_acquire()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._driver is not None:
                # without this, the closing would wait for a server that may not answer
                self._driver.terminate()
            await connection.invalidate()
            await connection.close()
