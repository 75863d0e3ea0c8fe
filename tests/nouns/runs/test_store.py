"""Records of answers: bounded by their age and by their bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from steerserve.database.db import Database
from steerserve.nouns.runs.rules import RunSummary
from steerserve.nouns.runs.store import FoundRun, NewRun, RunStore

NOW = datetime(2026, 1, 5, tzinfo=UTC)


def new(request_id: str, text: str = "{}") -> NewRun:
    summary = RunSummary(
        request_id=request_id,
        created_at=NOW,
        route="/v1/completions",
        model="m",
        seed=None,
        steering_state=None,
        choices=1,
        prompt_tokens=1,
        completion_tokens=1,
    )
    return NewRun(summary, text)


async def ids(store: RunStore) -> list[str]:
    return [one.request_id for one in (await store.newest(10))[0]]


async def test_the_oldest_go_where_there_are_too_many_bytes(database: Database) -> None:
    store = RunStore(database, days=1, most_mb=1)
    part = "x" * (400 << 10)
    assert await store.add([new("a", part), new("b", part)]) == 2
    assert await store.add([new("b", "other"), new("c", part)]) == 1
    assert await ids(store) == ["c", "b"]
    assert await store.get("b") == FoundRun(part)
    assert [text async for text in store.all()] == [part, part]


async def test_a_record_grows_old(database: Database) -> None:
    now = NOW
    store = RunStore(database, days=1, most_mb=1, now=lambda: now)
    await store.add([new("a")])
    now += timedelta(hours=23)
    await store.add([new("b")])
    assert await ids(store) == ["b", "a"]
    now += timedelta(hours=2)
    assert await ids(store) == ["b"]
    assert await store.get("a") is None
    await store.add([new("c")])
    assert (await store.newest(10))[1:] == (2, 4)
