"""The messages of the slot: those that come at the same moment, inside a handler, or too late."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from steerserve.control.residency.events import LoadComplete, LoadError
from steerserve.control.residency.work import Work
from steerserve.database.catalog import ModelRow
from steerserve.rules.events import Event
from steerserve.rules.residency.swap import Phase
from tests.control.conftest import refused
from tests.control.residency.test_restoring import keys, steered
from tests.doubles import World
from tests.scripted_engine import ScriptedEngine
from tests.waiting import Gate, soon, turns, until

ENDED = "the load was ended by an operator"
TURNS = (None, 0, 1, 2, 3, 5, 8)
"""How many turns of the event loop after a step a load is ended; None for during the step."""


def hold_record(world: World, status: str, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Hold the next write of this status into the record of a model, behind the write."""
    write, gate = world.catalog.change_model, Gate()

    async def written(model_id: int, **values: Any) -> ModelRow:
        changed = await write(model_id, **values)
        if values.get("status") == status and not gate.reached.is_set():
            gate.reached.set()
            await gate.open.wait()
        return changed

    monkeypatch.setattr(world.catalog, "change_model", written)
    return gate


@pytest.mark.parametrize("step", ["loading", "launch", "load", "attach", "steer", "loaded"])
async def test_a_load_that_is_ended_at_any_moment_has_ended_or_serves_and_is_no_crash(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await steered(world)
    row = await world.catalog.model(1)
    await world.crash()
    for later in TURNS:
        is_record = step in ("loading", "loaded")
        gate = hold_record(world, step, monkeypatch) if is_record else world.launcher.hold(step)
        world.begin(world.conductor.load(row))
        await soon(gate.reached.wait())
        coming = world.resident
        if later is not None:
            gate.open.set()
            await turns(later)
        await soon(world.conductor.end_load(row.id))
        gate.open.set()
        if world.conductor.resident is None:
            assert (await refused(coming.ready)).message == ENDED
            assert await world.status(row) == ("ready", ENDED)
            assert world.launcher.alive == []
            assert (world.conductor.view().locked_id, world.conductor.view().engine_end) == (
                1,
                None,
            )
        else:
            await soon(coming.ready)
            await world.crash()
    await soon((await world.conductor.load(row)).ready)
    assert await world.status(row) == ("loaded", None)
    assert (keys(world), world.steering.state()) == (["sae_a@1"], (True, {1: 5.0}))


async def test_a_load_that_is_ended_before_its_work_began_starts_no_engine(world: World) -> None:
    row = await world.model()
    loading = world.begin(world.conductor.load(row))
    await until(lambda: world.phase is Phase.LOADING)
    await soon(world.conductor.end_load(row.id))
    assert (await refused((await soon(loading)).ready)).message == ENDED
    assert (world.phase, world.launcher.engines) == (Phase.EMPTY, [])


async def test_an_engine_that_comes_too_late_is_ended_and_serves_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await world.model()
    launch, gate = world.launcher.launch, world.launcher.hold("launch")

    async def launch_in_any_case(engine: str, _: str | None) -> ScriptedEngine:
        launching = asyncio.ensure_future(launch(engine))
        while not launching.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([launching])
        return launching.result()

    monkeypatch.setattr(world.launcher, "launch_resident", launch_in_any_case)
    coming = await world.conductor.load(row)
    await soon(gate.reached.wait())
    ending = await world.unloading(world.conductor.end_load(row.id))
    gate.open.set()
    await soon(ending)
    assert (await refused(coming.ready)).message == ENDED
    assert await world.status(row) == ("ready", ENDED)
    assert (len(world.launcher.engines), world.launcher.alive) == (1, [])
    assert world.published(LoadComplete) == []


async def test_what_a_handler_causes_is_handled_after_it(world: World) -> None:
    row = await world.model()
    was_locked: list[bool] = []

    def lock(event: Event) -> None:
        if isinstance(event, LoadComplete):
            world.conductor.lock(row.id)
            was_locked.append(world.resident.is_locked)

    world.bus.subscribe(lock)
    await soon((await world.conductor.load(row)).ready)
    assert (was_locked, world.resident.is_locked) == ([False], True)


async def test_an_unload_that_fails_inside_the_service_leaves_no_engine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await world.loaded()
    monkeypatch.setattr(Work, "end_engine", broken)
    await soon(world.conductor.unload(row.id))
    assert (world.phase, world.launcher.alive) == (Phase.EMPTY, [])


async def test_a_failed_load_that_cannot_be_cleared_frees_the_slot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await world.model()
    world.launcher.fail("load", RuntimeError("no such layer"))
    monkeypatch.setattr(Work, "clear_load", broken)
    assert (await refused((await world.conductor.load(row)).ready)).code == "MODEL_LOAD_FAILED"
    assert world.phase is Phase.EMPTY
    assert [event.error.code for event in world.published(LoadError)] == ["MODEL_LOAD_FAILED"]


async def test_a_swap_that_fails_before_the_unload_leaves_the_resident_serving(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.loaded("a")
    other = await world.model("b")
    monkeypatch.setattr(Work, "drain", broken)
    coming = await world.conductor.load(other)
    assert (await refused(coming.ready)).code == "MODEL_LOAD_FAILED"
    assert world.phase is Phase.LOADED
    await world.answered("a")


async def broken(*_: object) -> None:
    raise RuntimeError("inside the service")
