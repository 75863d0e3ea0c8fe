"""Tables of promoted tokens: read back as written, and the newest of many kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from steerserve.database.db import Database
from steerserve.nouns.promotions import store as promoted
from steerserve.nouns.promotions.store import PromotedStore
from steerserve.rules.sensing.promoting import PromotedTable


async def test_tables_are_replaced_and_the_oldest_deleted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promoted, "KEPT", 2)
    now = datetime(2026, 1, 5, tzinfo=UTC)
    store = PromotedStore(database, now=lambda: now)
    assert await store.get("a") is None
    tables = {key: PromotedTable(1, key.encode() * 4, bytes(4)) for key in "abcd"}
    for key in ("a", "b", "a", "c"):
        now += timedelta(seconds=1)
        await store.put(key, tables[key])
    assert [await store.get(key) for key in "abc"] == [tables["a"], None, tables["c"]]
    await store.put("a", tables["d"])
    assert await store.get("a") == tables["d"]
