"""Imported circuits and layer claims: what comes back, and the rule of the database that decides races."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from steerserve.database.db import Database
from steerserve.database.stored import NameTaken
from steerserve.nouns.circuits.rules import binding
from steerserve.nouns.circuits.rules import document as rules
from steerserve.nouns.circuits.store import CircuitRow, CircuitStore, LayerTaken, WholeCircuit
from steerserve.nouns.claims.rules import LayerClaim
from tests.refusals import refused

NOW = datetime(2026, 1, 5, 10, tzinfo=UTC)
DOCUMENT: dict[str, Any] = {
    "name": "rain",
    "saes": [{"layer": 2, "n_features": None}, {"layer": 3, "mistudio_sae_id": "sae_1"}],
    "members": [
        {"layer": 2, "feature": {"feature_idx": 7, "strength": -8.5, "sign": -1}},
        {"layer": 3, "feature": {"feature_idx": 9, "strength": 0.1, "max_activation": 4}},
        {"layer": 4, "member_kind": "cluster_ref", "expanded_members": None},
    ],
    "edges": [
        {
            "up": {"layer": 2, "feature_idx": 7},
            "down": {"layer": 3, "feature_idx": 9},
            "rung": 2,
            "type": "\ud800",
        }
    ],
    "budget": {"intensity_range": [0.2, 1.4]},
    "later": {"big": 12345678901234567890123, "small": 1e-300, "half": "\ud800", "nested": [{}]},
}
IMPORTED = rules.imported(DOCUMENT)
CIRCUIT = IMPORTED.circuit


@pytest.fixture
def store(database: Database) -> CircuitStore:
    return CircuitStore(database)


def claim(row: CircuitRow, layer: int, *features: int, is_composed: bool = False) -> LayerClaim:
    return LayerClaim(row.id, row.name, layer, features, is_composed)


async def add(store: CircuitStore, name: str = "rain") -> CircuitRow:
    return await store.add(name, IMPORTED, 1.0)


async def code_of(call: Any) -> str:
    refusal = await refused(call)
    return refusal.code


# ------------------------------------------------------------------ circuits


async def test_a_circuit_comes_back_whole(database: Database) -> None:
    store = CircuitStore(database, lambda: NOW, lambda: "circ_0123456789ab")
    made = await store.add("rain", IMPORTED, 0.7)
    facts = ("circ_0123456789ab", "rain", 2, 0.7, False, NOW, NOW, CIRCUIT.narrative)
    listed = CircuitRow(*facts, binding.outline(CIRCUIT))
    assert made == WholeCircuit(*facts, binding.outline(CIRCUIT), CIRCUIT)
    assert await store.row(made.id) == made
    assert await store.page(200) == ([listed], 1)
    assert json.loads(await store.document(made.id)) == DOCUMENT


async def test_an_id_is_a_word_and_twelve_hex_digits(store: CircuitStore) -> None:
    assert re.fullmatch("circ_[0-9a-f]{12}", (await add(store)).id)


async def test_circuits_are_listed_newest_first_from_a_rung_on(database: Database) -> None:
    moments = iter(NOW + timedelta(seconds=second) for second in range(9))
    store = CircuitStore(database, lambda: next(moments))
    low = rules.imported({**DOCUMENT, "edges": []})
    first, second = await add(store, "first"), await store.add("second", low, 1.0)
    names = [row.name for row in (await store.page(200))[0]]
    assert names == [second.name, first.name]
    for page in (store.page(200, min_rung=1), store.page(1, 1)):
        assert [row.name for row in (await page)[0]] == [first.name]


async def test_a_name_is_taken_once_and_letter_by_letter(store: CircuitStore) -> None:
    await add(store)
    with pytest.raises(NameTaken):
        await add(store)
    await add(store, "Rain")


async def test_a_change_is_kept_with_its_time(database: Database) -> None:
    moments = iter([NOW, NOW + timedelta(seconds=1)])
    store = CircuitStore(database, lambda: next(moments))
    made = await add(store)
    changed = await store.change(made.id, intensity=0.3, sensing_enabled=True)
    assert (changed.intensity, changed.sensing_enabled) == (0.3, True)
    assert changed.updated_at == NOW + timedelta(seconds=1)
    assert await store.row(made.id) == changed


@pytest.mark.parametrize("circuit_id", ["circ_0123456789ab", "circ_\x00", "circ_\ud800", ""])
async def test_an_unknown_id_is_refused_everywhere(store: CircuitStore, circuit_id: str) -> None:
    calls = [store.row, store.document, store.remove, store.change]
    assert {await code_of(call(circuit_id)) for call in calls} == {"CIRCUIT_NOT_FOUND"}


# ------------------------------------------------------------------ claims


async def test_claims_come_back_in_their_order_with_the_names_of_their_circuits(
    store: CircuitStore,
) -> None:
    row = await add(store)
    made = [claim(row, 3, 9), claim(row, 2, 7, 8)]
    assert await store.claim(row.id, made) == made
    assert await store.claims() == made


async def test_of_two_circuits_that_race_for_a_layer_one_gets_it(store: CircuitStore) -> None:
    rows = [await add(store, name) for name in ("first", "second", "third")]
    races = await asyncio.gather(
        *(store.claim(row.id, [claim(row, layer, 7) for layer in (2, 3)]) for row in rows),
        return_exceptions=True,
    )
    assert sorted(type(race) is LayerTaken for race in races) == [False, True, True]
    # the losers hold nothing, not even the layer that was claimed before the refusal
    assert len({one.circuit_id for one in await store.claims()}) == 1


async def test_a_composed_claim_stands_beside_the_leading_one(store: CircuitStore) -> None:
    first, second = await add(store, "first"), await add(store, "second")
    await store.claim(first.id, [claim(first, 2, 7)])
    composed = claim(second, 2, 8, is_composed=True)
    assert await store.claim(second.id, [composed]) == [claim(first, 2, 7), composed]


async def test_a_claim_of_the_same_circuit_replaces_its_claims(store: CircuitStore) -> None:
    row = await add(store)
    await store.claim(row.id, [claim(row, 2, 7), claim(row, 3, 9)])
    assert await store.claim(row.id, [claim(row, 3, 4)]) == [claim(row, 3, 4)]


@pytest.mark.parametrize("way", ["release", "remove"])
async def test_the_oldest_claim_left_on_a_layer_leads_it(store: CircuitStore, way: str) -> None:
    first, second, third = [await add(store, name) for name in ("first", "second", "third")]
    await store.claim(first.id, [claim(first, 2, 7)])
    for row, feature in ((second, 8), (third, 9)):
        await store.claim(row.id, [claim(row, 2, feature, is_composed=True)])
    await (store.release([first.id]) if way == "release" else store.remove(first.id))
    assert await store.claims() == [claim(second, 2, 8), claim(third, 2, 9, is_composed=True)]
    fourth = await add(store, "fourth")
    with pytest.raises(LayerTaken):
        await store.claim(fourth.id, [claim(fourth, 2, 5)])


async def test_a_release_takes_only_the_claims_of_its_circuits(store: CircuitStore) -> None:
    first, second = await add(store, "first"), await add(store, "second")
    await store.claim(first.id, [claim(first, 2, 7)])
    await store.claim(second.id, [claim(second, 3, 7)])
    assert await store.release([first.id]) == [claim(second, 3, 7)]
    assert await store.release(["circ_0123456789ab"]) == [claim(second, 3, 7)]


async def test_a_restart_releases_every_claim_and_keeps_the_circuits(url: str) -> None:
    database = Database(url)
    await database.open()
    store = CircuitStore(database)
    row = await add(store)
    await store.claim(row.id, [claim(row, 2, 7)])
    await database.close()
    again = Database(url)
    await again.open()
    assert await CircuitStore(again).claims() == []
    assert await CircuitStore(again).row(row.id) == row
    await again.close()
