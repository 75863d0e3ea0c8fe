"""The record of firings: what is kept, for how long, and for whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from steerserve.database.db import Database
from steerserve.database.sensing import FiringStore
from steerserve.database.tables import sensing_events
from steerserve.nouns.profiles.store import ProfileStore
from steerserve.rules.sensing.firings import ClusterFiring, ContextParts, EdgeFiring, FiredFeature

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Time:
    def __init__(self) -> None:
        self.now = NOW
        self.seconds = 0.0

    def __call__(self) -> datetime:
        return self.now

    def passes(self, **amount: float) -> None:
        self.now += timedelta(**amount)
        self.seconds += timedelta(**amount).total_seconds()


def firing(start: int = 3, **changes: Any) -> ClusterFiring:
    values: dict[str, Any] = {
        "request_id": "chatcmpl-1",
        "choice": 0,
        "phase": "prefill",
        "summary": "weather: 1/2 members fired",
        "truncated": False,
        "context_text": "rain and\nsun",
        "context_token_ids": (4, 5),
        "context_parts": ContextParts("rain", " and", "\nsun"),
        "pos_start": start,
        "pos_end": start + 1,
        "fired_members": ((70, 1.25),),
        "score": 2.5,
    }
    return ClusterFiring(**values | changes)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(database: Database, time: Time) -> FiringStore:
    return reopened(database, time)


def reopened(database: Database, time: Time) -> FiringStore:
    """The store of a service that starts now."""
    return FiringStore(
        database, sensing_events, most=3, days=7, now=time, seconds=lambda: time.seconds
    )


async def cluster(database: Database, name: str = "weather") -> str:
    return (await ProfileStore(database).add_profile(name=name, steering={})).id


def starts(found: tuple[list[Any], int]) -> list[int]:
    return [row.firing.pos_start for row in found[0]]


async def test_an_event_comes_back_whole(database: Database, store: FiringStore) -> None:
    subject = await cluster(database)
    (row,) = await store.add(subject, [firing()])
    assert (row.subject, row.created_at, row.firing) == (subject, NOW, firing())
    assert await store.get(row.id) == row
    assert await store.newest(10) == ([row], 1)


async def test_the_newest_come_first_and_the_oldest_beyond_the_most_are_deleted(
    database: Database, store: FiringStore, time: Time
) -> None:
    one, other = await cluster(database), await cluster(database, "other")
    await store.add(other, [firing(99)])
    for start in (1, 2):
        await store.add(one, [firing(start), firing(10 * start)])
        time.passes(seconds=1)
    assert starts(await store.newest(10, subject=one)) == [20, 2, 10]
    assert starts(await store.newest(10)) == [20, 2, 10, 99]
    found, total = await store.newest(1, subject=one)
    assert (starts((found, 1)), total) == ([20], 3)
    written = await store.add(one, [firing(start) for start in range(5)])
    assert [row.firing.pos_start for row in written] == [2, 3, 4]
    assert starts(await store.newest(10, subject=one)) == [4, 3, 2]


async def test_since_is_strict_and_does_not_limit_the_total(
    database: Database, store: FiringStore, time: Time
) -> None:
    subject = await cluster(database)
    await store.add(subject, [firing(1)])
    time.passes(seconds=1)
    await store.add(subject, [firing(2)])
    assert starts(await store.newest(10, since=NOW)) == [2]
    assert await store.newest(10, since=time.now) == ([], 2)


async def test_an_old_event_is_gone_for_every_reader(
    database: Database, store: FiringStore, time: Time
) -> None:
    subject = await cluster(database)
    (row,) = await store.add(subject, [firing(1)])
    time.passes(days=7)
    assert await store.get(row.id) == row
    time.passes(seconds=1)
    assert await store.get(row.id) is None
    assert await store.newest(10) == ([], 0)
    (later,) = await store.add(subject, [firing(2)])
    assert later.id == row.id + 1, "ids are never given twice"
    assert await store.newest(10) == ([later], 1)


async def test_a_clock_that_is_set_ahead_deletes_nothing_while_the_service_runs(
    database: Database, store: FiringStore, time: Time
) -> None:
    subject = await cluster(database)
    (row,) = await store.add(subject, [firing(1)])
    time.now += timedelta(days=31)
    time.passes(hours=1)
    (later,) = await store.add(subject, [firing(2)])
    assert later.created_at == time.now
    assert await store.get(row.id) == row
    time.now = NOW + timedelta(hours=1)
    assert await reopened(database, time).newest(10) == ([later, row], 2)


async def test_what_a_start_deletes_is_logged_where_it_is_more_than_a_day(
    database: Database,
    store: FiringStore,
    time: Time,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def logged() -> str:
        return caplog.text + capsys.readouterr().out

    subject = await cluster(database)
    await store.add(subject, [firing(1)])
    time.passes(days=7.5)
    (row,) = await store.add(subject, [firing(2)])
    assert "old_events_deleted" not in logged()
    time.passes(days=31)
    assert await reopened(database, time).newest(10) == ([], 0)
    line = logged()
    assert "old_events_deleted" in line
    assert row.created_at.isoformat() in line


async def test_events_are_cleared_for_one_cluster_or_for_all(
    database: Database, store: FiringStore
) -> None:
    one, other = await cluster(database), await cluster(database, "other")
    await store.add(one, [firing(1), firing(2)])
    await store.add(other, [firing(3)])
    assert await store.clear(one) == 2
    assert await store.clear("prof_unknown") == 0
    assert starts(await store.newest(10)) == [3]
    assert await store.clear() == 1
    assert await store.newest(10) == ([], 0)


async def test_events_go_with_their_cluster_and_none_comes_after(
    database: Database, store: FiringStore
) -> None:
    subject = await cluster(database)
    await store.add(subject, [firing()])
    await ProfileStore(database).remove(subject)
    assert await store.newest(10) == ([], 0)
    assert await store.add(subject, [firing()]) == []


@pytest.mark.parametrize("event_id", [0, -1, 7, 2**63, 2**70])
async def test_an_unknown_id_is_none(store: FiringStore, event_id: int) -> None:
    assert await store.get(event_id) is None


def test_an_edge_knows_its_lag() -> None:
    up, down = FiredFeature(6, 70, 3, 1.0), FiredFeature(9, 31, 5, 2.0)
    fired = EdgeFiring(
        "r",
        0,
        "decode",
        "s",
        False,
        edge_key="70@6->31@9",
        up=up,
        down=down,
        edge_rung=0,
        edge_rung_language="associated",
    )
    assert fired.token_lag == 2
