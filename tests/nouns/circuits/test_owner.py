"""Circuits on a scripted engine: crashes, engines that fail, races for a layer, and faults of the database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.control.steering.events import ServedCircuitsChanged
from steerserve.errors import Refusal
from steerserve.nouns.circuits.form import ActivatedCircuit
from steerserve.nouns.circuits.rules import document as rules
from steerserve.nouns.circuits.store import CircuitStore
from steerserve.nouns.claims.rules import LayerClaim
from steerserve.rules.steering.members import NAME_TRIES
from tests.control.conftest import refused
from tests.doubles import World
from tests.waiting import PATIENCE, soon

LAYERS = (1, 2)
FAILED = Refusal("ENGINE_UNAVAILABLE", "the engine did not answer")


def document(
    name: str = "rain", layers: Sequence[int] = LAYERS, feature: int = 3
) -> dict[str, Any]:
    return {
        "name": name,
        "saes": [{"layer": layer} for layer in layers],
        "members": [
            {"layer": layer, "feature": {"feature_idx": feature, "strength": 4.0}}
            for layer in layers
        ],
        "edges": [],
    }


async def attached(world: World) -> None:
    """Model a is loaded, and one SAE is attached at each of two layers."""
    await world.loaded()
    members = [(f"sae_{layer}", layer) for layer in LAYERS]
    for sae_id, _ in members:
        await world.sae(sae_id)
    await soon(world.attachments.attach_set(members))


async def imported(world: World, **fields: Any) -> str:
    circuit = await world.circuits.add(rules.imported(document(**fields)), "rename")
    return circuit.id


async def activate(world: World, circuit_id: str, **options: bool) -> ActivatedCircuit:
    chosen = {"acknowledged": True, "allows_overlap": False, **options}
    return await soon(world.circuits.activate(circuit_id, **chosen))


async def served(world: World, **fields: Any) -> str:
    """A circuit that serves."""
    circuit_id = await imported(world, **fields)
    await activate(world, circuit_id)
    return circuit_id


async def claims(world: World) -> list[tuple[str, int]]:
    """The claims as the database has them."""
    held = await CircuitStore(world.database).claims()
    return [(claim.circuit_id, claim.layer) for claim in held]


# ------------------------------------------------------------------ imports


async def test_an_import_whose_numbers_are_all_taken_is_refused_by_its_own_name(
    world: World,
) -> None:
    for _ in range(NAME_TRIES):
        await imported(world)
    full = await refused(imported(world))
    assert (full.code, full.details["name"]) == ("VALIDATION_ERROR", "rain")


# ------------------------------------------------------------------ the engine


async def test_an_activation_is_one_push_one_step_and_one_event(world: World) -> None:
    await attached(world)
    circuit_id, epoch = await imported(world), world.steering.live.epoch
    begin = len(world.launcher.log)
    await activate(world, circuit_id)
    assert world.launcher.log[begin:] == ["steer"]
    assert world.launcher.engine.state.steering == m.Steering(
        epoch + 1,
        True,
        {"sae_1@1": {3: 4.0}, "sae_2@2": {3: 4.0}},
    )
    assert world.published(ServedCircuitsChanged) == [ServedCircuitsChanged((circuit_id,))]


async def test_an_engine_that_refuses_leaves_nothing_behind(world: World) -> None:
    await attached(world)
    circuit_id = await imported(world)
    world.launcher.fail("steer", FAILED)
    assert (await refused(activate(world, circuit_id))).code == "ENGINE_UNAVAILABLE"
    assert await claims(world) == []
    assert world.steering.live.circuits == ()
    assert (await activate(world, circuit_id)).steering


async def test_a_second_activation_that_fails_keeps_the_claims_of_the_first(world: World) -> None:
    await attached(world)
    circuit_id = await served(world)
    await world.steering.disable()
    world.launcher.fail("steer", FAILED)
    assert (await refused(activate(world, circuit_id))).code == "ENGINE_UNAVAILABLE"
    assert await claims(world) == [(circuit_id, 1), (circuit_id, 2)]
    assert not world.claims.health().claims_degraded


async def test_an_activation_whose_caller_is_cancelled_serves_and_holds_its_claims(
    world: World,
) -> None:
    await attached(world)
    circuit_id = await imported(world)
    gate = world.launcher.hold("steer")
    activating = world.begin(activate(world, circuit_id))
    await soon(gate.reached.wait())
    assert len(await claims(world)) == 2
    activating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await activating
    gate.open.set()
    async with world.serving.editing:
        assert [one.id for one in world.steering.circuits] == [circuit_id]
        assert await claims(world) == [(circuit_id, 1), (circuit_id, 2)]


async def test_a_failed_intensity_puts_the_old_one_back(world: World) -> None:
    await attached(world)
    circuit_id = await served(world)
    world.launcher.fail("steer", FAILED)
    dialing = world.circuits.set_intensity(0.5, reapply=True, acknowledged=True)
    assert (await refused(dialing)).code == "ENGINE_UNAVAILABLE"
    assert (await CircuitStore(world.database).row(circuit_id)).intensity == 1.0
    assert world.steering.live.values_at("sae_1@1") == {3: 4.0}


async def test_a_write_that_lands_after_the_new_intensity_supersedes_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await attached(world)
    await served(world)
    everywhere = world.steering.everywhere

    async def then_cleared(step: Any) -> bool:
        monkeypatch.undo()
        is_changed = await everywhere(step)
        await world.steering.clear()
        return is_changed

    async def dialed(intensity: float) -> tuple[bool, bool]:
        serving = world.circuits
        done = await soon(serving.set_intensity(intensity, reapply=True, acknowledged=True))
        return done.reapplied, done.superseded

    assert await dialed(0.5) == (True, False)
    monkeypatch.setattr(world.steering, "everywhere", then_cleared)
    assert await dialed(0.7) == (False, True)


async def test_a_damaged_document_is_refused_before_anything_changes(world: World) -> None:
    await attached(world)
    circuit_id = await imported(world)
    await CircuitStore(world.database).change(circuit_id, document='{"name": "rain"}')
    refusal = await refused(activate(world, circuit_id))
    assert (refusal.code, type(refusal)) == ("VALIDATION_ERROR", Refusal)
    assert await claims(world) == []
    assert world.steering.live.circuits == ()


# ------------------------------------------------------------------ crashes


async def test_after_a_crash_the_circuit_serves_again_with_its_claims(world: World) -> None:
    await attached(world)
    circuit_id = await served(world)
    before = world.steering.live.values
    await world.crash()
    assert world.steering.live.circuits == ()
    (circuit,) = await world.circuits.active()
    assert (circuit.id, circuit.steering) == (circuit_id, False)
    assert [claim.layer for claim in await world.claims.current()] == [1, 2]
    assert not world.claims.health().claims_degraded
    await world.answered()
    assert world.steering.live.values == before
    (circuit,) = await world.circuits.active()
    assert (circuit.id, circuit.steering) == (circuit_id, True)
    assert await claims(world) == [(circuit_id, 1), (circuit_id, 2)]


@pytest.mark.parametrize("way", ["deactivate", "delete", "clear", "detach", "another model"])
async def test_a_circuit_that_is_given_up_after_a_crash_does_not_come_back(
    world: World, way: str
) -> None:
    await attached(world)
    circuit_id = await served(world)
    await world.crash()
    match way:
        case "deactivate":
            assert (await world.circuits.deactivate(circuit_id)).cleared_steering
        case "delete":
            await world.circuits.remove(circuit_id)
        case "clear":
            await world.steering.clear()
        case "detach":
            for layer in LAYERS:
                await world.attachments.detach(f"sae_{layer}")
        case "another model":
            await world.loaded("b")
    assert await world.claims.current() == []
    assert await claims(world) == []
    assert await world.circuits.active() == []
    if way != "another model":
        await world.answered()
    assert world.steering.live.circuits == ()


async def test_a_circuit_whose_sae_was_given_up_ends_whole_with_the_next_load(
    world: World,
) -> None:
    await attached(world)
    await served(world)
    await world.crash()
    await world.attachments.detach("sae_2")
    await world.answered()
    assert world.steering.live.values == {}
    assert await world.claims.current() == []


async def test_an_intensity_set_after_a_crash_counts_when_the_model_is_back(world: World) -> None:
    await attached(world)
    await served(world)
    await world.crash()
    done = await world.circuits.set_intensity(0.5, reapply=True, acknowledged=True)
    assert not done.reapplied
    await world.answered()
    assert world.steering.live.values_at("sae_1@1") == {3: 2.0}


async def test_an_unload_ends_the_circuit_and_releases_its_layers(world: World) -> None:
    await attached(world)
    await served(world)
    resident = world.resident
    await soon(world.conductor.unload(resident.row.id))
    assert world.steering.circuits == ()
    assert await world.claims.current() == []


# ------------------------------------------------------------------ claims


async def test_claims_are_released_in_the_database_without_a_reader(world: World) -> None:
    await attached(world)
    await served(world)
    await world.steering.clear()
    async with asyncio.timeout(PATIENCE):
        while await claims(world):
            await asyncio.sleep(0)


async def test_a_claim_that_came_between_is_contention(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # another writer of the database claims the layer after the gate has read the claims
    await attached(world)
    first, second = await imported(world, name="a"), await imported(world, name="b", feature=5)
    await served(world, name="c", layers=[2], feature=7)
    store = CircuitStore(world.database)
    original = CircuitStore.claim

    async def late(self: CircuitStore, circuit_id: str, wanted: Sequence[LayerClaim]) -> Any:
        monkeypatch.undo()
        await original(store, first, [LayerClaim(first, "a", 1, (3,))])
        return await original(self, circuit_id, wanted)

    await world.circuits.deactivate(world.steering.live.circuits[0].id)
    monkeypatch.setattr(CircuitStore, "claim", late)
    assert (await refused(activate(world, second))).code == "CIRCUIT_LAYER_CONTENTION"
    assert await claims(world) == [(first, 1)]
    assert world.steering.live.circuits == ()


async def test_a_release_that_the_database_refuses_degrades_health_until_it_succeeds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await attached(world)
    circuit_id = await served(world)

    async def broken(*_: Any) -> Any:
        raise Refusal("DATABASE_UNAVAILABLE", "the disk is full")

    with monkeypatch.context() as fault:
        fault.setattr(CircuitStore, "release", broken)
        assert (await world.circuits.deactivate(circuit_id)).cleared_steering
        health = world.claims.health()
        assert health.claims_degraded
        assert "the disk is full" in health.reasons[0]
        assert health.claim_faults == 1
        assert (await refused(world.claims.current())).code == "DATABASE_UNAVAILABLE"
        readiness = await world.vitals.readiness()
        assert "circuits" in [part.name for part in readiness.components]
    detailed = await world.vitals.detailed()
    assert detailed.circuits is not None
    assert not detailed.circuits.claims_degraded
    assert await claims(world) == []


async def test_a_circuit_whose_claims_were_released_by_hand_is_degraded(world: World) -> None:
    await attached(world)
    circuit_id = await served(world)
    released = await world.circuits.release(circuit_id)
    assert released.released_layers == LAYERS
    health = world.claims.health()
    assert health.claims_degraded
    assert len(health.reasons) == 2
    await activate(world, circuit_id)
    assert not world.claims.health().claims_degraded
    await world.circuits.deactivate(circuit_id)
    assert not world.claims.health().claims_degraded


async def test_a_detach_during_an_activation_refuses_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await attached(world)
    circuit_id = await imported(world)
    original = CircuitStore.claim

    async def slow(self: CircuitStore, *arguments: Any) -> Any:
        monkeypatch.undo()
        await world.attachments.detach("sae_2")
        return await original(self, *arguments)

    monkeypatch.setattr(CircuitStore, "claim", slow)
    assert (await refused(activate(world, circuit_id))).code == "SAE_SET_INCOMPLETE"
    assert await claims(world) == []
    assert world.steering.live.values == {}
