"""Clusters on real owners and a scripted engine: the step of an activation, what follows it, and what a failure
leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.control.steering.events import ActiveProfileChanged
from steerserve.errors import Refusal
from steerserve.nouns.clusters import rules
from steerserve.nouns.clusters.owner import ImportOptions
from steerserve.nouns.profiles.store import ProfileRow
from steerserve.rules.steering.members import NAME_TRIES
from steerserve.rules.steering.placed import MANUAL
from tests.control.conftest import refused
from tests.doubles import World
from tests.rules.steering.owners import owned
from tests.scripted_answers import WIDTH
from tests.waiting import soon, until

CLUSTER: dict[str, Any] = {
    "kind": "mistudio.cluster-definition",
    "name": "rain",
    "sae": {"layer": 1, "n_features": WIDTH},
    "members": [{"feature_idx": 3, "strength": 4.0}, {"feature_idx": 5, "strength": -2.0}],
    "budget": {"intensity_range": [0.5, 2.0]},
}
KEY = "sae_a@1"


async def imported(world: World, *, activate: bool = True, **changes: Any) -> str:
    options = ImportOptions(activate=activate)
    item = await world.clusters.add(rules.definition(CLUSTER | changes), options)
    assert item.profile_id is not None
    return item.profile_id


def live(world: World) -> dict[str, dict[int, float]]:
    return {key: dict(values) for key, values in world.steering.live.values.items()}


async def test_an_activation_is_one_step_that_takes_the_values_of_circuits(world: World) -> None:
    await world.attached()
    others = owned({MANUAL: {KEY: {7: 1.0}}, "circuit:circ_1": {KEY: {3: 9.0, 8: 1.0}}})
    await world.steering.act(
        lambda now, _: replace(now, owned=others, enabled=True, epoch=now.epoch + 1)
    )
    displaced: list[int] = []

    async def on_displaced() -> Sequence[str]:
        displaced.append(world.steering.live.epoch)
        return ["circuit circ_1 was deactivated"]

    world.serving.displaces(on_displaced)
    profile_id = await imported(world, activate=False)
    before = world.steering.live.epoch
    report = await world.clusters.activate(profile_id)
    assert live(world) == {KEY: {3: 4.0, 5: -2.0}}
    assert displaced == [before + 1]
    assert "circuit circ_1 was deactivated" in report.warnings
    assert world.launcher.engine.state.steering == m.Steering(before + 1, True, live(world))


async def test_another_intensity_displaces_nothing(world: World) -> None:
    await world.attached()
    displaced: list[str] = []

    async def on_displaced() -> Sequence[str]:
        displaced.append("circuits")
        return []

    profile_id = await imported(world)
    world.serving.displaces(on_displaced)
    before = world.steering.live.epoch
    report = await world.clusters.set_intensity(profile_id, 0.5, reapply=True)
    assert (report.reapplied, displaced) == (True, [])
    assert (live(world), world.steering.live.epoch) == ({KEY: {3: 2.0, 5: -1.0}}, before + 1)


async def test_the_active_cluster_is_followed_until_it_is_deleted(world: World) -> None:
    await world.attached()
    followed: list[str | None] = []

    async def on_followed(row: ProfileRow | None) -> bool:
        followed.append(row.name if row is not None else None)
        return row is not None

    world.serving.follow(on_followed)
    profile_id = await imported(world)
    assert (await world.clusters.activate(profile_id)).sensing_armed is True
    await world.profiles.change(profile_id, {"name": "wind"})
    await world.clusters.set_intensity(profile_id, 0.5, reapply=True)
    await world.clusters.deactivate(profile_id)
    await world.clusters.remove(profile_id)
    assert followed == ["rain", "rain", "wind", None]


async def test_every_way_in_which_a_cluster_stops_serving_is_an_event(world: World) -> None:
    await world.attached()
    first = await imported(world)
    await world.steering.clear()
    await world.clusters.activate(first)
    await world.attachments.detach("sae_a")
    changes = [e.profile_id for e in world.events if isinstance(e, ActiveProfileChanged)]
    assert changes == [first, None, first, None]


async def test_a_refused_intensity_keeps_the_old_one(world: World) -> None:
    await world.attached()
    profile_id = await imported(world)
    world.launcher.fail("steer", Refusal("ENGINE_UNAVAILABLE", "the engine refuses"))
    with pytest.raises(Refusal, match="refuses"):
        await world.clusters.set_intensity(profile_id, 0.5, reapply=True)
    assert (await world.clusters.get(profile_id)).intensity == 1.0
    assert live(world) == {KEY: {3: 4.0, 5: -2.0}}


async def test_a_cluster_serves_again_after_a_crash_at_the_intensity_set_meanwhile(
    world: World,
) -> None:
    await world.attached()
    profile_id = await imported(world)
    world.launcher.engine.die()
    await until(lambda: world.conductor.resident is None)
    assert world.serving.profile_id is None
    assert not (await world.clusters.set_intensity(profile_id, 0.5, reapply=True)).reapplied
    asked = world.begin(world.ask())
    (await world.launcher.stream()).complete()
    await soon(asked)
    assert (world.serving.profile_id, live(world)) == (profile_id, {KEY: {3: 2.0, 5: -1.0}})


async def test_a_bound_cluster_does_not_steer_another_sae(world: World) -> None:
    await world.attached()
    profile_id = await imported(world, activate=False, sae={"n_features": WIDTH})
    await world.attachments.attach(await world.sae("sae_b"), 2)
    refusal = await refused(world.clusters.activate(profile_id))
    assert refusal.code == "PROFILE_INCOMPATIBLE"
    await world.profiles.change(profile_id, {"sae_id": "sae_b"})
    await world.clusters.activate(profile_id)
    assert live(world) == {"sae_b@2": {3: 4.0, 5: -2.0}}


async def test_a_cluster_steers_another_sae_of_the_declared_layer_and_width_with_a_warning(
    world: World,
) -> None:
    await world.attached()
    profile_id = await imported(world, activate=False)
    await world.attachments.attach(await world.sae("sae_b"), 1)
    report = await world.clusters.activate(profile_id)
    assert report.warnings == ("the cluster is bound to SAE 'sae_a'; it steers 'sae_b'",)
    assert live(world) == {"sae_b@1": {3: 4.0, 5: -2.0}}


async def test_imports_at_once_get_different_names_until_all_numbers_are_taken(
    world: World,
) -> None:
    document = rules.definition(CLUSTER)
    items = await asyncio.gather(*(world.clusters.add(document, ImportOptions()) for _ in range(6)))
    assert {item.name for item in items} == {"rain", *(f"rain ({n})" for n in range(2, 7))}
    for _ in range(NAME_TRIES - 6):
        last = await world.clusters.add(document, ImportOptions())
    assert last.name == f"rain ({NAME_TRIES})"
    full = await world.clusters.add(document, ImportOptions())
    assert (full.status, full.profile_id) == ("error", None)
    assert full.error is not None
    assert "rain (50)" in full.error
