"""The database: migrations, repair after a restart, and faults."""

from __future__ import annotations

from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from steerserve.errors import Refusal
from steerserve.store.catalog import Catalog
from steerserve.store.db import Database
from steerserve.store.tables import metadata

MODEL: dict[str, Any] = {"name": "m", "source": "local", "quantization": "FP16"}
SAE: dict[str, Any] = {
    "name": "s",
    "format": "saelens",
    "architecture": "standard",
    "d_in": 8,
    "d_sae": 16,
    "dtype": "float32",
}


async def test_the_schema_is_made_from_nothing(database: Database) -> None:
    async with database.read() as connection:
        names = await connection.run_sync(lambda sync: set(inspect(sync).get_table_names()))
    assert names == set(metadata.tables) | {"alembic_version"}


async def test_the_migrated_schema_is_the_declared_one(database: Database) -> None:
    def differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    async with database.read() as connection:
        assert await connection.run_sync(differences) == []


async def test_opening_again_keeps_what_is_there(url: str) -> None:
    for count in (1, 2):
        database = Database(url)
        await database.open()
        catalog = Catalog(database)
        fields = MODEL | {"name": f"m{count}", "local_path": f"/models/{count}"}
        await catalog.add_model(**fields, status="ready")
        assert len(await catalog.models()) == count
        await database.close()


@pytest.mark.parametrize(
    ("before", "after", "has_reason"),
    [
        ("ready", "ready", False),
        ("loading", "ready", False),
        ("loaded", "ready", False),
        ("downloading", "error", True),
        ("error", "error", False),
    ],
)
async def test_a_restart_takes_back_what_it_ended_of_a_model(
    url: str, before: str, after: str, has_reason: bool
) -> None:
    database = Database(url)
    await database.open()
    made = await Catalog(database).add_model(**MODEL, status=before)
    await database.close()
    again = Database(url)
    await again.open()
    row = await Catalog(again).model(made.id)
    await again.close()
    assert row.status == after
    assert (row.error_message is not None) is has_reason


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("cached", "cached"),
        ("attached", "cached"),
        ("downloading", "error"),
        ("error", "error"),
    ],
)
async def test_a_restart_takes_back_what_it_ended_of_an_sae(
    url: str, before: str, after: str
) -> None:
    database = Database(url)
    await database.open()
    await Catalog(database).add_sae(id="sae_1", **SAE, status=before)
    await database.close()
    again = Database(url)
    await again.open()
    row = await Catalog(again).sae("sae_1")
    await again.close()
    assert row.status == after


async def test_a_full_disk_is_refused_as_such_and_nothing_is_written(database: Database) -> None:
    catalog = Catalog(database)
    await catalog.add_model(**MODEL, status="ready")
    async with database.read() as connection:
        # the pool hands the same connection out again
        await connection.execute(text("PRAGMA max_page_count = 1"))
    fields = MODEL | {"name": "other", "error_message": "x" * 1_000_000}
    with pytest.raises(Refusal) as refused:
        await catalog.add_model(**fields, status="error")
    assert refused.value.code == "INSUFFICIENT_DISK"
    assert refused.value.row.api == 507
    assert [row.status for row in await catalog.models()] == ["ready"]


async def test_another_fault_of_the_database_is_not_taken_for_a_full_disk(
    database: Database,
) -> None:
    with pytest.raises(Exception, match="no such table"):
        async with database.write() as connection:
            await connection.execute(text("DELETE FROM nowhere"))


async def test_a_write_that_fails_is_taken_back_whole(database: Database) -> None:
    catalog = Catalog(database)
    await catalog.add_model(**MODEL, status="ready")

    async def forget_all_and_fail() -> None:
        async with database.write() as connection:
            await connection.execute(text("DELETE FROM models"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await forget_all_and_fail()
    assert len(await catalog.models()) == 1


async def test_a_usable_database_answers_a_ping(database: Database) -> None:
    await database.ping()


async def test_a_database_that_is_no_database_does_not_open(url: str) -> None:
    database = Database(url)
    path = url.removeprefix("sqlite+aiosqlite:///")
    with open(path, "wb") as file:  # noqa: ASYNC230
        file.write(b"this is not a database file at all" * 100)
    with pytest.raises(Exception, match="not a database"):
        await database.open()
    await database.close()
