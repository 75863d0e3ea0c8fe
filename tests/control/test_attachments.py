"""Attaching SAEs to the resident model, and detaching them."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from steerserve.control.bus import SaeAttached, SaeDetached
from steerserve.errors import Refusal
from steerserve.rules.residency import Phase
from tests.control.conftest import Make
from tests.doubles import FACTS, HIDDEN, LAYERS, World, soon, until

FAILED = Refusal("SAE_LOAD_FAILED", "the weights are damaged")


async def refused(work: object) -> Refusal:
    with pytest.raises(Refusal) as error:
        await soon(work)  # type: ignore[arg-type]
    return error.value


async def test_attaching_locks_the_model_and_tells_where_it_hooks(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    attached = await world.attachments.attach(sae, 1)
    assert (attached.sae_id, attached.layer, attached.memory_mb) == ("sae_a", 1, 3)
    assert attached.layer_module_path == "model.layers.1"
    assert attached.warnings == ("from the engine",)
    assert world.resident.is_locked
    assert world.conductor.attachments() == [attached]
    assert world.launcher.engine.attached == {"sae_a@1": (sae.local_path, 1)}
    assert await world.sae_status(sae) == "attached"
    assert world.published(SaeAttached) == [SaeAttached("sae_a", 1, 3)]


async def test_a_mismatch_of_layer_or_family_is_a_warning_of_the_attach(world: World) -> None:
    await world.loaded("tiny")
    attached = await world.attachments.attach(
        await world.sae(trained_layer=3, trained_on="org/huge"), 1
    )
    assert len(attached.warnings) == 3
    assert "layer 3" in attached.warnings[0]
    assert "org/huge" in attached.warnings[1]


async def test_without_a_loaded_model_nothing_is_attached(world: World) -> None:
    sae = await world.sae()
    assert (await refused(world.attachments.attach(sae, 1))).code == "MODEL_NOT_LOADED"
    with pytest.raises(Refusal) as error:
        world.attachments.compatibility(sae, 1)
    assert error.value.code == "MODEL_NOT_LOADED"


async def test_a_model_that_can_only_embed_takes_no_sae(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    world.resident.facts = replace(FACTS, is_embedding_only=True)
    assert not world.attachments.compatibility(sae, 1).is_compatible
    assert (await refused(world.attachments.attach(sae, 1))).code == "SAE_INCOMPATIBLE"


@pytest.mark.parametrize(("width", "layer"), [(HIDDEN + 1, 1), (HIDDEN, LAYERS)])
async def test_an_sae_that_does_not_fit_is_refused_before_the_engine_is_asked(
    world: World, width: int, layer: int
) -> None:
    await world.loaded()
    sae = await world.sae(d_in=width)
    assert not world.attachments.compatibility(sae, layer).is_compatible
    assert (await refused(world.attachments.attach(sae, layer))).code == "SAE_INCOMPATIBLE"
    assert "attach" not in world.launcher.log
    assert not world.resident.is_locked


async def test_the_same_sae_at_the_same_layer_is_attached_once(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    await world.attachments.attach(sae, 1)
    refusal = await refused(world.attachments.attach(sae, 1))
    assert refusal.code == "SAE_ALREADY_ATTACHED"
    assert refusal.details == {"sae_id": "sae_a", "layer": 1}
    assert world.launcher.log.count("attach") == 1


async def test_a_replacing_attach_clears_the_old_values_and_says_so(world: World) -> None:
    await world.loaded()
    old, new = await world.sae("sae_old"), await world.sae("sae_new")
    await world.attachments.attach(old, 1)
    await world.steering.set_values({1: 5.0})
    attached = await world.attachments.attach(new, 2)
    assert any("replaced sae_old at layer 1" in warning for warning in attached.warnings)
    assert [a.sae_id for a in world.conductor.attachments()] == ["sae_new"]
    assert list(world.launcher.engine.attached) == ["sae_new@2"]
    assert world.steering.state() == (False, {})
    assert world.launcher.engine.steered is not None
    assert world.launcher.engine.steered[1:] == (False, {})
    assert (await world.sae_status(old), await world.sae_status(new)) == ("cached", "attached")
    assert world.resident.is_locked
    assert world.published(SaeDetached) == [SaeDetached("sae_old")]


async def test_the_same_sae_moves_to_another_layer(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    await world.attachments.attach(sae, 1)
    await world.attachments.attach(sae, 2)
    assert list(world.launcher.engine.attached) == ["sae_a@2"]
    assert await world.sae_status(sae) == "attached"


async def test_a_failing_attach_keeps_the_old_one_with_its_values(world: World) -> None:
    await world.loaded()
    old, new = await world.sae("sae_old"), await world.sae("sae_new")
    await world.attachments.attach(old, 1)
    await world.steering.set_values({1: 5.0})
    world.launcher.fail("attach", FAILED)
    assert (await refused(world.attachments.attach(new, 1))).code == "SAE_LOAD_FAILED"
    assert [a.sae_id for a in world.conductor.attachments()] == ["sae_old"]
    assert world.steering.state() == (True, {1: 5.0})
    assert world.resident.is_locked
    assert await world.sae_status(new) == "cached"


async def test_a_first_attach_that_fails_does_not_lock(world: World) -> None:
    await world.loaded()
    world.launcher.fail("attach", FAILED)
    assert (await refused(world.attachments.attach(await world.sae(), 1))).code == FAILED.code
    assert not world.resident.is_locked
    assert world.conductor.attachments() == []


async def test_a_replacing_attach_that_cannot_remove_the_old_one_leaves_one_hook_in_the_engine(
    world: World,
) -> None:
    await world.loaded()
    old, new = await world.sae("sae_old"), await world.sae("sae_new")
    await world.attachments.attach(old, 1)
    world.launcher.fail("detach", Refusal("INTERNAL_ERROR", "the hook stays"))
    await refused(world.attachments.attach(new, 2))
    reported = [attached.key for attached in world.conductor.attachments()]
    assert list(world.launcher.engine.attached) == reported == ["sae_old@1"]


async def test_edits_of_the_attachments_follow_one_another(world: World) -> None:
    await world.loaded()
    first, second = await world.sae("sae_1"), await world.sae("sae_2")
    gate = world.launcher.hold("attach")
    attaching = [
        world.begin(world.attachments.attach(first, 1)),
        world.begin(world.attachments.attach(second, 1)),
    ]
    await soon(gate.reached.wait())
    assert world.launcher.log.count("attach") == 1
    gate.open.set()
    await soon(asyncio.gather(*attaching))
    assert [a.sae_id for a in world.conductor.attachments()] == ["sae_2"]


async def test_detaching_unlocks_clears_the_values_and_gives_the_memory_back(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    await world.attachments.attach(sae, 1)
    await world.steering.set_values({1: 5.0})
    assert await soon(world.attachments.detach("sae_a")) == 3
    assert not world.resident.is_locked
    assert world.conductor.attachments() == []
    assert world.launcher.engine.attached == {}
    assert (world.steering.live.enabled, world.steering.live.values) == (False, {})
    assert await world.sae_status(sae) == "cached"
    assert world.published(SaeDetached) == [SaeDetached("sae_a")]


async def test_what_is_not_attached_is_not_detached(world: World) -> None:
    assert (await refused(world.attachments.detach("sae_a"))).code == "SAE_NOT_ATTACHED"
    await world.loaded()
    await world.attachments.attach(await world.sae("sae_a"), 1)
    assert (await refused(world.attachments.detach("sae_b"))).code == "SAE_NOT_ATTACHED"
    assert len(world.conductor.attachments()) == 1


async def test_a_detach_waits_for_requests_in_flight_while_newcomers_wait_for_the_detach(
    world: World,
) -> None:
    await world.loaded()
    await world.attachments.attach(await world.sae(), 1)
    holder, stream = await world.in_flight()
    detaching = world.begin(world.attachments.detach("sae_a"))
    await until(world.conductor.editing.locked)
    newcomer = world.begin(world.ask())
    await until(lambda: world.generation.active == 2 and world.queue.counts().pending == 2)
    assert world.resident.users == 1
    stream.complete("still steered")
    assert await soon(holder) == "still steered"
    await soon(detaching)
    (await world.launcher.stream()).complete("unsteered")
    assert await soon(newcomer) == "unsteered"
    log = world.launcher.log
    first, second = [i for i, step in enumerate(log) if step == "generate"]
    assert first < log.index("generated") < log.index("detach") < second


async def test_a_detach_does_not_wait_longer_than_the_grace(make: Make) -> None:
    async with make(graceful_unload_timeout=0) as world:
        await world.loaded()
        await world.attachments.attach(await world.sae(), 1)
        holder, stream = await world.in_flight()
        await soon(world.attachments.detach("sae_a"))
        assert world.conductor.attachments() == []
        stream.complete("ran on")
        assert await soon(holder) == "ran on"


async def test_requests_are_admitted_again_after_a_detach_that_failed(world: World) -> None:
    await world.loaded()
    await world.attachments.attach(await world.sae(), 1)
    world.launcher.fail("detach", Refusal("INTERNAL_ERROR", "the hook stays"))
    await refused(world.attachments.detach("sae_a"))
    assert len(world.conductor.attachments()) == 1
    assert world.resident.is_locked
    asked, stream = await world.in_flight()
    stream.complete()
    assert await soon(asked) == "done"


async def test_an_unload_during_an_attach_takes_the_new_sae_along(world: World) -> None:
    row = await world.loaded()
    sae = await world.sae()
    gate = world.launcher.hold("attach")
    attaching = world.begin(world.attachments.attach(sae, 1))
    await soon(gate.reached.wait())
    unloading = world.begin(world.conductor.unload(row.id))
    await until(lambda: world.phase is Phase.UNLOADING)
    gate.open.set()
    await soon(asyncio.gather(attaching, unloading, return_exceptions=True))
    assert world.launcher.alive == []
    assert await world.sae_status(sae) == "cached"
    assert world.conductor.attachments() == []


async def test_an_engine_that_dies_during_an_attach_leaves_the_sae_cached(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    gate = world.launcher.hold("attach")
    attaching = world.begin(world.attachments.attach(sae, 1))
    await soon(gate.reached.wait())
    world.launcher.engine.die()
    assert (await refused(attaching)).row.api in (409, 503)
    await until(lambda: world.conductor.resident is None)
    assert await world.sae_status(sae) == "cached"


async def test_an_engine_that_dies_while_the_old_sae_is_removed_leaves_the_new_one_cached(
    world: World,
) -> None:
    await world.loaded()
    old, new = await world.sae("sae_old"), await world.sae("sae_new")
    await world.attachments.attach(old, 1)
    forget = world.conductor.renew

    async def and_die(keys: list[str]) -> None:
        world.conductor.renew = forget
        await forget(keys)
        world.launcher.engine.die()
        await until(lambda: world.conductor.resident is None)

    world.conductor.renew = and_die
    await refused(world.attachments.attach(new, 1))
    assert await world.sae_status(new) == "cached"
    assert world.published(SaeAttached) == [SaeAttached("sae_old", 1, 3)]


async def test_an_attached_sae_is_not_deleted(world: World) -> None:
    await world.loaded()
    await world.attachments.attach(await world.sae(), 1)
    assert (await refused(world.saes.remove("sae_a"))).code == "SAE_ALREADY_ATTACHED"
    await world.attachments.detach("sae_a")
    await world.saes.remove("sae_a")
    assert await world.saes.list() == []
