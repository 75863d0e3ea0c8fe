"""The replicas of the resident model: their figures, the slots they give, and the changes of an operator."""

from __future__ import annotations

import pytest

from steerserve.control.bus import ReplicaChanged
from steerserve.control.residency.replicas import ReplicaFigures, figures
from steerserve.errors import Refusal
from steerserve.rules.lease import Terms
from steerserve.rules.lock import LockedBy
from steerserve.rules.replicas import ReplicaState, Strength
from tests.control.conftest import Make
from tests.doubles import World, soon, until


@pytest.fixture
async def replicated(make: Make) -> World:
    """Three replicas of a loaded model, each with two slots."""
    async with make(max_concurrent_requests=2, max_pending_requests=3) as world:
        world.launcher.replicas = 3
        await world.loaded()
        yield world


def slots(world: World) -> int:
    return world.queue.counts().max_concurrent


async def test_one_process_has_no_replicas_and_refuses_their_changes(world: World) -> None:
    row = await world.loaded()
    assert world.replicas.now() is None
    for change in (
        world.replicas.resize(row.id, 2),
        world.replicas.drain(row.id, "replica-1"),
        world.replicas.replace(row.id, "replica-1"),
    ):
        with pytest.raises(Refusal) as refused:
            await change
        assert refused.value.code == "REPLICAS_UNAVAILABLE"
    with pytest.raises(Refusal) as refused:
        world.replicas.of_model(row.id)
    assert refused.value.code == "REPLICAS_UNAVAILABLE"
    assert slots(world) == world.settings.max_concurrent_requests


async def test_slots_are_those_of_the_replicas_that_serve(replicated: World) -> None:
    world, engine = replicated, replicated.launcher.engine
    assert slots(world) == 6
    engine.become("replica-2", ReplicaState.LOST, reason="its node went away")
    assert slots(world) == 4
    engine.become("replica-2", ReplicaState.SERVING, restarts=1)
    assert slots(world) == 6
    await world.conductor.unload(world.resident.row.id)
    assert slots(world) == 2


async def test_a_crash_of_all_replicas_leaves_the_slots_of_one(replicated: World) -> None:
    replicated.launcher.engine.die("no replica could be started")
    await until(lambda: replicated.conductor.resident is None)
    assert slots(replicated) == 2


async def test_figures_and_strength_follow_the_states(replicated: World) -> None:
    world, engine = replicated, replicated.launcher.engine
    assert figures(world.replicas.now()) == ReplicaFigures(3, 3, 1, Strength.WHOLE)
    engine.become("replica-1", ReplicaState.STALLED)
    assert figures(world.replicas.now()) == ReplicaFigures(3, 2, 1, Strength.DEGRADED)
    engine.become("replica-3", ReplicaState.DRAINING)
    assert figures(world.replicas.now()) == ReplicaFigures(2, 1, 1, Strength.DEGRADED)
    engine.become("replica-2", ReplicaState.LOST)
    assert figures(world.replicas.now()) == ReplicaFigures(2, 0, 1, Strength.NONE)


async def test_a_change_of_a_replica_is_published_with_the_figures(replicated: World) -> None:
    world, engine = replicated, replicated.launcher.engine
    before = len(world.published(ReplicaChanged))
    engine.become("replica-2", ReplicaState.LOST, reason="killed")
    (change,) = world.published(ReplicaChanged)[before:]
    assert (change.model_id, change.wanted, change.serving) == (world.resident.row.id, 3, 2)
    assert (change.replica.name, change.replica.reason) == ("replica-2", "killed")


async def test_a_resize_begins_at_once_and_holds_for_the_next_load(replicated: World) -> None:
    world, model_id = replicated, replicated.resident.row.id
    after = await world.replicas.resize(model_id, 5)
    assert (after.wanted, after.serving) == (5, 3)
    assert [view.name for view in after.replicas] == [f"replica-{n}" for n in range(1, 6)]
    assert (await world.replicas.resize(model_id, 2)).wanted == 2
    await world.conductor.unload(model_id)
    await soon((await world.conductor.load(await world.catalog.model(model_id))).ready)
    assert (slots(world), len(world.launcher.engine.replicas())) == (4, 2)


async def test_drain_takes_one_away_for_good_and_replace_keeps_the_number(
    replicated: World,
) -> None:
    world, model_id = replicated, replicated.resident.row.id
    replaced = await world.replicas.replace(model_id, "replica-1")
    assert (replaced.wanted, replaced.serving) == (3, 2)
    drained = await world.replicas.drain(model_id, "replica-3")
    assert (drained.wanted, drained.serving) == (2, 1)
    world.launcher.engine.become("replica-3", ReplicaState.ENDED)
    assert [v.name for v in world.replicas.of_model(model_id).replicas] == [
        "replica-1",
        "replica-2",
    ]
    assert world.launcher.replicas == 2


async def test_an_unknown_replica_and_a_model_that_is_not_loaded_are_refused(
    replicated: World,
) -> None:
    world, model_id = replicated, replicated.resident.row.id
    for change in (
        world.replicas.drain(model_id, "replica-9"),
        world.replicas.replace(model_id, "replica-9"),
    ):
        with pytest.raises(Refusal) as refused:
            await change
        assert refused.value.code == "REPLICA_NOT_FOUND"
    other = await world.model("b")
    with pytest.raises(Refusal) as refused:
        await world.replicas.resize(other.id, 2)
    assert refused.value.code == "MODEL_NOT_LOADED"
    gate = world.launcher.hold("stop")
    world.begin(world.conductor.load(other))
    await until(lambda: world.conductor.view().next_id == other.id or world.phase != "loaded")
    with pytest.raises(Refusal) as refused:
        await world.replicas.resize(model_id, 2)
    assert refused.value.code == "MODEL_BUSY"
    gate.open.set()


async def test_a_change_of_the_replicas_leaves_lock_lease_and_steering_as_they_are(
    replicated: World,
) -> None:
    world, model_id = replicated, replicated.resident.row.id
    await world.attachments.attach(await world.sae(), 1)
    world.conductor.lock(model_id)
    terms = Terms(holder="nightly", reason="a run", ttl_seconds=60)
    world.conductor.lease(world.resident.row, terms)
    live = world.serving.live
    world.launcher.engine.become("replica-2", ReplicaState.LOST)
    await world.replicas.resize(model_id, 1)
    assert world.conductor.view().lock is not None
    assert world.conductor.view().lock.by is LockedBy.OPERATOR
    assert world.conductor.leases.live() is not None
    assert world.serving.live == live


async def test_a_request_that_waits_runs_on_the_slots_of_a_new_replica(make: Make) -> None:
    async with make(max_concurrent_requests=1, max_pending_requests=3) as world:
        world.launcher.replicas = 1
        row = await world.loaded()
        first, running = await world.in_flight()
        second = world.begin(world.ask())
        await until(lambda: world.queue.counts().waiting == 1)
        await world.replicas.resize(row.id, 2)
        assert world.queue.counts().waiting == 1
        world.launcher.engine.become("replica-2", ReplicaState.SERVING)
        stream = await world.launcher.stream()
        assert world.queue.counts().waiting == 0
        for each in (running, stream):
            each.complete()
        await soon(first)
        await soon(second)


async def test_requests_that_need_no_slot_are_bounded_for_each_replica(make: Make) -> None:
    async with make(enable_continuous_batching=True, cbm_max_queue_size=3) as world:
        world.launcher.replicas = 2
        await world.loaded()
        limits = world.vitals.backend().cbm_config
        assert limits is not None
        assert limits.max_queue_size == 6
        world.launcher.engine.become("replica-1", ReplicaState.LOST)
        assert world.generation.batched_maximum == 3
