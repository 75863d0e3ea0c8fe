"""Accesses to the database while it closes, after it closed, and when their tasks are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import event, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

from steerserve.database import db
from steerserve.database.catalog import Catalog
from steerserve.database.db import Database
from steerserve.database.tables import models
from steerserve.errors import Refusal
from steerserve.nouns.profiles.store import ProfileStore
from tests.waiting import soon

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODEL: dict[str, Any] = {"name": "m", "source": "local", "quantization": "FP16"}
MADE = insert(models).values(**MODEL, status="ready", created_at=NOW, updated_at=NOW)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[aiosqlite.Connection]:
    """Every connection that is made during the test."""
    made: list[aiosqlite.Connection] = []
    connect = aiosqlite.connect

    def keep(*args: Any, **options: Any) -> aiosqlite.Connection:
        made.append(connect(*args, **options))
        return made[-1]

    monkeypatch.setattr(aiosqlite, "connect", keep)
    return made


@pytest.fixture
async def opened(connections: list[aiosqlite.Connection], url: str) -> AsyncIterator[Database]:
    database = Database(url)
    await database.open()
    assert connections
    yield database
    await database.close()


def left(connections: list[aiosqlite.Connection]) -> list[aiosqlite.Connection]:
    return [connection for connection in connections if connection._connection is not None]


@contextmanager
def held(engine: AsyncEngine) -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """A new connection of the engine waits in the middle of its making. The first event tells that one waits, the
    second lets it go on."""
    waits, goes_on = asyncio.Event(), asyncio.Event()

    def hold(*_: object) -> None:
        waits.set()
        await_only(goes_on.wait())

    event.listen(engine.sync_engine, "connect", hold)
    try:
        yield waits, goes_on
    finally:
        goes_on.set()


async def closing_of(database: Database) -> asyncio.Task[None]:
    """Begin to close the database. The answer comes once new accesses are refused."""
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0)
    return closing


def order_of(*tasks: asyncio.Task[Any]) -> list[asyncio.Task[Any]]:
    """The tasks in the order in which they end."""
    ends: list[asyncio.Task[Any]] = []
    for task in tasks:
        task.add_done_callback(ends.append)
    return ends


async def read(database: Database) -> None:
    (await ProfileStore(database).page(200))[0]


async def write(database: Database) -> None:
    await add(database, "m")


async def add(database: Database, name: str) -> None:
    await Catalog(database).add_model(**MODEL | {"name": name}, status="ready")


async def names(database: Database) -> list[str]:
    async with database.read() as connection:
        return sorted(await connection.scalars(select(models.c.name)))


async def test_an_access_after_the_closing_is_refused(
    opened: Database, connections: list[aiosqlite.Connection]
) -> None:
    await opened.close()
    made = len(connections)
    for access in (opened.read, opened.write):
        with pytest.raises(Refusal) as refused:
            async with access():
                pass
        assert refused.value.code == "DATABASE_UNAVAILABLE"
        assert "the service is starting or stopping" in refused.value.message
        assert refused.value.details["needs_restart"] is False
    fault = await opened.fault()
    assert fault is not None
    assert "the service is starting or stopping" in fault.reason
    assert len(connections) == made
    assert left(connections) == []


async def test_the_closing_waits_for_a_write_under_way(
    opened: Database, connections: list[aiosqlite.Connection]
) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        async with opened.write() as connection:
            begun.set()
            await goes_on.wait()
            await connection.execute(MADE)

    writing = asyncio.create_task(slow())
    await begun.wait()
    queued = asyncio.create_task(add(opened, "queued"))
    while not opened._writing._waiters:
        await asyncio.sleep(0)
    closing = await closing_of(opened)
    with pytest.raises(Refusal, match="starting or stopping"):
        async with opened.write():
            pass
    ends = order_of(writing, queued, closing)
    goes_on.set()
    await soon(closing)
    assert ends == [writing, queued, closing]
    await writing
    await queued
    assert left(connections) == []
    await opened.open()
    assert await names(opened) == ["m", "queued"]
    await opened.close()
    assert left(connections) == []


async def test_the_closing_waits_for_a_read_that_is_connecting(
    opened: Database, connections: list[aiosqlite.Connection]
) -> None:
    with held(opened._engine) as (waits, goes_on):
        reading = asyncio.create_task(ProfileStore(opened).page(200))
        await waits.wait()
        closing = await closing_of(opened)
        ends = order_of(reading, closing)
        goes_on.set()
        await soon(closing)
        assert await reading == ([], 0)
        assert ends == [reading, closing]
        assert left(connections) == []


async def test_the_closing_waits_for_a_check_under_way(
    opened: Database, connections: list[aiosqlite.Connection]
) -> None:
    with held(opened._fresh) as (waits, goes_on):
        checking = asyncio.create_task(opened.fault())
        await waits.wait()
        closing = await closing_of(opened)
        ends = order_of(checking, closing)
        goes_on.set()
        await soon(closing)
        assert await checking is None
        assert ends == [checking, closing]
        assert left(connections) == []


async def test_the_closing_does_not_wait_for_ever(
    opened: Database,
    connections: list[aiosqlite.Connection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(db, "CLOSE_SECONDS", 0.01)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def stuck() -> None:
        async with opened.read():
            begun.set()
            await goes_on.wait()

    reading = asyncio.create_task(stuck())
    await begun.wait()
    await soon(opened.close())
    goes_on.set()
    await reading
    assert left(connections) == []


@pytest.mark.parametrize("access", [read, write])
async def test_an_access_that_is_cancelled_while_connecting_leaves_no_connection(
    opened: Database,
    connections: list[aiosqlite.Connection],
    access: Callable[[Database], Any],
) -> None:
    with held(opened._engine) as (waits, goes_on):
        task = asyncio.create_task(access(opened))
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
        # the connection is closed by nobody but the closing, which waits for it
        closing = await closing_of(opened)
        goes_on.set()
        await soon(closing)
        assert left(connections) == []


async def test_a_write_that_is_cancelled_twice_leaves_no_connection_and_the_next_one_is_served(
    opened: Database, connections: list[aiosqlite.Connection]
) -> None:
    begun = asyncio.Event()

    async def interrupted() -> None:
        async with opened.write() as connection:
            await connection.execute(MADE)
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(interrupted())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    await add(opened, "next")
    assert await names(opened) == ["next"]
    await opened.close()
    assert left(connections) == []
