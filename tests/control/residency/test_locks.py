"""Who locks the resident model, who unlocks it, and what a refusal for the sake of the lock tells."""

from __future__ import annotations

from tests.control.conftest import refused
from tests.control.residency.test_restoring import steered
from tests.doubles import World
from tests.refusals import refusal_of
from tests.waiting import soon

TWO = [("sae_a", 1), ("sae_b", 2)]


async def test_a_detach_does_not_lock_what_an_operator_unlocked(world: World) -> None:
    await steered(world, TWO)
    world.conductor.unlock(1)
    await soon(world.attachments.detach("sae_a"))
    assert not world.resident.is_locked
    await soon(world.attachments.detach("sae_b"))
    assert not world.resident.is_locked


async def test_an_attach_locks_what_an_operator_unlocked(world: World) -> None:
    await steered(world)
    world.conductor.unlock(1)
    await world.sae("sae_b")
    await soon(world.attachments.attach_set([("sae_b", 2)]))
    assert world.resident.is_locked


async def test_a_refused_swap_names_the_sae_that_locks_the_model(world: World) -> None:
    await steered(world, TWO)
    await world.model("b")
    refusal = await refused(world.ask("b"))
    assert "because the SAEs 'sae_a', 'sae_b' are attached to it" in refusal.message
    assert (refusal.details["locked_by"], refusal.details["attached_saes"]) == (
        "attached_sae",
        ["sae_a", "sae_b"],
    )
    world.conductor.lock(1)
    assert (await refused(world.ask("b"))).details["locked_by"] == "operator"


async def test_the_lock_of_a_crashed_model_is_told_as_what_it_is(world: World) -> None:
    await steered(world, TWO)
    other = await world.model("b")
    await world.crash()
    await world.attachments.detach("sae_a")
    refusal = refusal_of(world.conductor.lock, other.id)
    details = refusal.details
    assert refusal.code == "MODEL_LOCKED"
    assert (details["locked_model_id"], details["attached_saes"]) == (1, ["sae_b"])
    assert (details["resident_model_id"], details["resident_model_name"]) == (None, None)


async def test_a_lock_or_an_attach_while_the_model_unloads_is_told_that_it_does(
    world: World,
) -> None:
    row = await world.loaded()
    sae = await world.sae()
    asked, stream = await world.in_flight()
    unloading = await world.unloading(world.conductor.unload(row.id))
    assert refusal_of(world.conductor.lock, row.id).code == "MODEL_BUSY"
    attach = await refused(world.attachments.attach(sae, 1))
    assert (attach.code, attach.details["unloading"]) == ("MODEL_BUSY", True)
    stream.complete()
    await soon(asked)
    await soon(unloading)
    assert (await refused(world.attachments.attach(sae, 1))).code == "MODEL_NOT_LOADED"
