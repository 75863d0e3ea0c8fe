"""Live steering and the engine's copy of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from steerserve.control.residency.engine_state import Return
from steerserve.control.steering.events import SteeringUpdate, steering_update
from steerserve.database.catalog import SaeRow
from steerserve.errors import Refusal
from steerserve.rules.steering import live as rules
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import MANUAL, Placed
from tests.control.conftest import refused
from tests.doubles import World
from tests.refusals import refusal_of
from tests.waiting import soon, until

KEY = "sae_a@1"


def engine_of(world: World) -> Any:
    return world.launcher.engine


def in_engine(world: World) -> tuple[Any, ...]:
    return msgspec.structs.astuple(world.launcher.engine.state.steering)[:3]


@pytest.mark.shows("steering.10")
async def test_what_is_reported_is_what_the_engine_got(world: World) -> None:
    await world.attached()
    steps: list[tuple[Callable[[], Awaitable[None]], bool, dict[int, float]]] = [
        (lambda: world.steering.set_values({1: 5.0, 2: -3.0}), True, {1: 5.0, 2: -3.0}),
        (lambda: world.steering.set_values({2: 4.0}), True, {1: 5.0, 2: 4.0}),
        (world.steering.disable, False, {1: 5.0, 2: 4.0}),
        (world.steering.enable, True, {1: 5.0, 2: 4.0}),
        (lambda: world.steering.remove(1), True, {2: 4.0}),
        (lambda: world.steering.remove(2), False, {}),
        (lambda: world.steering.set_values({3: 1.0}), True, {3: 1.0}),
        (world.steering.clear, False, {}),
    ]
    first = world.steering.live.epoch + 1
    for epoch, (step, enabled, values) in enumerate(steps, first):
        await step()
        assert world.steering.state() == (enabled, values)
        assert in_engine(world) == (epoch, enabled, {KEY: values} if values else {})
        told = {str(index): value for index, value in values.items()}
        assert world.published(SteeringUpdate)[-1] == steering_update(enabled, told)
    assert world.steering.live.epoch == first + len(steps) - 1


@pytest.mark.shows("steering.10")
async def test_until_the_engine_has_an_edit_the_old_values_are_reported(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    gate = world.launcher.hold("steer")
    editing = world.begin(world.steering.set_values({1: 9.0}))
    await soon(gate.reached.wait())
    assert world.steering.state() == (True, {1: 5.0})
    gate.open.set()
    await soon(editing)
    assert world.steering.state() == (True, {1: 9.0})


@pytest.mark.parametrize(
    "error", [Refusal("ENGINE_UNAVAILABLE", "gone"), OSError("broken pipe")], ids=["refusal", "bug"]
)
async def test_a_push_that_fails_changes_nothing(world: World, error: Exception) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    before, told = world.steering.live, len(world.published(SteeringUpdate))
    world.launcher.fail("steer", error)
    with pytest.raises(type(error)):
        await world.steering.set_values({1: 9.0})
    assert world.steering.live is before
    assert len(world.published(SteeringUpdate)) == told
    await world.steering.set_values({2: 1.0})
    assert in_engine(world) == (before.epoch + 1, True, {KEY: {1: 5.0, 2: 1.0}})


async def test_an_edit_that_changes_nothing_is_not_pushed(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    pushed = world.launcher.log.count("steer")
    await world.steering.set_values({1: 5.0})
    await world.steering.enable()
    await world.steering.remove(2)
    assert world.launcher.log.count("steer") == pushed


async def test_without_a_model_there_is_no_sae_to_steer(world: World) -> None:
    refusal = refusal_of(world.steering.state)
    assert refusal.code == "SAE_NOT_ATTACHED"
    refusal = await refused(world.steering.clear())
    assert refusal.code == "SAE_NOT_ATTACHED"


async def test_concurrent_edits_all_count(world: World) -> None:
    await world.attached()
    first = world.steering.live.epoch
    gate = world.launcher.hold("steer")
    editing = [world.begin(world.steering.set_values({i: float(i + 1)})) for i in range(5)]
    await soon(gate.reached.wait())
    gate.open.set()
    await soon(asyncio.gather(*editing))
    values = {i: float(i + 1) for i in range(5)}
    assert world.steering.state() == (True, values)
    assert in_engine(world) == (first + 5, True, {KEY: values})


async def test_detaching_forgets_the_values_here_and_in_the_engine(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    await world.attachments.detach("sae_a")
    assert world.steering.live.values == {}
    assert not world.steering.live.enabled
    assert in_engine(world)[1:] == (False, {})
    assert world.published(SteeringUpdate)[-1] == steering_update(False, {})


async def test_values_do_not_come_back_with_the_next_model(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    row = world.resident.row
    await world.conductor.unload(row.id)
    await soon((await world.conductor.load(await world.catalog.model(row.id))).ready)
    await world.attachments.attach(await world.catalog.sae("sae_a"), 1)
    assert world.steering.state() == (False, {})
    await world.steering.set_values({2: 1.0})
    assert in_engine(world)[1:] == (True, {KEY: {2: 1.0}})


async def test_the_epoch_grows_with_an_sae_that_takes_values_away_and_not_with_an_attach(
    world: World,
) -> None:
    before = world.steering.live.epoch
    await world.attached()
    assert world.steering.live.epoch == before
    await world.steering.set_values({1: 5.0})
    async with world.steering.part([KEY]) as switch:
        switch()
    assert world.steering.live.epoch == before + 2
    assert in_engine(world) == (before + 2, False, {})


# ------------------------------------------------------------------ several SAEs


async def two(world: World, values: dict[str, dict[int, float]]) -> None:
    """Two attached SAEs with these values."""
    await world.loaded()
    for sae_id in ("sae_a", "sae_b"):
        await world.sae(sae_id)
    await soon(world.attachments.attach_set([("sae_a", 1), ("sae_b", 2)]))
    await own(world, values, MANUAL)


async def test_clearing_leaves_no_value_at_any_sae(world: World) -> None:
    await two(world, {})
    row = await world.profiles.create("p", steering={"2": 4.0}, sae_id="sae_b")
    await world.profiles.activate(row.id)
    assert world.steering.state() == (True, {})
    assert world.steering.others() == {"sae_b@2": {2: 4.0}}
    await world.steering.clear()
    assert (world.steering.live.enabled, world.steering.live.values) == (False, {})
    assert in_engine(world)[1:] == (False, {})
    assert world.serving.profile_id is None
    assert world.published(SteeringUpdate)[-1] == steering_update(False, {})


async def test_a_detach_of_the_first_tells_what_the_next_one_has(world: World) -> None:
    await two(world, {KEY: {1: 5.0}, "sae_b@2": {2: 7.0}})
    told = len(world.published(SteeringUpdate))
    await world.attachments.detach("sae_a")
    assert world.steering.state() == (True, {2: 7.0})
    assert world.published(SteeringUpdate)[told:] == [steering_update(True, {"2": 7.0})]


async def test_the_values_of_the_second_that_become_those_of_the_first_are_told(
    world: World,
) -> None:
    await two(world, {"sae_b@2": {2: 7.0}})
    assert world.published(SteeringUpdate)[-1] == steering_update(True, {}, {"sae_b@2": {"2": 7.0}})
    await world.attachments.detach("sae_a")
    assert world.published(SteeringUpdate)[-1] == steering_update(True, {"2": 7.0})


async def test_another_sae_in_the_first_place_is_told_also_without_values(world: World) -> None:
    await two(world, {KEY: {1: 5.0}})
    told = len(world.published(SteeringUpdate))
    await world.attachments.detach("sae_a")
    assert world.published(SteeringUpdate)[told:] == [steering_update(True, {})]


async def test_a_crash_tells_that_nothing_steers(world: World) -> None:
    await two(world, {KEY: {1: 5.0}})
    world.launcher.engine.die()
    await until(lambda: world.conductor.resident is None)
    assert world.published(SteeringUpdate)[-1] == steering_update(False, {})


# ------------------------------------------------------------------ owners, snapshots

CIRCUIT = "circuit:circ_1"


async def own(world: World, values: dict[str, dict[int, float]], owner: str = CIRCUIT) -> None:
    """What an owner steers becomes these values."""
    await world.steering.act(lambda live, _: rules.give(live, owner, Placed(values)))


async def restored(world: World, live: Live) -> None:
    """A snapshot, put back into the engine that runs."""
    back = Return(world.resident.row.id, engine_of(world), world.conductor.attachments())
    async with world.steering.put_back(back, lambda: live) as switch:
        switch()


async def test_the_engine_and_the_plain_routes_get_the_sum_over_the_owners(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 150.0})
    epoch = world.steering.live.epoch
    await own(world, {KEY: {1: 100.0, 2: 1.0}})
    assert world.steering.state() == (True, {1: 200.0, 2: 1.0})
    assert in_engine(world) == (epoch + 1, True, {KEY: {1: 200.0, 2: 1.0}})
    await own(world, {})
    assert in_engine(world) == (epoch + 2, True, {KEY: {1: 150.0}})


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_a_snapshot_is_restored_with_its_owners_and_one_step_of_the_epoch(
    world: World, is_enabled: bool
) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    await own(world, {KEY: {1: 1.0}})
    if not is_enabled:
        await world.steering.disable()
    before = world.steering.live
    await world.steering.clear()
    epoch = world.steering.live.epoch
    await restored(world, before)
    assert world.steering.live.owned == before.owned
    assert in_engine(world) == (epoch + 1, is_enabled, {KEY: {1: 6.0}})


async def test_restoring_leaves_out_what_is_not_attached(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    before = world.steering.live
    await world.attachments.detach("sae_a")
    await world.attachments.attach(await world.sae("sae_b"), 2)
    await restored(world, before)
    assert (world.steering.live.enabled, world.steering.live.values) == (True, {})
    assert in_engine(world)[1:] == (True, {})


async def test_a_restore_that_the_engine_refuses_changes_nothing(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    before = world.steering.live
    await world.steering.clear()
    now = world.steering.live
    world.launcher.fail("steer", Refusal("ENGINE_UNAVAILABLE", "gone"))
    with pytest.raises(Refusal):
        await restored(world, before)
    assert world.steering.live is now


async def unloaded(world: World) -> None:
    await soon(world.conductor.unload(world.resident.row.id))


@pytest.mark.parametrize("leave", [unloaded, World.crash])
async def test_every_engine_has_the_epoch_before_it_serves(
    world: World, leave: Callable[[World], Awaitable[None]]
) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    await world.attachments.detach("sae_a")
    for model in ("a", "b"):  # the same model again, and another one
        if model == "b":
            await world.model("b")
        await leave(world)
        served = world.begin(world.ask(model))
        (await world.launcher.stream()).complete("told")
        await soon(served)
        assert in_engine(world) == (world.steering.live.epoch, False, {})
    assert world.steering.live.epoch > 0


@pytest.mark.parametrize(
    ("step", "edit"),
    [
        ("attach", lambda world, sae: world.attachments.attach(sae, 2)),
        ("detach", lambda world, sae: world.attachments.attach(sae, 2)),
        ("attach", lambda world, sae: world.attachments.attach_set([(sae.id, 2), (sae.id, 3)])),
        ("detach", lambda world, sae: world.attachments.detach(sae.id)),
        ("steer", lambda world, sae: world.steering.set_values({2: 7.0})),
        ("steer", lambda world, sae: world.steering.clear()),
        ("monitor", lambda world, sae: world.monitoring.enable(True)),
    ],
)
async def test_an_edit_whose_caller_is_cancelled_leaves_the_owners_and_the_engine_alike(
    world: World, step: str, edit: Callable[[World, SaeRow], Awaitable[object]]
) -> None:
    sae = await world.attached()
    await world.steering.set_values({1: 5.0})
    before = world.launcher.engine.state
    editing, gate = await world.held(step, edit(world, sae))
    editing.cancel()
    gate.open.set()
    await asyncio.wait([editing])
    # the next edits come after it
    await soon(world.steering.everywhere(lambda live: live))
    async with world.conductor.editing:
        pass
    state, live = world.launcher.engine.state, world.steering.live
    assert state != before
    assert state.keys == [one.key for one in world.conductor.attachments()]
    assert in_engine(world) == (live.epoch, live.enabled, live.values)
    served = world.begin(world.ask())
    (await world.launcher.stream()).complete("told")
    assert await soon(served) == "told"
