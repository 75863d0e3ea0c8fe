"""An engine that ends by itself: what it had is put back before its model serves again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.control.residency.events import SaeAttached, SaeDetached
from steerserve.errors import Refusal
from tests.control.conftest import refused
from tests.doubles import World
from tests.waiting import soon, until

DAMAGED = Refusal("SAE_LOAD_FAILED", "the weights are damaged")
LACKING = Refusal("INSUFFICIENT_MEMORY", "the SAE takes 9 MiB; 3 MiB are free", projected_mb=9)


async def steered(world: World, members: Sequence[tuple[str, int]] = (("sae_a", 1),)) -> None:
    """Model a is loaded, the SAEs are attached, and the first steers."""
    await world.loaded()
    for sae_id in dict.fromkeys(sae_id for sae_id, _ in members):
        await world.sae(sae_id)
    await soon(world.attachments.attach_set(members))
    await world.steering.set_values({1: 5.0})


def keys(world: World) -> list[str]:
    return [attachment.key for attachment in world.conductor.attachments()]


async def test_the_request_that_loads_again_is_served_steered(world: World) -> None:
    await steered(world)
    values, epoch = world.steering.live.values, world.steering.live.epoch
    asked = world.launcher.engine.state.saes
    await world.crash()
    assert keys(world) == []
    assert [a.place for a in world.conductor.reattaching.pending()] == [(1, "sae_a@1")]
    begin = len(world.launcher.log)
    await world.answered()
    assert world.launcher.log[begin:] == [
        "launch",
        "load",
        "attach",
        "steer",
        "generate",
        "generated",
    ]
    assert keys(world) == ["sae_a@1"]
    assert world.launcher.engine.state.saes == asked
    assert world.launcher.engine.state.steering == m.Steering(
        world.steering.live.epoch, True, {"sae_a@1": {1: 5.0}}
    )
    assert world.steering.live.values == values
    assert world.steering.live.epoch > epoch
    assert world.resident.is_locked
    assert world.conductor.reattaching.pending() == []


async def test_records_and_events_tell_what_is_attached_meanwhile(world: World) -> None:
    await steered(world)
    sae = await world.catalog.sae("sae_a")
    await world.crash()
    assert await world.sae_status(sae) == "cached"
    assert world.published(SaeDetached) == [SaeDetached("sae_a")]
    await world.answered()
    await until(lambda: len(world.published(SaeAttached)) == 2)
    assert await world.sae_status(sae) == "attached"


async def test_a_load_over_the_management_puts_back_too(world: World) -> None:
    await steered(world, [("sae_a", 1), ("sae_b", 2)])
    await world.crash()
    await soon((await world.conductor.load(await world.catalog.model(1))).ready)
    assert keys(world) == ["sae_a@1", "sae_b@2"]
    assert world.steering.state() == (True, {1: 5.0})


async def test_what_was_disabled_stays_disabled(world: World) -> None:
    await steered(world)
    await world.steering.disable()
    await world.crash()
    await world.answered()
    assert world.steering.state() == (False, {1: 5.0})
    assert world.launcher.engine.state.steering.enabled is False


async def test_an_unlocked_model_comes_back_unlocked(world: World) -> None:
    await steered(world)
    world.conductor.unlock(1)
    await world.crash()
    await world.answered()
    assert not world.resident.is_locked


async def test_a_second_crash_is_no_different(world: World) -> None:
    await steered(world)
    for _ in range(2):
        await world.crash()
        await world.answered()
    assert world.steering.state() == (True, {1: 5.0})


async def test_an_unload_forgets(world: World) -> None:
    await steered(world)
    await soon(world.conductor.unload(1))
    await world.answered()
    assert keys(world) == []
    assert world.steering.live.values == {}


async def test_another_model_over_the_management_forgets(world: World) -> None:
    await steered(world)
    other = await world.model("b")
    await world.crash()
    await soon((await world.conductor.load(other)).ready)
    await world.answered("a")
    assert keys(world) == []


async def test_a_request_for_another_model_does_not_make_the_first_forget(world: World) -> None:
    await steered(world)
    await world.model("b")
    await world.crash()
    world.conductor.unlock(1)
    await world.answered("b")
    assert keys(world) == []
    await world.answered("a")
    assert world.steering.state() == (True, {1: 5.0})


async def test_what_cannot_be_attached_again_refuses_every_request_and_names_the_sae(
    world: World,
) -> None:
    await steered(world)
    row = await world.catalog.model(1)
    await world.crash()
    world.launcher.fail("attach", DAMAGED)
    refusal = await refused(world.ask())
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert "SAE sae_a at layer 1" in refusal.message
    assert DAMAGED.message in refusal.message
    assert refusal.details == {"cause": "SAE_LOAD_FAILED", "sae_id": "sae_a", "layer": 1}
    assert (await world.status(row))[0] == "error"
    assert world.launcher.alive == []
    begun = len(world.launcher.engines)
    again = await refused(world.ask())
    assert again.code == "MODEL_LOAD_FAILED"
    assert "sae_a" in again.message
    assert len(world.launcher.engines) == begun


async def test_a_load_after_that_tries_again(world: World) -> None:
    await steered(world)
    await world.crash()
    world.launcher.fail("attach", DAMAGED)
    await refused(world.ask())
    await soon((await world.conductor.load(await world.catalog.model(1))).ready)
    assert world.steering.state() == (True, {1: 5.0})


async def test_detaching_what_is_lost_lets_the_model_load_without_it(world: World) -> None:
    await steered(world, [("sae_a", 1), ("sae_b", 2)])
    await world.crash()
    world.launcher.fail("attach", DAMAGED)
    await refused(world.ask())
    assert await soon(world.attachments.detach("sae_a")) == 0
    assert (await refused(world.attachments.detach("sae_a"))).code == "SAE_NOT_ATTACHED"
    await soon((await world.conductor.load(await world.catalog.model(1))).ready)
    assert keys(world) == ["sae_b@2"]
    assert world.steering.live.values == {}


async def test_a_deleted_sae_is_not_wanted_back(world: World) -> None:
    await steered(world, [("sae_a", 1), ("sae_b", 2)])
    await world.crash()
    await world.saes.remove("sae_a")
    await world.answered()
    assert keys(world) == ["sae_b@2"]
    assert world.steering.live.values == {}


async def test_when_every_sae_was_deleted_the_model_is_plain_and_unlocked(world: World) -> None:
    await steered(world)
    await world.crash()
    await world.saes.remove("sae_a")
    await world.answered()
    assert keys(world) == []
    assert not world.resident.is_locked
    assert world.conductor.reattaching.pending() == []


async def test_a_lack_of_memory_is_tried_again_by_the_next_request(world: World) -> None:
    await steered(world)
    await world.crash()
    world.launcher.fail("attach", LACKING)
    assert (await refused(world.ask())).details["cause"] == "INSUFFICIENT_MEMORY"
    await world.answered()
    assert world.steering.state() == (True, {1: 5.0})


@pytest.mark.parametrize("step", ["attach", "steer"])
async def test_an_engine_that_ends_while_it_is_given_back_what_it_had_serves_nobody(
    world: World, step: str
) -> None:
    await steered(world)
    sae = await world.catalog.sae("sae_a")
    await world.crash()
    asked, _ = await world.held(step, world.ask())
    world.launcher.engine.die()
    assert (await refused(asked)).code == "MODEL_LOAD_FAILED"
    assert await world.sae_status(sae) == "cached"
    assert world.conductor.resident is None
    assert world.steering.live.values == {}
    await soon((await world.conductor.load(await world.catalog.model(1))).ready)
    assert world.steering.state() == (True, {1: 5.0})


async def test_an_edit_of_the_steering_during_the_return_comes_after_it(world: World) -> None:
    await steered(world)
    await world.crash()
    asked, gate = await world.held("steer", world.ask())
    editing = world.begin(world.steering.set_values({1: 9.0}))
    gate.open.set()
    (await world.launcher.stream()).complete()
    await soon(asked)
    await soon(editing)
    assert world.steering.state() == (True, {1: 9.0})


async def test_a_detach_that_the_crash_interrupts_has_not_happened(world: World) -> None:
    await steered(world)
    detaching, _ = await world.held("detach", world.attachments.detach("sae_a"))
    world.launcher.engine.die()
    assert (await refused(detaching)).row.api in (400, 503)
    await until(lambda: world.conductor.resident is None)
    await world.answered()
    assert world.steering.state() == (True, {1: 5.0})


async def test_a_replacing_attach_that_the_crash_interrupts_leaves_the_old_one(
    world: World,
) -> None:
    await steered(world)
    new = await world.sae("sae_new")
    attaching, _ = await world.held("detach", world.attachments.attach(new, 2))
    world.launcher.engine.die()
    await refused(attaching)
    await until(lambda: world.conductor.resident is None)
    await world.answered()
    assert keys(world) == ["sae_a@1"]
    assert world.steering.state() == (True, {1: 5.0})


# ------------------------------------------------------------------ what an operator does meanwhile


async def crashed_with_profile(world: World) -> str:
    """The id of a profile that was active when the engine ended."""
    await steered(world)
    row = await world.profiles.create("p", steering={"2": 4.0})
    await world.profiles.activate(row.id)
    await world.crash()
    return row.id


FELLED: list[tuple[str, Callable[[World, str], Awaitable[Any]]]] = [
    ("deleted", lambda world, row: world.profiles.remove(row)),
    ("deactivated", lambda world, row: world.profiles.deactivate(row)),
    ("cleared", lambda world, _: world.steering.clear()),
]


@pytest.mark.parametrize("end", [end for _, end in FELLED], ids=[name for name, _ in FELLED])
async def test_what_was_ended_meanwhile_does_not_come_back(
    world: World, end: Callable[[World, str], Awaitable[Any]]
) -> None:
    profile_id = await crashed_with_profile(world)
    assert await end(world, profile_id) in (True, None)
    await world.answered()
    assert keys(world) == ["sae_a@1"]
    assert world.steering.state() == (False, {})
    assert world.serving.profile_id is None
    assert world.launcher.engine.state.steering == m.Steering(world.steering.live.epoch, False, {})


async def test_a_profile_deactivated_meanwhile_may_leave_its_values(world: World) -> None:
    profile_id = await crashed_with_profile(world)
    assert await world.profiles.deactivate(profile_id, clears=False) is False
    await world.answered()
    assert world.steering.state() == (True, {2: 4.0})
    assert world.serving.profile_id is None


async def test_an_empty_profile_activated_meanwhile_is_what_comes_back(world: World) -> None:
    profile_id = await crashed_with_profile(world)
    empty = await world.profiles.create("empty", steering={})
    await world.profiles.activate(empty.id)
    await world.answered()
    assert world.steering.state() == (False, {})
    assert world.serving.profile_id == empty.id
    assert await world.profiles.remove(profile_id) is False


async def test_another_profile_deleted_meanwhile_changes_nothing(world: World) -> None:
    await steered(world)
    row = await world.profiles.create("p", steering={"2": 4.0})
    other = await world.profiles.create("other", steering={"2": 4.0})
    await world.profiles.activate(row.id)
    await world.crash()
    assert await world.profiles.remove(other.id) is False
    await world.answered()
    assert world.steering.state() == (True, {2: 4.0})
    assert world.serving.profile_id == row.id


async def test_a_profile_changed_meanwhile_comes_back_with_the_new_values_for_the_dial(
    world: World,
) -> None:
    profile_id = await crashed_with_profile(world)
    await world.profiles.change(profile_id, {"steering": {"3": 1.0}})
    await world.answered()
    assert world.steering.state() == (True, {2: 4.0})
    active = world.serving.live.active
    assert active is not None
    assert active.authored == {3: 1.0}


async def test_a_model_unlocked_meanwhile_comes_back_unlocked(world: World) -> None:
    await steered(world)
    await world.crash()
    world.conductor.unlock(1)
    await world.answered()
    assert not world.resident.is_locked


async def test_a_clear_that_comes_just_before_the_return_is_in_it(world: World) -> None:
    await steered(world)
    await world.crash()
    asked, gate = await world.held("attach", world.ask())
    await soon(world.steering.clear())
    gate.open.set()
    (await world.launcher.stream()).complete()
    await soon(asked)
    assert world.steering.state() == (False, {})


async def test_a_deleted_model_is_waited_for_no_longer(world: World) -> None:
    await steered(world)
    await world.crash()
    world.conductor.unlock(1)
    await world.models.remove(1)
    assert world.conductor.reattaching.pending() == []
    assert (await refused(world.steering.clear())).code == "SAE_NOT_ATTACHED"


async def test_what_is_monitored_in_one_model_does_not_begin_in_another(world: World) -> None:
    await steered(world)
    await world.model("b")
    await world.crash()
    world.conductor.unlock(1)
    await world.answered("b")
    await soon(world.attachments.attach_set([("sae_a", 1)]))
    await world.monitoring.configure()
    await world.attachments.attach(await world.sae("sae_b"), 2)
    await world.attachments.detach("sae_b")
    await world.answered("a")
    assert keys(world) == ["sae_a@1"]
    await until(lambda: not world.monitoring._tasks)
    assert not world.monitoring.state().enabled


# ------------------------------------------------------------------ what the engine makes of it


async def test_what_comes_back_is_told_as_the_new_engine_made_it(world: World) -> None:
    await world.loaded()
    sae = await world.sae(trained_layer=3)
    await world.attachments.attach(sae, 1)
    (before,) = world.conductor.attachments()
    await world.crash()
    world.launcher.made = m.Attached(
        "elsewhere", 9, 8, before.d_sae, ["new"], {"l0": 2.0}, "float16", "resid_pre", False
    )
    await world.answered()
    (after,) = world.conductor.attachments()
    assert (after.memory_mb, after.layer_module_path, after.check) == (9, "elsewhere", {"l0": 2.0})
    assert (after.dtype, after.site, after.is_calibrated) == ("float16", "resid_pre", False)
    assert after.warnings == (before.warnings[0], "new")


async def test_an_sae_of_another_size_is_not_put_back(world: World) -> None:
    await steered(world)
    await world.crash()
    world.launcher.made = m.Attached("model.layers.1", 3, 8, 4, [], {})
    refusal = await refused(world.ask())
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert refusal.details == {"cause": "SAE_INCOMPATIBLE", "sae_id": "sae_a", "layer": 1}
    assert "4 features" in refusal.message
    assert world.launcher.alive == []


# ------------------------------------------------------------------ an unload, a load, the end


async def test_closing_while_something_is_given_back_ends(world: World) -> None:
    await steered(world)
    await world.crash()
    asked, _ = await world.held("attach", world.ask())
    await soon(world.conductor.close())
    assert (await refused(asked)).code == "SHUTTING_DOWN"
    assert world.launcher.alive == []


@pytest.mark.parametrize("is_attached", [True, False])
async def test_a_lock_outlasts_the_engine(world: World, is_attached: bool) -> None:
    await world.model("b")
    if is_attached:
        await steered(world)
        row = world.resident.row
    else:
        row = await world.loaded()
        world.conductor.lock(row.id)
    await world.crash()
    assert world.conductor.view().locked_id == row.id
    assert [model.name for model in await world.served.listed()] == ["a"]
    assert (await refused(world.ask("b"))).code == "MODEL_LOCKED"
    assert (await refused(world.models.remove(row.id))).code == "MODEL_LOCKED"
    await world.answered()
    assert world.resident.is_locked
    world.conductor.unlock(row.id)
    await world.answered("b")


async def test_an_unlocked_model_that_crashed_gives_its_place_to_another(world: World) -> None:
    await world.model("b")
    row = await world.loaded()
    world.conductor.lock(row.id)
    await world.crash()
    world.conductor.unlock(row.id)
    assert world.conductor.view().locked_id is None
    await world.answered("b")
