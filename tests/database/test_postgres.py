"""The database on a PostgreSQL server; TEST_POSTGRES_URL names an empty database that these tests may change."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import text

from steerserve.database.catalog import Catalog
from steerserve.database.db import Database
from steerserve.errors import CannotStart
from steerserve.settings.checks import database_url

URL = os.environ.get("TEST_POSTGRES_URL", "")

pytestmark = pytest.mark.skipif(not URL, reason="TEST_POSTGRES_URL names no server")


async def test_rows_are_kept_and_a_second_service_is_refused() -> None:
    first = Database(database_url(URL))
    await first.open()
    made = await Catalog(first).add_model(
        name="m", source="local", quantization="FP16", local_path="/models/m", status="loading"
    )
    second = Database(database_url(URL))
    with pytest.raises(CannotStart, match="another steerserve uses it"):
        await second.open()
    assert (await Catalog(first).model(made.id)).status == "loading"
    await first.close()
    await second.open()
    assert (await Catalog(second).model(made.id)).status == "ready"
    await Catalog(second).remove_model(made.id)
    await second.close()


async def test_a_server_that_forgot_the_hold_is_asked_for_it_again() -> None:
    now = 0.0
    database = Database(database_url(URL), clock=lambda: now)
    await database.open()
    assert await database.fault() is None
    async with database.read() as connection:
        others = "pid <> pg_backend_pid() AND datname = current_database()"
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
        await connection.execute(text(ended))
    now = 1.0
    assert await database.fault() is None
    second = Database(database_url(URL))
    with pytest.raises(CannotStart, match="another steerserve uses it"):
        await second.open()
    now = 2.0
    await database._hold.release()
    await second.open()
    fault = await database.fault()
    assert fault is not None
    assert (fault.reason, fault.needs_restart) == ("another steerserve has taken it", True)
    await second.close()
    await database.close()


async def test_a_wrong_password_is_not_repeated() -> None:
    scheme, _, rest = URL.partition("://")
    where = rest.rpartition("@")[2]
    database = Database(database_url(f"{scheme}://nobody:sentinel@{where}"))
    with pytest.raises(CannotStart, match="check DATABASE_URL") as refused:
        await database.open()
    assert "sentinel" not in str(refused.value)
