"""Circuit sensing: the armed circuits follow the circuits that serve, and what fired is recorded and told."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.nouns.circuit_sensing.form import CircuitFired, EdgeFirings
from steerserve.nouns.circuits.rules import document as documents
from steerserve.nouns.circuits.store import CircuitRow
from steerserve.rules.steering import evidence
from tests.control.conftest import Make, refused
from tests.doubles import World
from tests.waiting import soon, until


def document(name: str, low: int, high: int, **changes: Any) -> dict[str, Any]:
    """A circuit of one edge from layer `low` to layer `high`."""
    members = [
        {"layer": low, "feature": {"feature_idx": 3, "strength": 1.0, "max_activation": 5.0}},
        {"layer": high, "feature": {"feature_idx": 5, "strength": 1.0, "max_activation": 10.0}},
    ]
    up, down = {"layer": low, "feature_idx": 3}, {"layer": high, "feature_idx": 5}
    return {
        "name": name,
        "saes": [{"layer": low}, {"layer": high}],
        "members": members,
        "edges": [{"up": up, "down": down, "rung": 2, "type": "computed"}],
    } | changes


async def circuit(world: World, made: dict[str, Any]) -> CircuitRow:
    read = documents.imported(made)
    return await world.circuit_store.add(read.circuit.name, read, 1.0)


async def attached(world: World, *layers: int) -> None:
    if world.conductor.resident is None:
        await world.loaded()
    rows = [await world.sae(f"sae_{layer}") for layer in layers]
    await world.attachments.attach_set(
        [(row.id, layer) for row, layer in zip(rows, layers, strict=True)]
    )


async def serving(world: World, name: str = "rain", low: int = 0, high: int = 1) -> CircuitRow:
    """A circuit that serves and is sensed."""
    row = await circuit(world, document(name, low, high))
    await world.circuits.activate(row.id, acknowledged=True, allows_overlap=False)
    assert (await world.circuit_sensing.enable(row.id)).armed
    return row


def engine(world: World) -> Any:
    return world.launcher.engine


def subjects(world: World) -> list[str]:
    return [one.subject for one in engine(world).state.circuits]


def told(row: CircuitRow, count: int = 1, truncated: tuple[int, ...] = ()) -> m.SensedEdges:
    edge = m.CircuitEdge("3@0->5@1", 0, 1, 2, evidence.language(2), "computed")
    window = m.Window([1, 2, 3], "a b c", ("a", " b", " c"))
    edges = [
        m.SensedEdge(
            edge,
            m.FeatureFiring(0, 3, at, 1.5),
            m.FeatureFiring(1, 5, at + 2, 2.5),
            "decode",
            "rain: fired",
            False,
            window,
        )
        for at in range(count)
    ]
    return m.SensedEdges(9, "cmpl-1", 0, row.id, 0.25, edges, list(truncated))


async def test_the_engine_gets_the_columns_of_sensable_edges_only(world: World) -> None:
    await attached(world, 0, 1)
    made = document("rain", 0, 1)
    made["edges"].append({"up": made["edges"][0]["up"], "down": {"layer": 1, "feature_idx": 9}})
    row = await circuit(world, made | {"sensing": {"max_token_lag": 4, "epsilon": 0.2}})
    await world.circuits.activate(row.id, acknowledged=True, allows_overlap=False)
    report = await world.circuit_sensing.enable(row.id)
    assert [edge.reason for edge in report.unsensable_edges] == ["no_activation_threshold"]
    assert engine(world).state.circuits == (
        m.ArmedCircuit(
            subject=row.id,
            title="rain",
            features=[
                m.CircuitFeature("sae_0@0", 0, 3, 1.0),
                m.CircuitFeature("sae_1@1", 1, 5, 2.0),
            ],
            edges=[m.CircuitEdge("3@0->5@1", 0, 1, 2, evidence.language(2), "computed")],
            max_lag=4,
            max_events=20,
            context_tokens=16,
        ),
    )


async def test_a_document_does_not_raise_the_context_that_the_operator_allows(make: Make) -> None:
    async with make(circuit_sensing_context_tokens=0) as world:
        await attached(world, 0, 1)
        row = await circuit(world, document("rain", 0, 1) | {"sensing": {"context_tokens": 64}})
        await world.circuits.activate(row.id, acknowledged=True, allows_overlap=False)
        assert (await world.circuit_sensing.enable(row.id)).armed
        assert engine(world).state.circuits[0].context_tokens == 0


async def test_circuits_on_disjoint_layers_are_sensed_together(world: World) -> None:
    await attached(world, 0, 1, 2, 3)
    one = await serving(world, "one", 0, 1)
    two = await serving(world, "two", 2, 3)
    assert subjects(world) == [one.id, two.id]
    status = await world.circuit_sensing.status()
    assert [circuit.circuit_name for circuit in status.circuits] == ["one", "two"]
    assert world.circuit_sensing.armed_count == 2
    await world.circuits.deactivate(one.id)
    await world.circuit_sensing.settled()
    assert subjects(world) == [two.id]
    await world.attachments.detach("sae_3")
    await world.circuit_sensing.settled()
    assert subjects(world) == []
    status = await world.circuit_sensing.status()
    assert [(two.name, two.is_active) for two in status.enabled_circuits] == [
        ("two", False),
        ("one", False),
    ]


async def test_a_circuit_that_is_deleted_during_a_read_leaves_the_status_of_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await attached(world, 0, 1, 2, 3)
    one = await serving(world, "one", 0, 1)
    two = await serving(world, "two", 2, 3)
    sensed = world.circuit_store.sensed

    async def deleted_after() -> list[CircuitRow]:
        rows = await sensed()
        monkeypatch.undo()
        await world.circuit_store.remove(one.id)
        return rows

    monkeypatch.setattr(world.circuit_store, "sensed", deleted_after)
    status = await world.circuit_sensing.status()
    assert [row.id for row in status.enabled_circuits] == [two.id]


async def test_a_circuit_without_sensable_edges_is_paused_with_the_reason(world: World) -> None:
    await attached(world, 0, 1)
    made = document("rain", 0, 1)
    for member in made["members"]:
        member["feature"]["max_activation"] = None
    row = await circuit(world, made)
    await world.circuits.activate(row.id, acknowledged=True, allows_overlap=False)
    report = await world.circuit_sensing.enable(row.id)
    assert (report.enabled, report.armed) == (True, False)
    assert "no edge" in report.message
    status = await world.circuit_sensing.status()
    assert status.paused_reason == "'rain' is not sensed: no edge can be observed"
    assert len(status.unsensable_edges) == 1


async def test_an_engine_that_refuses_leaves_the_wish(world: World) -> None:
    await attached(world, 0, 1)
    row = await circuit(world, document("rain", 0, 1))
    await world.circuits.activate(row.id, acknowledged=True, allows_overlap=False)
    await world.circuit_sensing.settled()
    world.launcher.fail("sense", Refusal("INSUFFICIENT_MEMORY", "no room"))
    assert (await refused(world.circuit_sensing.enable(row.id))).code == "VALIDATION_ERROR"
    status = await world.circuit_sensing.status()
    assert [one.id for one in status.enabled_circuits] == [row.id]
    assert status.paused_reason == "'rain' is not sensed: the engine refuses"
    assert world.circuit_sensing.armed_count == 0


async def test_after_a_crash_the_next_engine_senses_the_same_circuits(world: World) -> None:
    await attached(world, 0, 1)
    await serving(world)
    first = engine(world)
    first.die()
    await until(lambda: world.conductor.resident is None)
    await world.circuit_sensing.settled()
    assert world.circuit_sensing.armed_count == 0
    asked, stream = await world.in_flight()
    assert engine(world) is not first
    assert engine(world).state.circuits == first.state.circuits
    stream.complete()
    await soon(asked)
    await world.circuit_sensing.settled()
    assert world.circuit_sensing.armed_count == 1


@pytest.mark.parametrize("is_forced", [True, False])
async def test_an_armed_circuit_takes_continuous_batching_away(make: Make, is_forced: bool) -> None:
    async with make(
        enable_continuous_batching=True,
        circuit_sensing_force_serial=is_forced,
    ) as world:
        await attached(world, 0, 1)
        await serving(world)
        assert world.generation.is_batching is not is_forced


async def test_what_fired_is_recorded_counted_and_told_without_its_text(world: World) -> None:
    await attached(world, 0, 1)
    row = await serving(world)
    engine(world).on_edges(told(row, 7, (1,)))
    found = await world.circuit_sensing.events(50, edge_key="3@0->5@1")
    assert found.total == 7
    sent = [event.firing for event in world.published(CircuitFired)]
    newest = list(reversed(found.events))[-5:]
    assert len(sent) == 5
    for told_live, recorded in zip(sent, newest, strict=True):
        assert to_builtins(told_live).items() <= to_builtins(recorded).items()
    body = to_builtins(found.events[0])
    assert body["up"] == {"layer": 0, "feature_idx": 3, "pos": 6, "act": 1.5}
    assert (body["token_lag"], body["edge_rung_language"]) == (2, "causally validated (edge)")
    assert body["context_parts"] == {"before": "a", "span": " b", "after": " c"}
    assert not [name for name in sent[0].__struct_fields__ if "context" in name]
    assert (await world.circuit_sensing.events(50, edge_key="9@0->5@1")).total == 0
    status = await world.circuit_sensing.status()
    assert (status.requests_sensed, status.requests_truncated) == (1, 1)
    assert (status.truncated_layers, status.events_recorded, status.ws_throttled) == ((1,), 7, 2)
    await world.circuits.remove(row.id)
    engine(world).on_edges(told(row))
    assert await world.circuit_sensing.events(50) == EdgeFirings(0, [])
