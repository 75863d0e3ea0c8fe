"""The record of sensing beside load: reads answer what was told before them, whatever comes after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from steerserve.control.sensing import recorder as module
from steerserve.database.sensing import FiringStore
from steerserve.nouns.cluster_sensing.form import cluster_firing
from steerserve.rules.sensing.firings import Firing, FiringRow
from tests.doubles import World
from tests.nouns.circuit_sensing import test_owner as circuits
from tests.nouns.cluster_sensing import test_owner as clusters
from tests.waiting import Gate, soon, until

Told = Callable[[], None]


@pytest.fixture(params=["cluster", "circuit"])
async def sensed(request: pytest.FixtureRequest, world: World) -> AsyncIterator[tuple[Any, Told]]:
    """What is sensed, and a function that lets the engine tell of one choice."""
    if request.param == "cluster":
        cluster = await clusters.serving(world)
        yield world.cluster_sensing, lambda: world.launcher.engine.on_spans(clusters.told(cluster))
    else:
        await circuits.attached(world, 0, 1)
        circuit = await circuits.serving(world)
        yield world.circuit_sensing, lambda: world.launcher.engine.on_edges(circuits.told(circuit))


def hold_writing(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate that every writing of events has to pass."""
    add, gate = FiringStore.add, Gate()

    async def held(store: FiringStore, subject: str, firings: Sequence[Firing]) -> list[FiringRow]:
        gate.reached.set()
        await gate.open.wait()
        return await add(store, subject, firings)

    monkeypatch.setattr(FiringStore, "add", held)
    return gate


async def test_reads_answer_while_each_written_choice_is_followed_by_another(
    sensed: tuple[Any, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, tell = sensed
    add, is_loaded = FiringStore.add, True

    async def refilled(
        store: FiringStore, subject: str, firings: Sequence[Firing]
    ) -> list[FiringRow]:
        if is_loaded:
            tell()
        return await add(store, subject, firings)

    monkeypatch.setattr(FiringStore, "add", refilled)
    tell()
    found, status = await soon(owner.events(50)), await soon(owner.status())
    assert await soon(owner.event(found.events[-1].id)) == found.events[-1]
    is_loaded = False
    recorded = getattr(status, "events_recorded_since_start", None) or status.events_recorded
    assert 1 <= len(found.events) == found.total <= recorded


async def test_a_read_waits_for_what_was_told_before_it(sensed: tuple[Any, Told]) -> None:
    owner, tell = sensed
    for _ in range(20):
        tell()
    assert (await soon(owner.events(50))).total == 20


async def test_a_read_waits_no_longer_than_its_bound_for_a_database_that_is_slow(
    sensed: tuple[Any, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, tell = sensed
    gate = hold_writing(monkeypatch)
    monkeypatch.setattr(module, "READ_SECONDS", 0.01)
    tell()
    assert (await soon(owner.events(50))).total == 0
    gate.open.set()
    await soon(owner.recorder.settled())
    assert (await soon(owner.events(50))).total == 1


async def test_clearing_takes_the_events_that_wait_too_and_only_those_of_its_subject(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await clusters.cluster(world, name="one")
    two = await clusters.cluster(world, name="two")
    gate = hold_writing(monkeypatch)
    recorder = world.cluster_sensing.recorder
    for row in (one, one, two, one):
        told = clusters.told(row)
        recorder.record_firings(
            row.id, [cluster_firing(told, span) for span in told.spans], 0.0, "x"
        )
    await soon(gate.reached.wait())
    clearing = world.begin(recorder.clear(one.id))
    await until(lambda: recorder.waiting == 1)
    gate.open.set()
    assert await soon(clearing) == 3
    found = await soon(world.cluster_sensing.events(50))
    assert ([one.profile_id for one in found.events], found.total) == ([two.id], 1)
