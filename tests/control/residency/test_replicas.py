"""The replicas of the resident model: their figures, the slots they give, and the changes of an operator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from steerserve import messages as m
from steerserve.control.residency.events import ReplicaChanged
from steerserve.control.residency.replicas import figures
from steerserve.engines.remote.facts import checkpoint_seen, read_facts
from steerserve.errors import Refusal
from steerserve.rules.residency.gpus import Card
from steerserve.rules.residency.lease import Terms
from steerserve.rules.residency.lock import LockedBy
from steerserve.rules.residency.replicas import ReplicaFigures, ReplicaState, Strength
from steerserve.rules.units import MIB
from tests.control.conftest import Make, refused
from tests.doubles import World
from tests.nodes import NodeSeen
from tests.refusals import refusal_of
from tests.waiting import soon, until


@pytest.fixture
async def replicated(make: Make) -> AsyncIterator[World]:
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
        assert (await refused(change)).code == "REPLICAS_UNAVAILABLE"
    assert refusal_of(world.replicas.of_model, row.id).code == "REPLICAS_UNAVAILABLE"
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


def card_of(index: int, free_mb: int) -> Card:
    return Card(index, f"GPU-{index}", "a card", 1000, 1000 - free_mb, free_mb, index)


def with_room(
    world: World, *rooms: int, digest: str | None = None, cards: Sequence[Card] = ()
) -> None:
    """From now on the cluster has a node with so many MiB free for each of the rooms."""

    def nodes(folders: Sequence[str]) -> list[NodeSeen]:
        seen = {folder: digest or checkpoint_seen(folder) for folder in folders}
        facts = [read_facts("10.0.0.1")] * len(rooms)
        return [
            NodeSeen(
                f"node-{number}",
                one.address,
                {"CPU": 8.0},
                replace(
                    one,
                    name=f"node-{number}",
                    free_host_mb=free,
                    total_host_mb=90_000,
                    cards=tuple(cards),
                ),
                seen,
            )
            for number, (one, free) in enumerate(zip(facts, rooms, strict=True), 1)
        ]

    world.launcher.has_nodes = True
    world.launcher.cluster_nodes = nodes


async def test_replicas_for_which_no_node_has_memory_are_refused_before_any_is_started(
    replicated: World,
) -> None:
    world, model_id = replicated, replicated.resident.row.id
    with_room(world, 0, 0)
    for change in (
        world.replicas.resize(model_id, 4),
        world.replicas.replace(model_id, "replica-1"),
    ):
        refusal = await refused(change)
        assert refusal.code == "INSUFFICIENT_MEMORY"
        assert "room for 0 of the 1 replicas" in refusal.message
        assert set(refusal.details["nodes"]) == {"node-1", "node-2"}
    assert not {"resize", "replace"} & set(world.launcher.log)
    assert (world.replicas.of_model(model_id).wanted, world.launcher.replicas) == (3, 3)
    # fewer replicas need no room, and a lost one is replaced in its own place
    assert (await world.replicas.resize(model_id, 2)).wanted == 2
    with_room(world, 80_000, 1)
    assert (await world.replicas.resize(model_id, 3)).wanted == 3


async def test_replicas_that_start_or_are_lost_need_room_beside_the_new_ones(
    replicated: World,
) -> None:
    world, model_id = replicated, replicated.resident.row.id
    needed = await needed_mb(world)
    world.launcher.engine.become("replica-3", ReplicaState.LOST)
    with_room(world, needed)
    with pytest.raises(Refusal, match="room for 1 of the 2 replicas"):
        await world.replicas.resize(model_id, 4)
    assert (await world.replicas.replace(model_id, "replica-3")).wanted == 3
    with_room(world, 2 * needed)
    assert (await world.replicas.resize(model_id, 4)).wanted == 4


async def needed_mb(world: World) -> int:
    """The MiB that one more replica needs."""
    with_room(world, 0)
    refusal = await refused(world.replicas.resize(world.resident.row.id, 4))
    return int(refusal.details["per_card"][0]["needed_mb"])


async def test_a_node_with_other_files_gives_no_room_and_is_named(replicated: World) -> None:
    with_room(replicated, 80_000, digest="of other files")
    refusal = await refused(replicated.replicas.resize(replicated.resident.row.id, 4))
    assert refusal.code == "INVALID_LOCAL_PATH"
    assert "node-1: it has other files in" in refusal.message


async def test_an_sae_for_which_a_node_has_no_memory_is_refused_before_any_replica_gets_it(
    replicated: World,
) -> None:
    world, engine = replicated, replicated.launcher.engine
    engine.become("replica-3", ReplicaState.SERVING, node="node-2")
    # 2 x 8 x 2^16 x 4 bytes x 1.1 = 4.4 MiB
    sae = await world.sae("sae_wide", d_sae=1 << 16)
    with_room(world, 7, 80_000)
    for attach in (
        world.attachments.attach(sae, 1),
        world.attachments.attach_set([("sae_wide", 1)], "float32"),
    ):
        refusal = await refused(attach)
        assert refusal.code == "INSUFFICIENT_MEMORY"
        assert (refusal.details["node"], refusal.details["available_mb"]) == (
            "node-1",
            7,
        )
        assert set(refusal.details["nodes"]) == {"node-1"}
    assert "attach" not in world.launcher.log
    # a replica that is started again tells for itself whether it has room
    engine.become("replica-2", ReplicaState.LOST)
    assert (await world.attachments.attach(sae, 1)).sae_id == "sae_wide"


async def test_an_sae_is_checked_against_the_cards_of_each_replica(replicated: World) -> None:
    world, engine = replicated, replicated.launcher.engine
    sae = await world.sae("sae_wide", d_sae=1 << 16)
    for number in (1, 2, 3):
        engine.become(f"replica-{number}", ReplicaState.SERVING, gpu_indices=(number,))
    free_mb = {1: 90, 2: 4, 3: 90}
    with_room(world, 0, cards=[card_of(number, free) for number, free in free_mb.items()])
    with pytest.raises(Refusal, match="4 MiB are free") as refused:
        await world.attachments.attach(sae, 1)
    assert refused.value.details["device"] == "the cards 2 of node-1"
    engine.kept["replica-2"] = m.Measured(0, {"cuda:0": (20 * MIB, 21 * MIB)})
    assert (await world.attachments.attach(sae, 1)).sae_id == "sae_wide"


async def test_nodes_that_cannot_be_asked_keep_no_sae_from_the_replicas(
    replicated: World,
) -> None:
    world = replicated

    def refuse(_: Sequence[str]) -> list[NodeSeen]:
        raise Refusal("ENGINE_UNAVAILABLE", "the cluster has lost its head")

    world.launcher.cluster_nodes = refuse
    assert (await world.attachments.attach(await world.sae(), 1)).sae_id == "sae_a"


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
        assert (await refused(change)).code == "REPLICA_NOT_FOUND"
    other = await world.model("b")
    assert (await refused(world.replicas.resize(other.id, 2))).code == "MODEL_NOT_LOADED"
    gate = world.launcher.hold("stop")
    world.begin(world.conductor.load(other))
    await until(lambda: world.conductor.view().next_id == other.id or world.phase != "loaded")
    assert (await refused(world.replicas.resize(model_id, 2))).code == "MODEL_BUSY"
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
