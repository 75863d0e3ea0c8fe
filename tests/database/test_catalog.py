"""Registered models and SAEs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError

from steerserve.database.catalog import CLAIMED_TEXTS, Catalog
from steerserve.database.db import Database
from steerserve.database.tables import saes
from tests.refusals import refused

MODEL: dict[str, Any] = {
    "name": "m",
    "source": "local",
    "local_path": "/models/m",
    "quantization": "FP16",
    "status": "ready",
}
SAE: dict[str, Any] = {
    "name": "s",
    "local_path": "/saes/s",
    "format": "saelens",
    "architecture": "standard",
    "d_in": 8,
    "d_sae": 16,
    "dtype": "float32",
    "status": "cached",
}


@pytest.fixture
def catalog(database: Database) -> Catalog:
    return Catalog(database)


async def test_the_same_folder_at_the_same_quantization_is_registered_once(
    catalog: Catalog,
) -> None:
    row = await catalog.add_model(**MODEL)
    for other in ({"name": "another name"}, {"local_path": "/models/another"}):
        refusal = await refused(catalog.add_model(**MODEL | other))
        assert (refusal.code, refusal.row.api) == ("MODEL_ALREADY_EXISTS", 409)
        assert refusal.details["model_id"] == row.id
        assert f"model {row.id}" in refusal.message
    assert len(await catalog.models()) == 1


@pytest.mark.parametrize(
    "change", [{"quantization": "Q8"}, {"local_path": "/models/n", "name": "n"}]
)
async def test_another_quantization_or_folder_is_another_model(
    catalog: Catalog, change: dict[str, str]
) -> None:
    first = await catalog.add_model(**MODEL)
    second = await catalog.add_model(**MODEL | change)
    assert [row.id for row in await catalog.models()] == [first.id, second.id]


async def test_the_id_of_a_removed_model_is_not_given_again(catalog: Catalog) -> None:
    first = await catalog.add_model(**MODEL)
    await catalog.remove_model(first.id)
    second = await catalog.add_model(**MODEL)
    assert second.id > first.id


@pytest.mark.parametrize("model_id", [0, -1, 7, 2**31, 2**63, 10**30])
async def test_an_id_that_no_model_has_is_not_found(catalog: Catalog, model_id: int) -> None:
    assert (await refused(catalog.model(model_id))).code == "MODEL_NOT_FOUND"


@pytest.mark.parametrize("sae_id", ["", "sae_0", "' OR 1=1 --", "\x00", "ü" * 1000])
async def test_an_id_that_no_sae_has_is_not_found(catalog: Catalog, sae_id: str) -> None:
    await catalog.add_sae(id="sae_1", **SAE)
    assert (await refused(catalog.sae(sae_id))).code == "SAE_NOT_FOUND"


async def test_a_change_of_a_removed_model_is_not_found(catalog: Catalog) -> None:
    row = await catalog.add_model(**MODEL)
    await catalog.remove_model(row.id)
    assert (await refused(catalog.change_model(row.id, status="loading"))).code == "MODEL_NOT_FOUND"


async def test_a_change_touches_its_own_row_only(catalog: Catalog) -> None:
    first = await catalog.add_model(**MODEL)
    second = await catalog.add_model(**MODEL | {"quantization": "Q8"})
    changed = await catalog.change_model(first.id, status="loading", dtype="bfloat16")
    assert (changed.status, changed.dtype, changed.name) == ("loading", "bfloat16", "m")
    assert await catalog.model(second.id) == second


async def test_the_same_sae_folder_is_registered_once(catalog: Catalog) -> None:
    await catalog.add_sae(id="sae_1", **SAE)
    with pytest.raises(IntegrityError):
        await catalog.add_sae(id="sae_2", **SAE)
    assert [row.id for row in await catalog.saes()] == ["sae_1"]


async def test_several_saes_are_put_in_few_transactions_and_an_attached_one_is_kept(
    catalog: Catalog,
) -> None:
    await catalog.add_sae(id="sae_7", **SAE | {"status": "attached", "local_path": "/attached"})
    records = {f"sae_{n}": SAE | {"local_path": f"/saes/{n}", "d_sae": n} for n in range(250)}
    transactions: list[Any] = []
    note = transactions.append
    event.listen(Engine, "commit", note)
    try:
        await catalog.put_saes(records)
    finally:
        event.remove(Engine, "commit", note)
    assert len(transactions) == 3
    rows = {row.id: row for row in await catalog.saes()}
    assert len(rows) == 250
    assert rows["sae_249"].d_sae == 249
    assert (rows["sae_7"].status, rows["sae_7"].local_path) == ("attached", "/attached")
    await catalog.put_saes({"sae_3": SAE | {"local_path": "/saes/3", "d_sae": 5}})
    assert (await catalog.sae("sae_3")).d_sae == 5


async def test_an_sae_is_changed_and_removed(catalog: Catalog) -> None:
    await catalog.add_sae(id="sae_1", **SAE)
    assert (await catalog.change_sae("sae_1", status="attached")).status == "attached"
    await catalog.remove_saes("sae_1")
    assert not await catalog.saes()


async def test_what_a_checkpoint_tells_is_kept_as_far_as_a_column_holds_it(
    catalog: Catalog,
) -> None:
    whole = {"architecture": "é" * 400}
    added = await catalog.add_sae(
        id="sae_1", **SAE | dict.fromkeys(CLAIMED_TEXTS, "a\x00\ud800" + "é" * 400), claims=whole
    )
    changed = await catalog.change_sae("sae_1", **dict.fromkeys(CLAIMED_TEXTS, "ü" * 400))
    for name in CLAIMED_TEXTS:
        length = saes.c[name].type.length
        assert getattr(added, name) == ("a\ufffd\ufffd" + "é" * 400)[:length]
        assert getattr(changed, name) == "ü" * length
    assert changed.claims == whole


@pytest.mark.parametrize(
    "now",
    [
        datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime(2026, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-8))),
    ],
)
async def test_a_time_comes_back_as_the_same_moment_in_utc(
    database: Database, now: datetime
) -> None:
    row = await Catalog(database, lambda: now).add_model(**MODEL)
    for time in (row.created_at, row.updated_at):
        assert time == now
        assert time.utcoffset() == timedelta(0)


async def test_a_change_moves_updated_and_keeps_created(database: Database) -> None:
    times = iter([datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2)])
    catalog = Catalog(database, lambda: next(times))
    row = await catalog.add_model(**MODEL)
    changed = await catalog.change_model(row.id, status="loading")
    assert (changed.created_at.day, changed.updated_at.day) == (1, 2)
