"""Attaching SAEs to the resident model, and detaching them."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from steerserve import messages as m
from steerserve.control.inference.asked import Asked
from steerserve.control.residency.events import SaeAttached, SaeDetached
from steerserve.database.catalog import SaeRow
from steerserve.errors import Refusal
from steerserve.messages import Overrides, Piece
from steerserve.rules.residency.swap import Phase
from tests import asking
from tests.control.conftest import Make, refused
from tests.doubles import World
from tests.refusals import refusal_of
from tests.scripted_answers import FACTS, HIDDEN, LAYERS, WIDTH
from tests.waiting import soon, until

FAILED = Refusal("SAE_LOAD_FAILED", "the weights are damaged")


async def old_and_new(world: World) -> tuple[SaeRow, SaeRow]:
    """An SAE that is attached at layer 1 and has a value, and one that is registered."""
    await world.loaded()
    old, new = await world.sae("sae_old"), await world.sae("sae_new")
    await world.attachments.attach(old, 1)
    await world.steering.set_values({1: 5.0})
    return old, new


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


@pytest.mark.shows("states.9")
async def test_a_mismatch_of_layer_or_family_is_a_warning_of_the_attach(world: World) -> None:
    await world.loaded("tiny")
    attached = await world.attachments.attach(
        await world.sae(trained_layer=3, trained_on="org/huge"), 1
    )
    assert len(attached.warnings) == 3
    assert "layer 3" in attached.warnings[0]
    assert "org/huge" in attached.warnings[1]


@pytest.mark.shows("saes.16", "states.9", "model-errors.4")
async def test_without_a_loaded_model_nothing_is_attached(world: World) -> None:
    sae = await world.sae()
    assert (await refused(world.attachments.attach(sae, 1))).code == "MODEL_NOT_LOADED"
    assert refusal_of(world.attachments.compatibility, sae, 1).code == "MODEL_NOT_LOADED"


async def test_a_model_that_can_only_embed_takes_no_sae(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    world.resident.facts = replace(FACTS, is_embedding_only=True)
    assert not world.attachments.compatibility(sae, 1).is_compatible
    assert (await refused(world.attachments.attach(sae, 1))).code == "SAE_INCOMPATIBLE"


@pytest.mark.shows("saes.15", "steering-errors.4")
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
    sae = await world.attached()
    refusal = await refused(world.attachments.attach(sae, 1))
    assert refusal.code == "SAE_ALREADY_ATTACHED"
    assert refusal.details == {"sae_id": "sae_a", "layer": 1}
    assert world.launcher.log.count("attach") == 1


async def test_a_replacing_attach_clears_the_old_values_and_says_so(world: World) -> None:
    old, new = await old_and_new(world)
    attached = await world.attachments.attach(new, 2)
    assert any("replaced sae_old at layer 1" in warning for warning in attached.warnings)
    assert [a.sae_id for a in world.conductor.attachments()] == ["sae_new"]
    assert list(world.launcher.engine.attached) == ["sae_new@2"]
    assert world.steering.state() == (False, {})
    assert world.launcher.engine.state.steering == m.Steering(world.steering.live.epoch, False, {})
    assert (await world.sae_status(old), await world.sae_status(new)) == ("cached", "attached")
    assert world.resident.is_locked
    assert world.published(SaeDetached) == [SaeDetached("sae_old")]


async def test_the_same_sae_moves_to_another_layer(world: World) -> None:
    sae = await world.attached()
    await world.attachments.attach(sae, 2)
    assert list(world.launcher.engine.attached) == ["sae_a@2"]
    assert await world.sae_status(sae) == "attached"


async def test_a_failing_attach_keeps_the_old_one_with_its_values(world: World) -> None:
    _, new = await old_and_new(world)
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


async def test_a_replacing_attach_waits_for_requests_in_flight_while_newcomers_wait_for_it(
    world: World,
) -> None:
    _, new = await old_and_new(world)
    holder, stream = await world.in_flight()
    attaching = world.begin(world.attachments.attach(new, 2))
    await until(lambda: world.launcher.log.count("attach") == 2)
    newcomer = world.begin(world.ask())
    await until(lambda: world.queue.counts().pending == 2)
    assert [a.sae_id for a in world.conductor.attachments()] == ["sae_old"]
    stream.complete("under the old one")
    assert await soon(holder) == "under the old one"
    await soon(attaching)
    (await world.launcher.stream()).complete("under the new one")
    assert await soon(newcomer) == "under the new one"
    log = world.launcher.log
    first, second = [i for i, step in enumerate(log) if step == "generate"]
    assert first < log.index("generated") < log.index("detach") < second


async def test_a_first_attach_does_not_wait_for_requests_in_flight(world: World) -> None:
    await world.loaded()
    holder, stream = await world.in_flight()
    await soon(world.attachments.attach(await world.sae(), 1))
    stream.complete()
    await soon(holder)


async def test_what_is_asked_of_an_attach_reaches_the_engine(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    overrides = {"activation": "topk", "k": 4, "site": "resid_pre"}
    await world.attachments.attach(sae, 1, dtype="model", overrides=overrides, is_checked=False)
    (placed,) = world.launcher.engine.state.saes
    assert (placed.key, placed.dtype, placed.check) == ("sae_a@1", "float32", False)
    assert placed.source.overrides == Overrides(activation="topk", k=4, site="resid_pre")


@pytest.mark.parametrize(
    ("status", "said", "code"),
    [
        ("downloading", "still being downloaded", "MODEL_BUSY"),
        ("error", "the disk was full", "SAE_LOAD_FAILED"),
    ],
)
async def test_an_sae_whose_files_are_not_here_is_not_attached(
    world: World, status: str, said: str, code: str
) -> None:
    await world.loaded()
    sae = await world.sae()
    row = await world.catalog.change_sae("sae_a", status=status, error_message="the disk was full")
    verdict = world.attachments.compatibility(row, 1)
    assert not verdict.is_compatible
    assert said in verdict.errors[0]
    refusal = await refused(world.attachments.attach(row, 1))
    assert (refusal.code, refusal.details["status"]) == (code, status)
    assert said in refusal.message
    refusal = await refused(world.attachments.attach_set([("sae_a", 1)]))
    assert refusal.code == "SAE_SET_INCOMPLETE"
    assert refusal.details["offenders"][0]["reason"] in refusal.message
    assert "attach" not in world.launcher.log
    assert sae.id == "sae_a"


def _claims(**said: Any) -> dict[str, Any]:
    """What a checkpoint says of itself, as its record keeps it."""
    plain: dict[str, Any] = {"format": "plain", "architecture": "unknown", "dtype": "float32"}
    plain |= {"d_in": HIDDEN, "d_sae": WIDTH, "hook_name": None, "site": None, "layer": None}
    return plain | {"model_name": None, "l0": None, "size_bytes": 1} | said


async def test_what_the_files_do_not_say_has_to_be_said(world: World) -> None:
    await world.loaded()
    sae = await world.sae(claims=_claims(needs=["activation"]))
    assert "activation" in world.attachments.compatibility(sae, 1).errors[0]
    refusal = await refused(world.attachments.attach(sae, 1))
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert "activation" in refusal.message
    assert "attach" not in world.launcher.log
    await world.attachments.attach(sae, 1, overrides={"activation": "relu"})


async def test_the_width_at_the_site_counts_and_the_operator_may_name_the_site(
    world: World,
) -> None:
    await world.loaded()
    z = replace(FACTS.sites[0], site="hook_z", width=2 * HIDDEN)
    world.resident.facts = replace(FACTS, sites=[*FACTS.sites, z])
    sae = await world.sae(d_in=2 * HIDDEN)
    assert (await refused(world.attachments.attach(sae, 1))).code == "SAE_INCOMPATIBLE"
    said = {"site": "blocks.1.attn.hook_z"}
    await world.attachments.attach(sae, 1, overrides=said)


async def test_a_gguf_model_takes_no_sae(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    world.resident.row = dataclasses.replace(world.resident.row, engine="gguf")
    assert not world.attachments.compatibility(sae, 1).is_compatible


async def test_a_repository_of_several_names_them(world: World) -> None:
    await world.loaded()
    hub = {"repository_id": "org/saes", "revision": "main", "d_in": None, "d_sae": None}
    await world.sae("sae_all", **hub)
    whole = await world.catalog.change_sae("sae_all", format="repository")
    unit = {"repository_id": "org/saes", "revision": "main"}
    await world.sae("sae_u1", **unit, file_path="layer_1", trained_layer=1)
    await world.sae("sae_u2", **unit, file_path="layer_2", trained_layer=2)
    refusal = await refused(world.attachments.attach(whole, 1))
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert [u["sae_id"] for u in refusal.details["units"]] == ["sae_u1", "sae_u2"]
    assert "sae_u2 (layer_2)" in refusal.message
    refusal = await refused(world.attachments.attach_set([("sae_all", 1)]))
    assert "sae_u1" in refusal.details["offenders"][0]["reason"]


async def test_an_sae_deleted_while_the_attach_waited_is_not_attached(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    await world.saes.remove("sae_a")
    assert (await refused(world.attachments.attach(sae, 1))).code == "SAE_NOT_FOUND"


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


# ---------------------------------------------------------------------- sets


async def two(world: World) -> None:
    await world.sae("sae_1")
    await world.sae("sae_2")


@pytest.mark.shows("saes.12", "saes.18")
async def test_a_set_attaches_all_of_it_and_is_no_step_of_the_epoch(world: World) -> None:
    await world.loaded()
    await two(world)
    before = world.steering.live.epoch
    members = await soon(world.attachments.attach_set([("sae_1", 1), ("sae_1", 2), ("sae_2", 2)]))
    assert [(x.attachment.key, x.was_there) for x in members] == [
        ("sae_1@1", False),
        ("sae_1@2", False),
        ("sae_2@2", False),
    ]
    assert [a.key for a in world.conductor.attachments()] == ["sae_1@1", "sae_1@2", "sae_2@2"]
    assert list(world.launcher.engine.attached) == ["sae_1@1", "sae_1@2", "sae_2@2"]
    assert world.steering.live.epoch == before
    # an engine that was started since does not know the epoch yet
    assert world.launcher.engine.state.steering == m.Steering(before, False, {})
    assert world.resident.is_locked
    assert {row.status for row in await world.saes.list()} == {"attached"}
    assert [e.sae_id for e in world.published(SaeAttached)] == ["sae_1", "sae_1", "sae_2"]
    assert {sae.dtype for sae in world.launcher.engine.state.saes} == {"float16"}


async def test_a_set_adds_to_what_is_attached_and_keeps_its_values(world: World) -> None:
    await world.loaded()
    await two(world)
    await world.attachments.attach(await world.catalog.sae("sae_1"), 1)
    await world.steering.set_values({3: 7.0})
    before = world.steering.live.epoch
    members = await soon(world.attachments.attach_set([("sae_2", 2), ("sae_1", 1)]))
    assert [x.was_there for x in members] == [False, True]
    assert [a.key for a in world.conductor.attachments()] == ["sae_1@1", "sae_2@2"]
    assert world.steering.state() == (True, {3: 7.0})
    assert world.steering.live.epoch == before
    again = await soon(world.attachments.attach_set([("sae_2", 2), ("sae_1", 1)]))
    assert [x.was_there for x in again] == [True, True]
    assert world.launcher.log.count("attach") == 2


async def test_a_member_named_twice_is_there_the_second_time(world: World) -> None:
    await world.loaded()
    await world.sae("sae_1")
    members = await soon(world.attachments.attach_set([("sae_1", 1), ("sae_1", 1)]))
    assert [x.was_there for x in members] == [False, True]
    assert world.launcher.log.count("attach") == 1


async def test_a_set_with_missing_members_names_them_all_and_loads_nothing(world: World) -> None:
    await world.loaded()
    await two(world)
    await world.catalog.change_sae("sae_2", status="downloading")
    asked = [("sae_1", 1), ("sae_2", 2), ("sae_none", 3)]
    refusal = await refused(world.attachments.attach_set(asked))
    assert refusal.code == "SAE_SET_INCOMPLETE"
    assert refusal.details["offenders"] == [
        {"layer": 2, "sae_id": "sae_2", "reason": "it is still being downloaded"},
        {"layer": 3, "sae_id": "sae_none", "reason": "no SAE has this id"},
    ]
    assert "attach" not in world.launcher.log
    assert not world.resident.is_locked


async def test_a_set_with_members_that_do_not_fit_names_them_all_and_loads_nothing(
    world: World,
) -> None:
    await world.loaded()
    await world.sae("sae_1")
    await world.sae("sae_wide", d_in=HIDDEN + 1)
    asked = [("sae_wide", 1), ("sae_1", 1), ("sae_1", LAYERS)]
    refusal = await refused(world.attachments.attach_set(asked))
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert [(o["sae_id"], o["layer"]) for o in refusal.details["offenders"]] == [
        ("sae_wide", 1),
        ("sae_1", LAYERS),
    ]
    assert "attach" not in world.launcher.log


async def test_a_set_that_memory_does_not_hold_is_refused_before_anything_is_loaded(
    world: World,
) -> None:
    await world.loaded()
    # 2 x 8 x 2^16 x 2 bytes x 1.1 = 2.2 MiB each
    await world.sae("sae_1", d_sae=1 << 16)
    await world.sae("sae_2", d_sae=1 << 16)
    world.free_mb = 4
    world.launcher.engine.reserves = (7, 3)
    refusal = await refused(world.attachments.attach_set([("sae_1", 1), ("sae_2", 2)]))
    assert refusal.code == "INSUFFICIENT_MEMORY"
    assert refusal.details == {
        "device": "cpu",
        "projected_mb": 5,
        "kv_reserve_mb": 7,
        "kv_context_tokens": 512,
        "working_reserve_mb": 3,
        "available_mb": 4,
    }
    world.launcher.fail("measure", Refusal("ENGINE_UNAVAILABLE", "it ended"))
    refusal = await refused(world.attachments.attach_set([("sae_1", 1), ("sae_2", 2)]))
    assert (refusal.details["kv_reserve_mb"], refusal.details["working_reserve_mb"]) == (None, None)
    assert "attach" not in world.launcher.log
    world.free_mb = 5
    await soon(world.attachments.attach_set([("sae_1", 1), ("sae_2", 2)]))


async def test_a_set_of_which_one_fails_takes_back_what_it_added_and_nothing_else(
    world: World,
) -> None:
    await world.loaded()
    await two(world)
    await world.sae("sae_0")
    await world.attachments.attach(await world.catalog.sae("sae_0"), 0)
    await world.steering.set_values({3: 7.0})
    before = world.steering.live
    gate = world.launcher.hold("attach")
    asked = [("sae_0", 0), ("sae_1", 1), ("sae_2", 2)]
    attaching = world.begin(world.attachments.attach_set(asked))
    await soon(gate.reached.wait())
    world.launcher.fail("attach", FAILED)
    gate.open.set()
    refusal = await refused(attaching)
    assert refusal.code == "SAE_LOAD_FAILED"
    assert (refusal.details["sae_id"], refusal.details["layer"]) == ("sae_2", 2)
    assert "sae_2 at layer 2" in refusal.message
    assert list(world.launcher.engine.attached) == ["sae_0@0"]
    assert [a.key for a in world.conductor.attachments()] == ["sae_0@0"]
    assert world.steering.live == before
    assert (await world.catalog.sae("sae_1")).status == "cached"
    assert [e.sae_id for e in world.published(SaeAttached)] == ["sae_0"]


async def test_a_detach_takes_every_layer_and_leaves_the_lock_to_the_others(world: World) -> None:
    await world.loaded()
    await two(world)
    await soon(world.attachments.attach_set([("sae_1", 1), ("sae_2", 1), ("sae_1", 2)]))
    before = world.steering.live.epoch
    assert await soon(world.attachments.detach("sae_1")) == 6
    assert [a.key for a in world.conductor.attachments()] == ["sae_2@1"]
    assert world.steering.live.epoch == before
    # an engine that was started since does not know the epoch yet
    assert world.launcher.engine.state.steering == m.Steering(before, False, {})
    assert world.resident.is_locked
    assert world.published(SaeDetached) == [SaeDetached("sae_1")]
    await soon(world.attachments.detach("sae_2"))
    assert not world.resident.is_locked


# ---------------------------------------------------------------------- one at a time, and what fails


async def test_a_replacing_attach_that_cannot_remove_the_old_ones_leaves_them_as_they_were(
    world: World,
) -> None:
    await world.loaded()
    for name in ("sae_1", "sae_2", "sae_new"):
        await world.sae(name)
    await soon(world.attachments.attach_set([("sae_1", 1), ("sae_2", 2)]))
    world.launcher.fail("detach", Refusal("INTERNAL_ERROR", "the hook stays"))
    await refused(world.attachments.attach(await world.catalog.sae("sae_new"), 3))
    reported = [attached.key for attached in world.conductor.attachments()]
    assert list(world.launcher.engine.attached) == reported == ["sae_1@1", "sae_2@2"]
    assert {row.status for row in await world.saes.list() if row.id != "sae_new"} == {"attached"}
    assert world.resident.is_locked


@pytest.mark.shows("states.10")
async def test_detaching_unlocks_clears_the_values_and_gives_the_memory_back(world: World) -> None:
    sae = await world.attached()
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
    await world.attached()
    assert (await refused(world.attachments.detach("sae_b"))).code == "SAE_NOT_ATTACHED"
    assert len(world.conductor.attachments()) == 1


@pytest.mark.shows("states.10")
async def test_a_detach_waits_for_requests_in_flight_while_newcomers_wait_for_the_detach(
    world: World,
) -> None:
    await world.attached()
    holder, stream = await world.in_flight()
    detaching = world.begin(world.attachments.detach("sae_a"))
    await until(world.conductor.editing.locked)
    newcomer = world.begin(world.ask())
    await until(lambda: world.generation.active == 2 and world.queue.counts().pending == 2)
    assert world.resident.in_flight == 1
    stream.complete("still steered")
    assert await soon(holder) == "still steered"
    await soon(detaching)
    (await world.launcher.stream()).complete("unsteered")
    assert await soon(newcomer) == "unsteered"
    log = world.launcher.log
    first, second = [i for i, step in enumerate(log) if step == "generate"]
    assert first < log.index("generated") < log.index("detach") < second


@pytest.mark.shows("states.10")
async def test_a_detach_waits_for_requests_that_run_without_a_slot(make: Make) -> None:
    async with make(enable_continuous_batching=True) as world:
        await world.attached()
        asked = world.begin(read(world, asking.to_write(sampling=m.Sampling(0.0))))
        stream = await world.launcher.stream()
        assert world.queue.counts().holding == 0
        detaching = world.begin(world.attachments.detach("sae_a"))
        await until(world.conductor.editing.locked)
        stream.complete("still steered")
        assert await soon(asked) == "still steered"
        await soon(detaching)
        assert world.launcher.log.index("generated") < world.launcher.log.index("detach")


async def read(world: World, asked: Asked) -> str:
    """The text of a request."""
    async with world.opened(asked) as run:
        return "".join([e.text async for e in run.events if isinstance(e, Piece)])


async def test_a_detach_does_not_wait_for_requests_that_only_wait_for_a_slot(make: Make) -> None:
    async with make(max_concurrent_requests=1) as world:
        await world.attached()
        holder, stream = await world.in_flight()
        queued = [world.begin(world.ask()) for _ in range(3)]
        await until(lambda: world.resident.users == 4)
        gate = world.launcher.hold("detach")
        detaching = world.begin(world.attachments.detach("sae_a"))
        await until(world.conductor.editing.locked)
        stream.complete("still steered")
        assert await soon(holder) == "still steered"
        await soon(gate.reached.wait())
        # one of the queued requests has the slot by now, and waits until the SAE is gone
        assert (world.queue.counts().holding, world.resident.in_flight) == (1, 0)
        gate.open.set()
        await soon(detaching)
        for _ in queued:
            assert world.conductor.attachments() == []
            (await world.launcher.stream()).complete("unsteered")
        assert await soon(asyncio.gather(*queued)) == ["unsteered"] * 3


async def test_an_unload_waits_for_requests_that_a_detach_holds_up(make: Make) -> None:
    async with make(max_concurrent_requests=1) as world:
        row = await world.loaded()
        await world.attachments.attach(await world.sae(), 1)
        detaching, gate = await world.held("detach", world.attachments.detach("sae_a"))
        asked = world.begin(world.ask())
        await until(lambda: world.queue.counts().holding == 1)
        unloading = world.begin(world.conductor.unload(row.id))
        await until(lambda: world.phase is Phase.UNLOADING)
        assert (await refused(world.ask())).code == "MODEL_BUSY"
        gate.open.set()
        (await world.launcher.stream()).complete("served")
        assert await soon(asked) == "served"
        await soon(unloading)
        await asyncio.gather(detaching, return_exceptions=True)
        assert world.phase is Phase.EMPTY


async def test_a_detach_does_not_wait_longer_than_the_grace(make: Make) -> None:
    async with make(graceful_unload_timeout=0) as world:
        await world.attached()
        holder, stream = await world.in_flight()
        await soon(world.attachments.detach("sae_a"))
        assert world.conductor.attachments() == []
        stream.complete("ran on")
        assert await soon(holder) == "ran on"


async def test_requests_are_admitted_again_after_a_detach_that_failed(world: World) -> None:
    await world.attached()
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
    attaching, gate = await world.held("attach", world.attachments.attach(sae, 1))
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
    attaching, _ = await world.held("attach", world.attachments.attach(sae, 1))
    world.launcher.engine.die()
    assert (await refused(attaching)).row.api in (409, 503)
    await until(lambda: world.conductor.resident is None)
    assert await world.sae_status(sae) == "cached"


async def test_an_engine_that_dies_while_the_old_sae_is_removed_leaves_the_new_one_cached(
    world: World,
) -> None:
    _, new = await old_and_new(world)
    attaching, _ = await world.held("detach", world.attachments.attach(new, 1))
    world.launcher.engine.die()
    await refused(attaching)
    await until(lambda: world.conductor.resident is None)
    assert await world.sae_status(new) == "cached"
    assert world.published(SaeAttached) == [SaeAttached("sae_old", 1, 3)]


async def test_an_engine_that_dies_while_the_attach_is_recorded_leaves_the_sae_cached(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.loaded()
    sae = await world.sae()
    record, reached, go_on = world.conductor.records.sae, asyncio.Event(), asyncio.Event()

    async def slowly(sae_id: str, status: str) -> None:
        if status == "attached":
            reached.set()
            await go_on.wait()
        await record(sae_id, status)

    monkeypatch.setattr(world.conductor.records, "sae", slowly)
    attaching = world.begin(world.attachments.attach(sae, 1))
    await soon(reached.wait())
    world.launcher.engine.die()
    await until(lambda: world.phase is Phase.UNLOADING)
    go_on.set()
    await soon(attaching)
    await until(lambda: world.conductor.resident is None)
    assert await world.sae_status(sae) == "cached"
    told = [type(e) for e in world.events if isinstance(e, SaeAttached | SaeDetached)]
    assert told == [SaeAttached, SaeDetached]


async def test_an_attached_sae_is_not_deleted(world: World) -> None:
    await world.attached()
    assert (await refused(world.saes.remove("sae_a"))).code == "SAE_ALREADY_ATTACHED"
    await world.attachments.detach("sae_a")
    await world.saes.remove("sae_a")
    assert not await world.saes.list()
