"""Edits reach every replica as one step: who acknowledged may have requests, who did not is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.rules.residency.replicas import ReplicaState
from tests.engines.fleet.conftest import Made
from tests.engines.fleet.scripted import KEY, Scene, attached, detached
from tests.refusals import refused
from tests.waiting import Gate, soon, until

ON = m.Steering(1, True, {KEY: {3: 5.0}})
OFF = m.Steering(2, False, {KEY: {3: 5.0}})


async def held_edit(one: Scene, steering: m.Steering) -> tuple[asyncio.Task[object], Gate]:
    """Begin an edit, which is held in the first engine."""
    gate = one.crew.launchers[0].hold("steer")
    edit = asyncio.create_task(one.fleet.change(m.setting(steering=steering)))
    await gate.reached.wait()
    return edit, gate


async def test_an_edit_is_one_step_of_the_epoch_on_every_replica(scene: Made) -> None:
    one = await scene(3)
    await one.fleet.change(attached)
    await one.fleet.change(m.setting(steering=ON))
    assert [one.engine(number).state.steering for number in range(3)] == [ON] * 3
    assert {view.epoch for view in one.fleet.replicas()} == {2}


async def test_no_request_begins_on_a_replica_that_has_not_made_the_edit(scene: Made) -> None:
    one = await scene(2)
    gates = [launcher.hold("steer") for launcher in one.crew.launchers]
    edit = asyncio.create_task(one.fleet.change(m.setting(steering=ON)))
    for gate in gates:
        await gate.reached.wait()
    requests = [one.ask(), one.ask()]
    await asyncio.sleep(0)
    assert one.engine(0).state.steering == one.engine(1).state.steering == m.Steering()
    gates[1].open.set()
    for _ in requests:
        (await one.stream(1)).complete()
        assert one.engine(1).state.steering == ON
    for request in requests:
        await request.text()
    assert not edit.done()
    assert "generate" not in one.crew.launchers[0].log
    gates[0].open.set()
    await soon(edit)
    await one.served_by(0)


@pytest.mark.parametrize("lead", range(-8, 9))
async def test_no_request_begins_between_the_beginning_of_an_edit_and_its_end(
    scene: Made, lead: int
) -> None:
    one = await scene(2)
    begun: list[tuple[int, int]] = []
    for name, launcher in zip(("r1", "r2"), one.crew.launchers, strict=True):
        launcher.step = _watched(launcher.step, one, name, begun)  # type: ignore[method-assign]
    works = [
        lambda: one.ask().task,
        lambda: asyncio.create_task(one.fleet.change(m.setting(steering=ON))),
    ]
    first, second = works if lead < 0 else works[::-1]
    tasks: list[asyncio.Task[object]] = [first()]
    for _ in range(abs(lead)):
        await asyncio.sleep(0)
    tasks.append(second())
    await until(lambda: begun)
    assert all(acknowledged == epoch for acknowledged, epoch in begun)
    for launcher in one.crew.launchers:
        launcher.engine.die()
    await asyncio.wait(tasks, timeout=0)
    await one.fleet.stop()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_edit_that_every_replica_refuses_changes_nothing(scene: Made) -> None:
    one = await scene(2)
    for launcher in one.crew.launchers:
        launcher.fail("attach", Refusal("SAE_LOAD_FAILED", "damaged"))
    with pytest.raises(Refusal, match="damaged"):
        await soon(one.fleet.change(attached))
    await one.serving("r1", "r2")
    assert one.fleet.passes.applied == {}
    await one.served_by(0)
    assert len(one.crew.launchers) == 2


async def test_a_replica_that_refuses_what_others_made_starts_again_with_it(scene: Made) -> None:
    one = await scene(2)
    one.crew.launchers[1].fail("attach", Refusal("SAE_LOAD_FAILED", "not on this node"))
    one.hold("load")
    await soon(one.fleet.change(attached))
    assert one.engine(1).ended.done()
    assert "not on this node" in (one.fleet.replicas()[1].reason or "")
    (await one.held()).open.set()
    await one.serving("r1", "r2")
    assert one.engine(2).attached == one.engine(0).attached


async def test_a_replica_that_answers_with_another_sae_is_left_behind(scene: Made) -> None:
    one = await scene(2)
    one.crew.launchers[1].made = m.Attached("layer", 3, 8, 17, [], {})
    await soon(one.fleet.change(attached))
    assert one.engine(1).ended.done()
    await one.serving("r1", "r2")


async def test_a_replica_that_ends_during_an_edit_does_not_fail_it(scene: Made) -> None:
    one = await scene(2)
    edit, _ = await held_edit(one, ON)
    one.engine(0).die()
    await soon(edit)
    await one.serving("r1", "r2")
    assert one.engine(2).state.steering == ON


async def test_a_replica_that_stands_still_during_an_edit_is_left_behind(scene: Made) -> None:
    one = await scene(2)
    edit, _ = await held_edit(one, ON)
    one.engine(0).heartbeat.stall(Refusal("ENGINE_UNAVAILABLE", "silent"))
    await soon(edit)
    await one.serving("r1", "r2")
    assert one.engine(0).ended.done()
    assert one.engine(2).state.steering == ON


async def test_a_replica_that_stood_still_before_an_edit_must_not_wake_without_it(
    scene: Made,
) -> None:
    one = await scene(2)
    one.engine(0).heartbeat.stall(Refusal("ENGINE_UNAVAILABLE", "silent"))
    one.replica("r1").move(ReplicaState.STALLED, "silent")
    await soon(one.fleet.change(m.setting(steering=ON)))
    assert one.engine(0).ended.done()
    await one.serving("r1", "r2")


async def test_an_edit_with_every_replica_gone_is_refused_and_made_by_nobody(scene: Made) -> None:
    one = await scene(1)
    edit, _ = await held_edit(one, ON)
    one.engine(0).die()
    assert (await refused(soon(edit))).code == "ENGINE_UNAVAILABLE"
    await one.serving("r1")
    assert one.engine(1).state.steering == m.Steering()


async def test_an_edit_waits_for_a_replica_that_serves(scene: Made) -> None:
    one = await scene(1)
    await one.kill(0)
    await soon(one.fleet.change(m.setting(steering=ON)))
    await one.serving("r1")
    assert one.engine(1).state.steering == ON


async def test_an_edit_whose_caller_has_gone_is_made_by_all(scene: Made) -> None:
    one = await scene(2)
    await one.fleet.change(attached)
    await one.fleet.change(m.setting(steering=ON))
    edit, gate = await held_edit(one, OFF)
    edit.cancel()
    await until(edit.done)
    gate.open.set()
    await soon(one.fleet.change(m.setting(monitored=m.Monitored(KEY))))
    assert [one.engine(number).state.steering for number in range(2)] == [OFF, OFF]
    assert one.fleet.state.steering == OFF
    await one.kill(0)
    await one.serving("r1", "r2")
    assert one.engine(2).state.steering == OFF


async def test_edits_are_made_one_after_the_other(scene: Made) -> None:
    one = await scene(2)
    first, gate = await held_edit(one, ON)
    second = asyncio.create_task(one.fleet.change(m.setting(steering=OFF)))
    await until(lambda: one.engine(1).state.steering == ON)
    gate.open.set()
    await soon(first)
    await soon(second)
    assert [one.engine(number).state.steering for number in range(2)] == [OFF, OFF]


async def test_edits_are_refused_while_the_whole_fleet_stands_still(scene: Made) -> None:
    one = await scene(2)
    one.fleet.heartbeat.stall(Refusal("ENGINE_UNAVAILABLE", "all silent"))
    with pytest.raises(Refusal, match="all silent"):
        await soon(one.fleet.change(m.setting(steering=ON)))
    one.fleet.heartbeat.wake()
    await soon(one.fleet.change(m.setting(steering=ON)))


async def test_after_a_detach_a_new_replica_is_told_nothing_of_that_sae(scene: Made) -> None:
    one = await scene(2)
    await one.fleet.change(attached)
    await one.fleet.change(m.setting(steering=ON))
    await one.fleet.change(m.setting(monitored=m.Monitored(KEY)))
    await one.fleet.change(detached)
    await one.kill(0)
    await one.serving("r1", "r2")
    new = one.engine(2)
    assert (new.attached, new.state.monitored) == ({}, None)
    assert new.state.steering == m.Steering(1, True, {})


def _watched(
    step: Callable[..., Awaitable[None]], one: Scene, name: str, begun: list[tuple[int, int]]
) -> Callable[..., Awaitable[None]]:
    """The steps of an engine. Notes the epochs of its replica and of the fleet when a request begins."""

    async def watched(what: str, *more: Any) -> None:
        if what == "generate":
            begun.append((one.replica(name).epoch, one.fleet._roster.epoch))
        await step(what, *more)

    return watched
