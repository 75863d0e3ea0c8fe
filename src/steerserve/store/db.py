"""The database: opens it, checks whether it is usable, and turns its faults into sentences for people or refusals. The
steps of opening are in `schema.py` (version and migrations) and `holding.py` (one service at a time).
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, make_url, text, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from steerserve.errors import CannotStart, Refusal
from steerserve.rules.model_status import AFTER_RESTART, SAE_AFTER_RESTART
from steerserve.store import schema
from steerserve.store.holding import AdvisoryHold, FileHold, Hold
from steerserve.store.tables import models, saes

CHECK_SECONDS = 1.0
"""Seconds for which the result of a check is used again."""
CHECK_PATIENCE = 2.0
"""Seconds after which a database that does not answer counts as unusable."""
_INTERRUPTED = "interrupted by a restart of the service"
_BUSY_MS = 10_000
"""Milliseconds that a statement waits until another writer of a SQLite file has ended."""
_CHECK_BUSY_MS = 1_000
_SQLITE_HEADER = b"SQLite format 3\0"
_NO_ROOM = ("disk is full", "No space left")


class Database:
    """The one engine. Every access of an owner goes through `read` or `write`.

    Args:
        url: names the asynchronous driver too; the setting DATABASE_URL has this form once it is checked.
        clock: gives seconds that never go back.

    Raises:
        CannotStart: the driver of the database is not installed.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = make_url(url)
        is_sqlite = self._url.get_backend_name() == "sqlite"
        self._file = Path(self._url.database or "").absolute() if is_sqlite else None
        try:
            self._engine = create_async_engine(url, pool_pre_ping=not is_sqlite)
            # connections of this engine are closed after each use
            self._fresh = create_async_engine(url, poolclass=NullPool)
        except ModuleNotFoundError as error:
            raise CannotStart(
                f"DATABASE_URL names PostgreSQL, whose driver {error.name} is not installed: "
                "pip install 'steerserve[postgres]'"
            ) from None
        if is_sqlite:
            event.listen(self._engine.sync_engine, "connect", _preparing(_BUSY_MS))
            event.listen(self._fresh.sync_engine, "connect", _preparing(_CHECK_BUSY_MS))
        self._hold: Hold = FileHold(self._file) if self._file else AdvisoryHold(self._fresh)
        self._is_open = False
        self._clock = clock
        self._checking = asyncio.Lock()
        self._checked: float | None = None
        self._fault: str | None = None

    async def open(self) -> None:
        """Bring the schema up to date, and correct the statuses of work that the end of the last run interrupted. If
        the database is open already, nothing happens.

        Raises:
            CannotStart: the database cannot be used; one sentence names the database, the reason and the remedy.
        """
        if self._is_open:
            return
        try:
            await self._begin()
        except CannotStart as error:
            await self.close()
            raise CannotStart(f"cannot use the database {self._name()}: {error}") from error
        except Exception as error:
            await self.close()
            if not _is_fault_of_database(error):
                raise
            raise CannotStart(self._sentence(error)) from error
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        await self._hold.release()
        await self._engine.dispose()
        await self._fresh.dispose()

    async def fault(self) -> str | None:
        """Why the database cannot be used; None if it can. The check runs at most once in CHECK_SECONDS: over a new
        connection it reads the version of the schema and writes one row."""
        async with self._checking:
            now = self._clock()
            if self._checked is None or now - self._checked >= CHECK_SECONDS:
                self._fault = await self._check()
                self._checked = now
            return self._fault

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        async with self._engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A connection for one transaction, of which either all statements or none take effect.

        Raises:
            Refusal: INSUFFICIENT_DISK when the disk is full.
        """
        try:
            async with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            if any(words in str(error.orig) for words in _NO_ROOM):
                raise Refusal(
                    "INSUFFICIENT_DISK", "the disk that holds the database is full"
                ) from error
            raise

    # ------------------------------------------------------------- inside

    async def _begin(self) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        if not await self._hold.take():
            raise CannotStart(
                "another steerserve uses it; stop that one, or name another database in DATABASE_URL"
            )
        async with self._engine.begin() as connection:
            await connection.run_sync(self._upgrade)
        async with self.write() as connection:
            for table, moves in ((models, AFTER_RESTART), (saes, SAE_AFTER_RESTART)):
                for before, after in moves.items():
                    reason = {"error_message": _INTERRUPTED} if after == "error" else {}
                    await connection.execute(
                        update(table).where(table.c.status == before).values(status=after, **reason)
                    )

    def _upgrade(self, connection: Connection) -> None:
        schema.upgrade(connection, self._file, datetime.now(UTC))

    async def _check(self) -> str | None:
        try:
            async with asyncio.timeout(CHECK_PATIENCE):
                if self._file is not None:
                    await asyncio.to_thread(_check_file, self._file)
                async with self._fresh.begin() as connection:
                    version = await connection.scalar(
                        text("SELECT version_num FROM alembic_version")
                    )
                    # this writes one row with the value that it has, to check that the database can be written
                    await connection.execute(
                        text("UPDATE alembic_version SET version_num = :version"),
                        {"version": version},
                    )
                if version is None:
                    return "the schema has no version"
                return None if await self._hold.take() else "another steerserve has taken it"
        except TimeoutError:
            return f"no answer for {CHECK_PATIENCE:g} s"
        except Exception as error:
            # any exception of the driver means that the database is not usable
            return _reason(error, self._url.password)

    def _name(self) -> str:
        """The name of the database for messages; it never contains the password."""
        if self._file is not None:
            return str(self._file)
        port = f":{self._url.port}" if self._url.port else ""
        return f"{self._url.database!r} of {self._url.host}{port}"

    def _sentence(self, error: Exception) -> str:
        reason = _reason(error, self._url.password)
        is_damaged = "not a database" in reason or "malformed" in reason
        if self._file is None:
            out = "check DATABASE_URL and the server"
        elif is_damaged:
            out = "the file is damaged; put a copy in its place, or move it away to begin with an empty one"
        else:
            out = "check the file and its folder, or name another database in DATABASE_URL"
        return f"cannot use the database {self._name()}: {reason}; {out}"


def _preparing(busy_ms: int) -> Callable[[Any, Any], None]:
    """A function that sets up each new connection to a SQLite file."""

    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute(f"PRAGMA busy_timeout={busy_ms}")
        cursor.close()

    return prepare


def _check_file(file: Path) -> None:
    """Check that the file is still there. Open connections and cached pages go on working with a file that was removed
    or overwritten, so a query does not notice.

    Raises:
        OSError: the file is not there, or is not a SQLite database.
    """
    with file.open("rb") as opened:
        if opened.read(len(_SQLITE_HEADER)) != _SQLITE_HEADER:
            raise OSError("the file is not a database")


def _is_fault_of_database(error: Exception) -> bool:
    """Whether an exception is a fault of the database, its server or its disk. The PostgreSQL driver may not be
    installed, so its exceptions are recognised by the name of their module."""
    kinds = (SQLAlchemyError, sqlite3.Error, OSError)
    return isinstance(error, kinds) or type(error).__module__.startswith("asyncpg")


def _reason(error: Exception, password: str | None) -> str:
    """The first line of a driver's message, without the password."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    words = str(cause).strip().partition("\n")[0][:300]
    if password:
        words = words.replace(password, "***")
    # SQLAlchemy puts the class of the PostgreSQL driver's exception before the message
    return words.rpartition(">: ")[2] or type(cause).__name__
