"""The database: one engine, migrations at start, repair after a restart, and faults as typed refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event, make_url, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from steerserve.errors import Refusal
from steerserve.rules.model_status import AFTER_RESTART, SAE_AFTER_RESTART
from steerserve.store.tables import models, saes

_MIGRATIONS = Path(__file__).parent / "migrations"
_INTERRUPTED = "interrupted by a restart of the service"
_BUSY_TIMEOUT_MS = 10_000


class Database:
    """The one engine. Every access goes through `read` or `write`."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._is_sqlite = parsed.get_backend_name() == "sqlite"
        if self._is_sqlite and parsed.database and parsed.database != ":memory:":
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        self._engine: AsyncEngine = create_async_engine(url, pool_pre_ping=not self._is_sqlite)
        if self._is_sqlite:
            event.listen(self._engine.sync_engine, "connect", _prepare_sqlite)

    async def open(self) -> None:
        """Bring the schema up to date, and take back what a restart ended."""
        async with self._engine.begin() as connection:
            await connection.run_sync(_migrate)
        async with self.write() as connection:
            for table, moves in ((models, AFTER_RESTART), (saes, SAE_AFTER_RESTART)):
                for before, after in moves.items():
                    reason = {"error_message": _INTERRUPTED} if after == "error" else {}
                    await connection.execute(
                        update(table).where(table.c.status == before).values(status=after, **reason)
                    )

    async def close(self) -> None:
        await self._engine.dispose()

    async def ping(self) -> None:
        """Raises whatever makes the database unusable."""
        async with self._engine.connect() as connection:
            await connection.execute(text("SELECT 1"))

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        async with self._engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """One transaction: all of it or nothing.

        Raises:
            Refusal: INSUFFICIENT_DISK when the disk is full.
        """
        try:
            async with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            if "disk is full" in str(error.orig) or "No space left" in str(error.orig):
                raise Refusal(
                    "INSUFFICIENT_DISK", "the disk that holds the database is full"
                ) from error
            raise


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
    cursor.close()


def _migrate(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
