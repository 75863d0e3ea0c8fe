"""An engine that sends no heartbeat: what is refused, what waits, and when the engine is ended."""

from __future__ import annotations

import asyncio

import pytest

from steerserve.control.residency.occupant import Occupant
from steerserve.control.residency.watching import EngineWatch
from steerserve.errors import Refusal
from steerserve.rules.residency.heartbeat import LOOK_SECONDS, Activity, Bounds, Sign
from steerserve.rules.residency.swap import Phase
from tests.control.conftest import refused
from tests.doubles import World
from tests.waiting import soon, until


class Watched:
    """A watch over the loaded engine on a clock that the test moves."""

    def __init__(self, world: World) -> None:
        assert isinstance(world.resident, Occupant)
        self.engine = world.launcher.engine
        self.now = 0.0
        for task in asyncio.all_tasks():
            if task.get_name() == "engine-watch":  # the service's own watch has another clock
                task.cancel()
        self._watch = EngineWatch(world.resident, Bounds(60.0, 1800.0), lambda: self.now)
        self._watch.look()

    def silent(self, seconds: float, activity: Activity = Activity.IDLE) -> None:
        """The engine gives no sign for so long."""
        self.engine.silent = Sign(activity, 1)
        self._watch.look()
        for _ in range(int(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            self._watch.look()

    def alive(self) -> None:
        self.engine.silent = None
        self.now += LOOK_SECONDS
        self._watch.look()


@pytest.fixture
async def watched(world: World) -> Watched:
    """The watch over a loaded model with an SAE."""
    await world.attached()
    return Watched(world)


async def test_a_stalled_engine_refuses_edits_and_takes_them_again_when_it_wakes(
    world: World, watched: Watched
) -> None:
    watched.silent(9.5)
    await world.steering.set_values({1: 1.0})
    watched.silent(10)
    for edit in (
        world.steering.set_values({1: 5.0}),
        world.attachments.attach(await world.sae("sae_b"), 2),
        world.attachments.detach("sae_a"),
        world.monitoring.configure(),
    ):
        refusal = await refused(edit)
        assert refusal.code == "ENGINE_UNAVAILABLE"
        assert "no heartbeat for 10 s" in refusal.message
    assert world.steering.live.values == {"sae_a@1": {1: 1.0}}
    watched.alive()
    await soon(world.steering.set_values({1: 5.0}))
    assert world.launcher.engine.state.steering.values == {"sae_a@1": {1: 5.0}}
    assert world.phase is Phase.LOADED


async def test_an_edit_that_waits_when_the_engine_stalls_is_refused_and_changes_nothing(
    world: World, watched: Watched
) -> None:
    editing, _ = await world.held("steer", world.steering.set_values({1: 5.0}))
    watched.silent(10)
    assert (await refused(editing)).code == "ENGINE_UNAVAILABLE"
    assert world.steering.live.values == {}


async def test_a_detach_that_waits_for_requests_ends_when_the_engine_stalls(
    world: World, watched: Watched
) -> None:
    holder, stream = await world.in_flight()
    detaching = world.begin(world.attachments.detach("sae_a"))
    await until(world.conductor.editing.locked)
    watched.silent(10)
    assert (await refused(detaching)).code == "ENGINE_UNAVAILABLE"
    assert len(world.conductor.attachments()) == 1
    watched.alive()
    stream.complete("to its end")
    assert await soon(holder) == "to its end"


async def test_an_unload_of_a_stalled_engine_does_not_wait_for_its_requests(
    world: World, watched: Watched
) -> None:
    row = world.resident.row
    holder, stream = await world.in_flight()
    stream.start()
    unloading = await world.unloading(world.conductor.unload(row.id))
    watched.silent(10)
    await soon(unloading)
    assert (await refused(holder)).code == "MODEL_BUSY"
    assert world.launcher.alive == []
    assert world.phase is Phase.EMPTY


async def test_requests_outlast_a_stall_and_end_typed_when_it_is_too_long(
    world: World, watched: Watched
) -> None:
    row = world.resident.row
    asked, stream = await world.in_flight()
    stream.start()
    watched.silent(59, Activity.DECODE)
    assert not asked.done()
    assert world.launcher.alive
    watched.silent(60, Activity.DECODE)
    assert (await refused(asked)).code == "ENGINE_UNAVAILABLE"
    await until(lambda: world.conductor.resident is None)
    status, reason = await world.status(row)
    assert status == "ready"
    assert reason == "the engine has sent no heartbeat for 60 s (it was writing), and was ended"
    await world.answered()
    assert [a.sae_id for a in world.conductor.attachments()] == ["sae_a"]


async def test_a_stall_is_shown_by_health_and_turns_readiness(
    world: World, watched: Watched
) -> None:
    assert (await world.vitals.readiness()).ready
    watched.silent(12, Activity.PREFILL)
    engine = world.vitals.engine()
    assert engine is not None
    assert (engine.activity, engine.silent_seconds, engine.is_stalled) == ("prefill", 12.0, False)
    watched.silent(8, Activity.PREFILL)
    state = await world.vitals.readiness()
    assert (state.ready, state.status) == (False, "unhealthy")
    (component,) = [c for c in state.components if c.name == "engine"]
    assert component.message is not None
    assert component.message.startswith("stalled: the engine has sent no heartbeat for 20 s")
    detailed = await world.vitals.detailed()
    assert detailed.engine is not None
    assert detailed.engine.is_stalled
    assert world.vitals.liveness().status == "healthy"
    watched.alive()
    assert (await world.vitals.readiness()).ready


async def test_a_load_is_not_called_stalled_and_is_lost_after_its_bound(world: World) -> None:
    row = await world.model()
    resident, _ = await world.reaching("load", world.conductor.load(row))
    watched = Watched(world)
    watched.silent(1799, Activity.LOAD)
    assert watched.engine.heartbeat.stalled is None
    watched.silent(1800, Activity.LOAD)
    assert (await refused(resident.ready)).code == "MODEL_LOAD_FAILED"
    assert world.phase is Phase.EMPTY


async def test_an_engine_that_cannot_take_an_sae_back_is_ended(world: World) -> None:
    await world.loaded()
    row = world.resident.row
    await world.sae("sae_a")
    await world.sae("sae_b")
    world.launcher.fail("detach", Refusal("ENGINE_UNAVAILABLE", "it stands still"))
    attaching, gate = await world.held(
        "attach", world.attachments.attach_set([("sae_a", 1), ("sae_b", 2)])
    )
    world.launcher.fail("attach", Refusal("SAE_LOAD_FAILED", "damaged"))
    gate.open.set()
    assert (await refused(attaching)).code == "SAE_LOAD_FAILED"
    await until(lambda: world.conductor.resident is None)
    assert await world.status(row) == ("ready", "the engine could not take an SAE back")
