"""Monitoring, and the engine's copy of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.nouns.monitoring.form import (
    FeatureActivation,
    MonitoringActivation,
    MonitoringState,
)
from steerserve.nouns.monitoring.owner import Monitoring
from tests import asking
from tests.control.conftest import Make, refused
from tests.doubles import World
from tests.scripted_answers import WIDTH
from tests.waiting import soon, until

KEY = "sae_a@1"
SEEN = m.Recorded(9, "cmpl-1", KEY, 0, 7, 42, [(3, 2.5), (5, 1.0)], [(3, 2.5)], 2)
COUNT = m.FeatureCount(3, 4, 1.0, 0.5, 0.0, 2.0, 0.75)


async def attached(world: World, layer: int = 1) -> None:
    if world.conductor.resident is None:
        await world.loaded()
    await world.attachments.attach(await world.sae(), layer)


async def settled(world: World) -> None:
    """What an event began is over."""
    await until(lambda: not world.monitoring._tasks)


def engine(world: World) -> Any:
    return world.launcher.engine


async def test_what_is_reported_is_what_the_engine_got(world: World) -> None:
    await attached(world)
    state = await world.monitoring.configure(features=[5, 3, 5], history_size=7, top_k=2)
    assert engine(world).state.monitored == m.Monitored(KEY, [3, 5], 2)
    assert (state.enabled, state.monitored_features, state.history_size, state.top_k) == (
        True,
        (3, 5),
        7,
        2,
    )
    assert (world.monitoring.key(), world.monitoring.watched()) == (KEY, 2)
    state = await world.monitoring.enable(False)
    assert engine(world).state.monitored is None
    assert (state.enabled, state.monitored_features, state.history_size, state.top_k) == (
        False,
        (3, 5),
        7,
        2,
    )
    assert (world.monitoring.key(), world.monitoring.watched()) == (None, 0)
    state = await world.monitoring.enable(True)
    assert engine(world).state.monitored == m.Monitored(KEY, [3, 5], 2)
    state = await world.monitoring.configure()
    assert engine(world).state.monitored == m.Monitored(KEY, None, 10)
    assert (state.monitored_features, state.history_size, state.top_k) == ((), 100, 10)
    assert world.monitoring.watched() == WIDTH
    assert world.published(MonitoringState) == [
        MonitoringState(True, [3, 5]),
        MonitoringState(False, [3, 5]),
        MonitoringState(True, [3, 5]),
        MonitoringState(True, []),
    ]


async def test_until_the_engine_monitors_it_is_not_enabled(world: World) -> None:
    await attached(world)
    asked, gate = await world.held(
        "monitor", world.monitoring.configure(features=[3], history_size=5)
    )
    state = world.monitoring.state()
    assert (state.enabled, state.monitored_features, state.history_size) == (False, (), 100)
    gate.open.set()
    assert (await soon(asked)).enabled


@pytest.mark.parametrize(
    "edit",
    [
        lambda monitoring: monitoring.configure(features=[9], history_size=5, top_k=3),
        lambda monitoring: monitoring.enable(False),
    ],
)
async def test_what_the_engine_refuses_changes_nothing(
    world: World, edit: Callable[[Monitoring], Awaitable[Any]]
) -> None:
    await attached(world)
    before = await world.monitoring.configure(features=[3])
    world.launcher.fail("monitor", Refusal("INSUFFICIENT_MEMORY", "no room"))
    with pytest.raises(Refusal, match="no room"):
        await edit(world.monitoring)
    assert world.monitoring.state() == before
    assert engine(world).state.monitored == m.Monitored(KEY, [3], 10)
    assert len(world.published(MonitoringState)) == 1


# ---------------------------------------------------------------------- records


async def test_a_record_is_kept_and_published_with_its_largest_activations(world: World) -> None:
    await attached(world)
    await world.monitoring.configure()
    engine(world).on_record(SEEN)
    (record,) = world.monitoring.history(50)
    assert (record.request_id, record.sae_id, record.layer) == ("cmpl-1", "sae_a", 1)
    assert (record.choice, record.position, record.token, record.fired) == (0, 7, 42, 2)
    assert record.activations == ((3, 2.5), (5, 1.0))
    assert record.top_k == ((3, 2.5),)
    assert world.published(MonitoringActivation) == [
        MonitoringActivation(record.timestamp, "cmpl-1", 7, [FeatureActivation(3, 2.5)])
    ]
    assert world.monitoring.history(50, "cmpl-2") == []
    assert world.monitoring.state().history_count == 1
    assert world.monitoring.clear_history() == 1
    assert world.monitoring.history(50) == []


async def test_a_smaller_ring_keeps_the_newest_records(world: World) -> None:
    await attached(world)
    await world.monitoring.configure()
    for number in range(5):
        engine(world).on_record(m.Recorded(9, f"cmpl-{number}", KEY, 0, 1, 2, [], [], 0))
    await world.monitoring.configure(history_size=2)
    assert [r.request_id for r in world.monitoring.history(50)] == ["cmpl-4", "cmpl-3"]


async def test_a_request_is_named_to_the_engine_by_the_id_of_its_answer(world: World) -> None:
    await world.loaded()
    for wanted, label in (("chatcmpl-1", "chatcmpl-1"), ("", None)):
        asked = asking.to_write(answer_id=wanted)
        async with world.opened(asked):
            assert (await world.launcher.stream()).label == label


# ---------------------------------------------------------------------- statistics


async def test_statistics_are_those_of_the_engine_since_monitoring_began(world: World) -> None:
    await attached(world)
    counted = await world.monitoring.statistics()
    assert (counted.features, counted.since) == ([], None)
    assert engine(world).asked_statistics == []
    await world.monitoring.configure()
    engine(world).counted = m.Statistics(1, [COUNT], 9, 5)
    counted = await world.monitoring.statistics([3, 1], "max", 4)
    assert engine(world).asked_statistics == [([1, 3], "max", 4)]
    assert (counted.sae_id, counted.features) == ("sae_a", [COUNT])
    assert (counted.tokens, counted.activations) == (9, 5)
    assert await world.monitoring.counted(KEY, 3) == COUNT
    assert await world.monitoring.counted("sae_b@1", 3) is None


async def test_a_reset_counts_anew_from_now_on(world: World) -> None:
    await attached(world)
    assert await world.monitoring.reset_statistics() == 0
    await world.monitoring.configure()
    engine(world).counted = m.Statistics(1, [COUNT], 9, 5)
    began = (await world.monitoring.statistics()).since
    assert await world.monitoring.reset_statistics() == 1
    counted = await world.monitoring.statistics()
    assert (counted.features, counted.tokens) == ([], 0)
    assert began is not None
    assert counted.since is not None
    assert counted.since > began


async def test_toggling_and_reconfiguring_keep_the_statistics(world: World) -> None:
    await attached(world)
    await world.monitoring.configure()
    engine(world).counted = m.Statistics(1, [COUNT], 9, 5)
    began = (await world.monitoring.statistics()).since
    await world.monitoring.enable(False)
    await world.monitoring.configure(features=[3])
    counted = await world.monitoring.statistics()
    assert (counted.features, counted.since) == ([COUNT], began)


# ---------------------------------------------------------------------- attachments that change


async def test_a_detach_ends_monitoring_and_keeps_the_records(world: World) -> None:
    await attached(world)
    await world.monitoring.configure(features=[3], history_size=7, top_k=2)
    engine(world).on_record(SEEN)
    engine(world).counted = m.Statistics(1, [COUNT], 9, 5)
    await world.attachments.detach("sae_a")
    assert world.published(MonitoringState)[-1] == MonitoringState(False, [])
    await world.attachments.attach(await world.catalog.sae("sae_a"), 1)
    await settled(world)
    state = world.monitoring.state()
    assert (state.enabled, state.monitored_features) == (False, ())
    assert (state.history_size, state.top_k, state.history_count) == (7, 2, 1)
    assert (await world.monitoring.statistics()).since is None
    await world.monitoring.enable(True)
    assert engine(world).state.monitored == m.Monitored(KEY, None, 2)
    assert (await world.monitoring.statistics()).features == []


async def test_replacing_the_sae_ends_monitoring(world: World) -> None:
    await attached(world)
    await world.monitoring.configure(features=[3])
    await world.attachments.attach(await world.sae("sae_b"), 1)
    await settled(world)
    state = world.monitoring.state()
    assert (state.enabled, state.sae_id, state.monitored_features) == (False, "sae_b", ())
    await world.monitoring.configure()
    assert engine(world).state.monitored == m.Monitored("sae_b@1", None, 10)


async def test_another_sae_beside_it_changes_nothing(world: World) -> None:
    await attached(world)
    before = await world.monitoring.configure(features=[3])
    await world.sae("sae_b")
    await world.attachments.attach_set([("sae_b", 2)])
    await world.attachments.detach("sae_b")
    await settled(world)
    assert world.monitoring.state() == before
    assert engine(world).state.monitored == m.Monitored(KEY, [3], 10)


async def test_a_detach_during_an_edit_is_not_undone_by_it(world: World) -> None:
    await attached(world)
    detaching, gate = await world.held("detach", world.attachments.detach("sae_a"))
    asked = world.begin(world.monitoring.configure(features=[3]))
    await until(lambda: "reset_statistics" in world.launcher.log)
    gate.open.set()
    await soon(detaching)
    await world.attachments.attach(await world.catalog.sae("sae_a"), 1)
    assert (await refused(asked)).code == "SAE_NOT_ATTACHED"
    assert world.monitoring.state().enabled is False
    assert world.monitoring.key() is None


async def test_unloading_the_model_ends_monitoring(world: World) -> None:
    row = await world.loaded()
    await attached(world)
    await world.monitoring.configure(features=[3])
    await world.conductor.unload(row.id)
    assert world.monitoring.state().enabled is False
    await soon((await world.conductor.load(row)).ready)
    await world.attachments.attach(await world.catalog.sae("sae_a"), 1)
    await settled(world)
    assert world.monitoring.state().enabled is False
    assert engine(world).state.monitored is None


# ---------------------------------------------------------------------- engines that end by themselves


async def crashed(world: World) -> None:
    """A monitored model whose engine ended by itself."""
    await attached(world)
    await world.monitoring.configure(features=[3], top_k=2)
    engine(world).die()
    assert world.monitoring.state().enabled is False
    await until(lambda: world.conductor.resident is None)


async def test_the_next_engine_goes_on_with_the_sae_that_it_gets_back(world: World) -> None:
    row = await world.loaded()
    await crashed(world)
    assert world.published(MonitoringState)[-1].enabled is False
    await soon((await world.conductor.load(row)).ready)
    await until(lambda: world.monitoring.state().enabled)
    await settled(world)
    assert len(world.launcher.engines) == 2
    assert world.launcher.log.count("monitor") == 2
    assert engine(world).state.monitored == m.Monitored(KEY, [3], 2)
    assert world.published(MonitoringState)[-1] == MonitoringState(True, [3])
    engine(world).on_record(SEEN)
    assert world.monitoring.state().history_count == 1


async def test_it_is_not_enabled_before_the_next_engine_monitors(world: World) -> None:
    row = await world.loaded()
    await crashed(world)
    gate = world.launcher.hold("monitor")
    await soon((await world.conductor.load(row)).ready)
    await soon(gate.reached.wait())
    assert world.monitoring.state().enabled is False
    gate.open.set()
    await until(lambda: world.monitoring.state().enabled)


async def test_a_next_engine_that_refuses_leaves_it_off(world: World) -> None:
    row = await world.loaded()
    await crashed(world)
    world.launcher.fail("monitor", Refusal("INSUFFICIENT_MEMORY", "no room"))
    await soon((await world.conductor.load(row)).ready)
    await until(lambda: world.launcher.log.count("monitor") == 2)
    await settled(world)
    assert world.monitoring.state().enabled is False
    engine(world).die()
    await until(lambda: world.conductor.resident is None)
    await soon((await world.conductor.load(row)).ready)
    await settled(world)
    assert world.monitoring.state().enabled is False
    await world.monitoring.enable(True)
    assert engine(world).state.monitored == m.Monitored(KEY, [3], 2)


async def test_what_was_meant_for_a_lost_sae_is_not_taken_for_another(world: World) -> None:
    row = await world.loaded()
    await crashed(world)
    world.conductor.unlock(row.id)
    await world.model("b")
    asked, stream = await world.in_flight("b")
    stream.complete()
    await soon(asked)
    await world.attachments.attach(await world.sae("sae_b"), 1)
    await settled(world)
    state = world.monitoring.state()
    assert (state.enabled, state.sae_id, state.monitored_features) == (False, "sae_b", ())
    await world.monitoring.enable(True)
    assert engine(world).state.monitored == m.Monitored("sae_b@1", None, 2)


async def test_an_sae_taken_out_after_the_crash_is_not_monitored_again(world: World) -> None:
    row = await world.loaded()
    await crashed(world)
    await world.attachments.detach("sae_a")
    await soon((await world.conductor.load(row)).ready)
    await world.attachments.attach(await world.catalog.sae("sae_a"), 1)
    await settled(world)
    assert world.monitoring.state().enabled is False
    assert engine(world).state.monitored is None


# ---------------------------------------------------------------------- what else is told of it


@pytest.mark.shows("continuous-batching.1")
@pytest.mark.parametrize("forced", [False, True])
async def test_monitored_requests_take_a_slot_where_that_is_set(make: Make, forced: bool) -> None:
    async with make(
        enable_continuous_batching=True,
        cbm_default_temperature=1.0,
        cbm_force_serial_monitoring=forced,
    ) as world:
        await attached(world)

        async def backend() -> str:
            async with world.opened(asking.to_write()) as run:
                return run.backend

        assert await backend() == "cbm"
        await world.monitoring.configure()
        assert await backend() == ("serial" if forced else "cbm")
        await world.monitoring.enable(False)
        assert await backend() == "cbm"


async def test_two_edits_at_once_end_in_the_state_of_the_second(world: World) -> None:
    await attached(world)
    first, gate = await world.held("monitor", world.monitoring.configure(features=[3]))
    second = world.begin(world.monitoring.configure(features=[5], top_k=2))
    gate.open.set()
    await soon(asyncio.gather(first, second))
    assert engine(world).state.monitored == m.Monitored(KEY, [5], 2)
    assert world.monitoring.state().monitored_features == (5,)
