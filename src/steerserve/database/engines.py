"""Makes the connections to the database: their options, their limits of time, and their transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from sqlalchemy import URL, Connection, event
from sqlalchemy.engine import AdaptedConnection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from steerserve.database import sessions
from steerserve.database.sqlite_file import SqliteFile
from steerserve.errors import CannotStart

CONNECT_SECONDS = 3.0
"""Seconds after which a server that does not accept a connection counts as unreachable."""
WRITES = {"steerserve_writes": True}
"""Execution options of an engine whose transactions write."""


def make(
    url: URL, file: SqliteFile | None, *, is_pooled: bool, seconds: float | None
) -> AsyncEngine:
    """An engine for `url`; `file` is the SQLite file that the URL names. A statement waits at most `seconds` for
    another writer of the file or for the answer of the server. An engine that is not pooled closes each connection
    after its use.

    Raises:
        CannotStart: the driver of the database is not installed.
    """
    if file is not None:
        return _sqlite(url, file, is_pooled=is_pooled, busy_ms=int(1000 * (seconds or 0)))
    options = {
        "timeout": CONNECT_SECONDS,
        "command_timeout": seconds,
        "server_settings": {"application_name": sessions.own_name()},
    }
    pool: dict[str, object] = (
        {"pool_pre_ping": True, "pool_timeout": CONNECT_SECONDS}
        if is_pooled
        else {"poolclass": NullPool}
    )
    try:
        engine = create_async_engine(url, connect_args=options, **pool)
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"DATABASE_URL names PostgreSQL, whose driver {error.name} is not installed: "
            "pip install 'steerserve[postgres]'"
        ) from None
    event.listen(engine.sync_engine, "connect", _bound_dead_sessions)
    return engine


def _bound_dead_sessions(connection: AdaptedConnection, _record: object) -> None:
    """Let the server end the session of a new connection soon after it cannot reach this service any more. Otherwise
    the session would keep its locks for hours."""
    kept = list(sessions.KEEPALIVES), list(sessions.KEEPALIVES.values())
    try:
        connection.run_async(lambda driver: driver.execute(sessions.PREPARE, *kept))
    except BaseException:
        connection.driver_connection.terminate()
        raise


def _sqlite(url: URL, file: SqliteFile, *, is_pooled: bool, busy_ms: int) -> AsyncEngine:
    options = url.set(database=file.uri, query={**url.query, "uri": "true"})
    pool: dict[str, object] = {} if is_pooled else {"poolclass": NullPool}
    engine = create_async_engine(options, **pool)
    event.listen(engine.sync_engine, "do_connect", _naming(file))
    event.listen(engine.sync_engine, "connect", _preparing(file, busy_ms))
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _naming(file: SqliteFile) -> Callable[..., None]:
    """A function that names the file as it was found at the opening of the database to each new connection."""

    def name(_dialect: object, _record: object, arguments: list[object], _options: object) -> None:
        # with `rw` SQLite never makes the file, so a file that was deleted is not replaced by an empty one
        arguments[0] = f"{file.uri}?mode=rw"

    return name


def _preparing(file: SqliteFile, busy_ms: int) -> Callable[[DBAPIConnection, object], None]:
    """A function that sets up each new connection to a SQLite file."""

    def prepare(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA database_list")
        (_, _, opened), *_ = cursor.fetchall()
        cursor.close()
        try:
            file.check_connection(opened)
        except sqlite3.Error:
            connection.close()
            raise
        # Python begins no transaction before statements that change the schema, so `_begin` begins every transaction
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={busy_ms}")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        # only the keeper of `SqliteFile` brings changes into the file
        cursor.execute("PRAGMA wal_autocheckpoint=0")
        cursor.close()

    return prepare


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().keys() >= WRITES.keys()
    cursor = connection.connection.cursor()
    cursor.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    cursor.close()
