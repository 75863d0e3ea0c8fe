"""Says whether the database can be used, without changing it and without keeping another service from it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from steerserve.database import db, engines, schema, sqlite_file
from steerserve.errors import CannotStart

SECONDS = 5.0
"""Seconds after which a database that does not answer counts as unreachable."""


def state(url: str) -> str:
    """The state of a database that can be used, as a clause.

    Raises:
        CannotStart: the database cannot be used; one sentence names the database, the reason and the remedy.
    """
    named = make_url(url)
    is_file = named.get_backend_name() == "sqlite"
    try:
        return f"{db.name_of(named)}: {_read_file(named) if is_file else _read_server(named)}"
    except (CannotStart, OSError, sqlite3.Error, SQLAlchemyError) as error:
        raise db.cannot_use(named, error) from error


def _read_file(url: URL) -> str:
    file = Path(url.database or "").absolute()
    if not file.exists():
        folder = next(one for one in file.parents if one.exists())
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CannotStart(f"there is none, and the folder {folder} cannot be written")
        return "the first start makes it"
    # SQLite reads beside a running service, and in this mode it changes nothing
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        sqlite_file.check_whole(connection)
        sqlite_file.check_ours(connection)
        return schema.state(sqlite_file.version(connection), file)


def _read_server(url: URL) -> str:
    async def version() -> str | None:
        engine = engines.make(url, None, is_pooled=False, seconds=SECONDS)
        async with asyncio.timeout(SECONDS), engine.connect() as connection:
            return await connection.run_sync(schema.current)

    return schema.state(asyncio.run(version()), None)
