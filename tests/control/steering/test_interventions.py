"""The live interventions: what the engine is told, and what ends or restores them."""

from __future__ import annotations

import base64
import struct
from typing import Any

import msgspec
import pytest

from steerserve import messages as m
from steerserve.control.steering.events import SteeringUpdate
from steerserve.nouns.interventions.noun import INTERVENTIONS
from steerserve.rules.steering.edits import Edit, Feature, Target
from steerserve.rules.steering.placed import Modifiers
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.rules.steering.vector import Direction
from tests import asking
from tests.control.conftest import refused
from tests.doubles import World
from tests.scripted_answers import HIDDEN
from tests.waiting import plain, soon, until

KEY = "sae_a@1"
DATA = struct.pack(f"<{HIDDEN}f", *range(HIDDEN))
VECTOR = {"layer": 2, "data": base64.b64encode(DATA).decode()}
ADD: dict[str, Any] = {"op": "add", "feature": {"index": 2}, "value": 4}
SET: dict[str, Any] = {"op": "set", "feature": {"index": 3}, "value": 4, "positions": "prompt"}
ABLATE: dict[str, Any] = {"op": "ablate", "vector": VECTOR}
SET_MADE = Edit(
    Feature(KEY, 3),
    Target(factor=0.0, offset=4.0),
    positions=Positions(Selection(names=("prompt",))),
    number=1,
)
ABLATE_MADE = Edit(Direction(2, "resid_post", DATA), Target(factor=0.0), number=2)


def body(*edits: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"edits": list(edits), **fields}


async def attached(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 5.0, 2: 1.0})


def told(world: World) -> m.Steering:
    steering: m.Steering = world.launcher.engine.state.steering
    return steering


async def test_interventions_stand_beside_the_live_values_or_in_their_place(world: World) -> None:
    await attached(world)
    owner, epoch = world.owner(INTERVENTIONS), world.steering.live.epoch
    beside = await owner.put(body(ADD, SET, ABLATE, preserve_norm=True))
    edits = (SET_MADE, ABLATE_MADE)
    assert told(world) == m.Steering(
        epoch + 1, True, {KEY: {1: 5.0, 2: 5.0}}, edits, Modifiers(preserve_norm=True)
    )
    assert plain(beside) == {
        "edits": [ADD, SET, ABLATE],
        "mode": "add",
        "preserve_norm": True,
        "enabled": True,
        "epoch": epoch + 1,
    }
    await owner.put(body(ADD, mode="replace"))
    assert told(world) == m.Steering(epoch + 2, True, {KEY: {2: 4.0}})
    await owner.put(body(ADD, mode="replace"))
    assert world.steering.live.epoch == epoch + 2
    await owner.clear()
    assert told(world) == m.Steering(epoch + 3, True, {KEY: {1: 5.0, 2: 1.0}})
    assert owner.state().edits == []


async def test_a_refused_edit_changes_nothing(world: World) -> None:
    await attached(world)
    await world.owner(INTERVENTIONS).put(body(ADD))
    before = world.steering.live
    for wrong, param in (
        (body(ADD, {**ADD, "value": 201}), "edits[1].value"),
        (body({**ADD, "feature": {"index": 99}}), "edits[0].feature.index"),
        (body({**ABLATE, "vector": "nobody"}), "edits[0].vector"),
        (body({**ABLATE, "vector": {**VECTOR, "layer": 9}}), "edits[0].vector"),
    ):
        refusal = await refused(world.owner(INTERVENTIONS).put(wrong))
        assert refusal.param == param
    assert world.steering.live is before


async def test_without_a_loaded_model_interventions_are_refused(world: World) -> None:
    refusal = await refused(world.owner(INTERVENTIONS).put(body(ABLATE)))
    assert refusal.code == "MODEL_NOT_LOADED"


async def test_edits_of_a_detached_sae_go_and_those_of_vectors_stay(world: World) -> None:
    await attached(world)
    await world.owner(INTERVENTIONS).put(body(ADD, SET, ABLATE))
    await world.attachments.detach("sae_a")
    state = world.owner(INTERVENTIONS).state()
    assert (state.edits, state.enabled) == ([ABLATE], True)
    left = told(world)
    assert (left.values, [edit.content for edit in left.edits]) == ({}, [ABLATE_MADE.content])


async def test_all_interventions_go_with_their_model(world: World) -> None:
    await world.loaded()
    await world.owner(INTERVENTIONS).put(body(ABLATE))
    assert world.steering.live.enabled
    await world.conductor.unload(world.resident.row.id)
    live = world.steering.live
    assert (live.standing, live.edits, live.enabled) == ((), (), False)


async def test_a_crash_of_the_engine_takes_no_intervention(world: World) -> None:
    row = await world.loaded()
    await world.owner(INTERVENTIONS).put(body(ABLATE))
    epoch = world.steering.live.epoch
    world.launcher.engine.die()
    await until(lambda: world.conductor.resident is None)
    assert world.owner(INTERVENTIONS).state().edits == []
    await soon((await world.conductor.load(row)).ready)
    assert world.owner(INTERVENTIONS).state().edits == [ABLATE]
    assert [edit.content for edit in told(world).edits] == [ABLATE_MADE.content]
    assert world.steering.live.epoch > epoch


async def test_the_live_event_has_the_edits_as_they_were_sent(world: World) -> None:
    await attached(world)
    await world.owner(INTERVENTIONS).put(body(SET))
    published = [one for one in world.events if isinstance(one, SteeringUpdate)]
    assert published[-1].interventions == [SET]


async def test_clearing_all_steering_ends_the_interventions(world: World) -> None:
    await attached(world)
    await world.owner(INTERVENTIONS).put(body(ADD, SET))
    await world.steering.remove(2)
    assert told(world).values == {KEY: {1: 5.0, 2: 4.0}}
    await world.steering.clear()
    assert world.owner(INTERVENTIONS).state().edits == []
    assert (told(world).values, told(world).edits) == ({}, ())


@pytest.mark.parametrize(
    ("intensity", "values", "strength"),
    [(None, None, None), (0.5, {1: 2.5, 2: 2.5}, 0.5), ("off", {}, None)],
)
async def test_an_intensity_scales_the_interventions_of_one_request(
    world: World, intensity: Any, values: dict[int, float] | None, strength: float | None
) -> None:
    await attached(world)
    await world.owner(INTERVENTIONS).put(body(ADD, SET))
    asked = asking.to_write(intensity=0.0 if intensity == "off" else intensity)
    async with world.opened(asked) as run:
        stream = await soon(world.launcher.stream())
        stream.complete()
        assert run.admitted.account.sources == (() if intensity == "off" else ("live",))
    if values is None:
        assert isinstance(stream.plan, m.Follow)
        return
    assert isinstance(stream.plan, m.Overlay)
    assert stream.plan.values.get(KEY, {}) == values
    assert [edit.strength for edit in stream.plan.edits] == ([strength] if strength else [])


# ---------------------------------------------------------------- of a profile


async def saved(world: World, *edits: dict[str, Any], **fields: Any) -> str:
    row = await world.profiles.create("calm", steering={}, edits=edits, **fields)
    return row.id


async def test_the_edits_of_a_profile_stand_while_it_is_active(world: World) -> None:
    await attached(world)
    profile = await saved(world, ADD, SET, ABLATE, intensity=0.5)
    done = await world.profiles.activate(profile)
    assert done.applied_steering
    assert world.owner(INTERVENTIONS).state().edits == [ADD, SET, ABLATE]
    halved = tuple(msgspec.structs.replace(one, strength=0.5) for one in (SET_MADE, ABLATE_MADE))
    assert (told(world).values, told(world).edits) == ({KEY: {2: 2.0}}, halved)
    await world.profiles.deactivate(profile)
    assert world.owner(INTERVENTIONS).state().edits == []
    assert (told(world).values, told(world).edits) == ({}, ())


async def test_a_profile_leaves_interventions_that_an_operator_has_set_since(world: World) -> None:
    await attached(world)
    profile = await saved(world, SET)
    await world.profiles.activate(profile)
    await world.owner(INTERVENTIONS).put(body(ABLATE))
    await world.profiles.deactivate(profile)
    assert world.owner(INTERVENTIONS).state().edits == [ABLATE]


async def test_an_activation_ends_the_interventions_before_it(world: World) -> None:
    await attached(world)
    await world.owner(INTERVENTIONS).put(body(ABLATE))
    row = await world.profiles.create("plain", steering={"1": 2.0})
    await world.profiles.activate(row.id)
    assert world.owner(INTERVENTIONS).state().edits == []
    assert told(world).edits == ()


@pytest.mark.parametrize(("intensity", "strength"), [(None, 0.5), (2.0, 2.0)])
async def test_a_request_that_names_a_profile_has_its_edits(
    world: World, intensity: float | None, strength: float
) -> None:
    await attached(world)
    profile = await saved(world, ADD, SET, intensity=0.5)
    asked = asking.to_write(profile="calm", intensity=intensity)
    async with world.opened(asked) as run:
        stream = await soon(world.launcher.stream())
        stream.complete()
        account = run.admitted.account
    assert isinstance(stream.plan, m.Overlay)
    assert stream.plan.values == {KEY: {2: 4.0 * strength}}
    assert [edit.strength for edit in stream.plan.edits] == [strength]
    assert account.sources == (f"profile:{profile}",)
    assert [one.op for one in account.listed] == ["add", "set"]


async def test_a_request_scales_the_edits_of_the_active_profile_as_saved(world: World) -> None:
    await attached(world)
    profile = await saved(world, ADD, SET, intensity=0.5)
    await world.profiles.activate(profile)
    async with world.opened(asking.to_write("a", intensity=2.0)) as run:
        stream = await soon(world.launcher.stream())
        stream.complete()
        assert run.admitted.account.sources == (f"profile:{profile}",)
    assert isinstance(stream.plan, m.Overlay)
    assert stream.plan.values == {KEY: {2: 8.0}}
    assert [edit.strength for edit in stream.plan.edits] == [2.0]


async def test_the_edits_of_a_profile_go_with_its_sae(world: World) -> None:
    await attached(world)
    row = await world.profiles.create("calm", steering={"1": 2.0}, edits=[SET, ABLATE])
    await world.profiles.activate(row.id)
    await world.attachments.detach("sae_a")
    live = world.steering.live
    assert (live.active, live.standing, live.edits) == (None, (), ())


async def test_a_saved_profile_names_its_wrong_edit(world: World) -> None:
    refusal = await refused(saved(world, SET, {**SET, "value": None}))
    assert (refusal.code, refusal.param) == ("INVALID_INTERVENTION", "edits[1].value")
    await attached(world)
    profile = await saved(world, {**ABLATE, "vector": "nobody"})
    refusal = await refused(world.profiles.activate(profile))
    assert (refusal.code, refusal.param) == (
        "VECTOR_NOT_FOUND",
        "profile.edits[0].vector",
    )


async def test_what_steers_is_saved_with_its_interventions(world: World) -> None:
    await attached(world)
    await world.owner(INTERVENTIONS).put(body(ADD, SET))
    row = await world.profiles.save_current("now", None)
    assert (row.steering, row.edits) == ({1: 5.0, 2: 1.0}, [ADD, SET])
