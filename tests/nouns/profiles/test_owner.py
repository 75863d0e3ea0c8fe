"""The active profile and the live values: they change together, once, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.control.residency.engine_state import Return
from steerserve.control.steering.events import SteeringUpdate, steering_update
from steerserve.control.steering.serving import Serving
from steerserve.database.db import Database
from steerserve.errors import Refusal
from steerserve.nouns.profiles.owner import Profiles
from steerserve.nouns.profiles.store import ProfileRow, ProfileStore
from tests.doubles import World
from tests.waiting import Gate, soon

KEY = "sae_a@1"


async def saved(world: World, name: str = "calm", **fields: Any) -> ProfileRow:
    return await world.profiles.create(name, **{"steering": {"4": 2.0}} | fields)


def state(world: World) -> tuple[bool, dict[int, float], str | None]:
    live = world.steering.live
    return live.enabled, dict(live.values_at(KEY)), world.serving.profile_id


async def code_of(call: Any) -> str:
    with pytest.raises(Refusal) as refused:
        await soon(call)
    return refused.value.code


async def test_an_activation_is_one_push_one_step_and_one_event(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    row = await saved(world, steering={"4": 150.0}, intensity=2.0)
    epoch, pushed = world.steering.live.epoch, world.launcher.log.count("steer")
    told = len(world.published(SteeringUpdate))
    done = await world.profiles.activate(row.id)
    clamped = "the values were clamped to [-200, 200]: features 4"
    assert (done.applied_steering, done.feature_count, done.warnings) == (True, 1, (clamped,))
    assert state(world) == (True, {4: 200.0}, row.id)
    assert world.launcher.engine.state.steering == m.Steering(epoch + 1, True, {KEY: {4: 200.0}})
    assert world.launcher.log.count("steer") == pushed + 1
    assert world.published(SteeringUpdate)[told:] == [steering_update(True, {"4": 200.0})]
    assert await world.serving.active() == row


async def test_an_engine_that_fails_leaves_the_running_profile(world: World) -> None:
    await world.attached()
    running, other = await saved(world), await saved(world, "other", steering={"5": 1.0})
    await world.profiles.activate(running.id)
    before = world.steering.live
    for act in (
        lambda: world.profiles.activate(other.id),
        lambda: world.profiles.deactivate(running.id),
        lambda: world.profiles.remove(running.id),
    ):
        world.launcher.fail("steer", Refusal("ENGINE_UNAVAILABLE", "gone"))
        assert await code_of(act()) == "ENGINE_UNAVAILABLE"
        assert world.steering.live is before
    assert await world.profiles.get(running.id) == running


async def test_without_an_sae_only_an_empty_profile_is_activated(world: World) -> None:
    row, empty = await saved(world), await saved(world, "empty", steering={})
    for _ in ("without a model", "with a model"):
        assert await code_of(world.profiles.activate(row.id)) == "SAE_NOT_ATTACHED"
        assert world.serving.profile_id is None
        done = await world.profiles.activate(empty.id)
        assert (done.applied_steering, done.feature_count) == (False, 0)
        assert world.serving.profile_id == empty.id
        assert await world.profiles.deactivate(empty.id) is True
        assert world.serving.profile_id is None
        if world.conductor.resident is None:
            await world.loaded()


async def test_the_engine_learns_of_a_step_that_was_taken_without_an_sae(world: World) -> None:
    await world.loaded()
    await world.profiles.activate((await saved(world, "empty", steering={})).id)
    await world.attachments.attach(await world.sae(), 1)
    assert world.launcher.engine.state.steering == m.Steering(world.steering.live.epoch, False, {})


async def test_detaching_and_unloading_end_the_activity(world: World) -> None:
    await world.attached()
    row = await saved(world)
    await world.profiles.activate(row.id)
    await world.attachments.detach("sae_a")
    assert state(world) == (False, {}, None)
    await world.attachments.attach(await world.catalog.sae("sae_a"), 1)
    await world.profiles.activate(row.id)
    await world.conductor.unload(world.resident.row.id)
    assert state(world) == (False, {}, None)
    assert await world.serving.active() is None


async def test_a_snapshot_brings_the_active_profile_back(world: World) -> None:
    await world.attached()
    row = await saved(world)
    await world.profiles.activate(row.id)
    before = world.steering.live
    await world.attachments.detach("sae_a")
    await world.attachments.attach(await world.catalog.sae("sae_a"), 1)
    engine: Any = world.launcher.engine
    back = Return(world.resident.row.id, engine, world.conductor.attachments())
    async with world.steering.put_back(back, lambda: before) as switch:
        switch()
    assert state(world) == (True, {4: 2.0}, row.id)


async def test_a_change_of_the_active_profile_leaves_the_live_values_and_the_engine(
    world: World,
) -> None:
    await world.attached()
    row = await saved(world)
    await world.profiles.activate(row.id)
    before, pushed = world.steering.live, world.launcher.log.count("steer")
    changed = await world.profiles.change(row.id, {"steering": {"5": 1.0}, "name": "new"})
    assert (changed.steering, changed.name) == ({5: 1.0}, "new")
    after = world.steering.live
    assert (after.epoch, after.values) == (before.epoch, before.values)
    assert world.launcher.log.count("steer") == pushed
    assert await world.serving.active() == changed
    await world.profiles.activate(row.id)
    assert state(world) == (True, {5: 1.0}, row.id)


async def test_what_steers_the_second_sae_is_saved_as_its_own(world: World) -> None:
    await world.attached()
    await world.sae("sae_b")
    await soon(world.attachments.attach_set([("sae_b", 2)]))
    bound = await saved(world, sae_id="sae_b")
    await world.profiles.activate(bound.id)
    row = await world.profiles.save_current("now", None)
    assert (row.sae_id, row.layer, row.steering) == ("sae_b", 2, {4: 2.0})
    await world.steering.set_values({1: 5.0})
    assert await code_of(world.profiles.save_current("both", None)) == "PROFILE_INCOMPATIBLE"
    assert [row.name for row in (await world.profiles.page(200, 0))[0]] == ["calm", "now"]


async def test_a_profile_of_another_model_is_activated_with_a_warning(world: World) -> None:
    await world.attached()
    own = await saved(world, "own", model_id="a")
    assert (await world.profiles.activate(own.id)).warnings == ()
    other = await saved(world, "other", model_id="acme/else")
    (warning,) = (await world.profiles.activate(other.id)).warnings
    assert "acme/else" in warning


async def test_a_profile_bound_to_the_second_sae_goes_there(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0})
    first = world.conductor.first_attachment()
    await world.attachments.detach("sae_a")
    await world.attachments.attach(await world.sae("sae_b"), 2)
    world.resident.attachments = {first.key: first, **world.resident.attachments}
    row = await saved(world, sae_id="sae_b", layer=2)
    await world.profiles.activate(row.id)
    assert world.steering.live.values == {"sae_b@2": {4: 2.0}}


# ------------------------------------------------------------------ at the same time


async def test_an_activation_while_the_sae_is_detached_leaves_nothing_active(world: World) -> None:
    await world.attached()
    row = await saved(world)
    gate = world.launcher.hold("steer")
    activating = world.begin(world.profiles.activate(row.id))
    await soon(gate.reached.wait())
    detaching = world.begin(world.attachments.detach("sae_a"))
    gate.open.set()
    await soon(asyncio.gather(activating, detaching))
    assert state(world) == (False, {}, None)
    assert world.launcher.engine.state.steering == m.Steering(world.steering.live.epoch, False, {})


async def test_a_detach_that_comes_first_refuses_the_activation(world: World) -> None:
    await world.attached()
    row = await saved(world)
    await world.steering.set_values({1: 5.0})
    gate = world.launcher.hold("steer")
    detaching = world.begin(world.attachments.detach("sae_a"))
    await soon(gate.reached.wait())
    activating = world.begin(world.profiles.activate(row.id))
    gate.open.set()
    await soon(detaching)
    assert await code_of(activating) == "SAE_NOT_ATTACHED"
    assert state(world) == (False, {}, None)


async def test_of_two_activations_the_later_one_stands_whole(world: World) -> None:
    await world.attached()
    first, second = await saved(world), await saved(world, "other", steering={"5": 1.0})
    epoch = world.steering.live.epoch
    gate = world.launcher.hold("steer")
    one = world.begin(world.profiles.activate(first.id))
    await soon(gate.reached.wait())
    two = world.begin(world.profiles.activate(second.id))
    gate.open.set()
    await soon(asyncio.gather(one, two))
    assert state(world) == (True, {5: 1.0}, second.id)
    assert world.launcher.engine.state.steering == m.Steering(epoch + 2, True, {KEY: {5: 1.0}})


class Held(ProfileStore):
    """Documents that hold the first profile they read until they are told to hand it out."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.gate = Gate()

    async def row(self, row_id: str) -> ProfileRow:
        row = await super().row(row_id)
        if not self.gate.reached.is_set():
            self.gate.reached.set()
            await self.gate.open.wait()
        return row


async def test_a_profile_deleted_during_its_activation_is_active_no_longer(world: World) -> None:
    await world.attached()
    row = await saved(world)
    documents = Held(world.database)
    serving = Serving(
        documents, world.steering, world.conductor, world.catalog, world.settings, world.edit_parts
    )
    profiles = Profiles(documents, serving, world.conductor, world.catalog, world.edit_parts)
    activating = world.begin(profiles.activate(row.id))
    await soon(documents.gate.reached.wait())
    removing = world.begin(profiles.remove(row.id))
    for _ in range(20):
        (await world.profiles.page(200, 0))[0]  # time enough for a removal that does not wait
    documents.gate.open.set()
    await soon(activating)
    assert await soon(removing) is True
    assert state(world) == (False, {}, None)
