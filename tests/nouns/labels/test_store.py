"""Labels of features: what is kept in memory is what is stored."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.util import await_only

from steerserve.database.catalog import Catalog
from steerserve.database.db import Database
from steerserve.database.tables import feature_labels
from steerserve.errors import Refusal
from steerserve.nouns.labels import store as stored_labels
from steerserve.nouns.labels.store import Labels
from tests.refusals import refused


async def registered(database: Database, *sae_ids: str) -> None:
    for sae_id in sae_ids:
        await Catalog(database).add_sae(
            id=sae_id, name=sae_id, local_path=f"/saes/{sae_id}", status="cached"
        )


async def stored(database: Database) -> int:
    async with database.read() as connection:
        return int(await connection.scalar(select(func.count()).select_from(feature_labels)) or 0)


async def test_labels_are_merged_replaced_and_forgotten(database: Database) -> None:
    await registered(database, "sae_a", "sae_b")
    labels = Labels(database)
    assert await labels.labels_of("sae_a") == {}
    await labels.put("sae_a", {7: "boats", 3: "the sea"})
    await labels.put("sae_b", {3: "other"})
    assert list((await labels.labels_of("sae_a")).items()) == [(3, "the sea"), (7, "boats")]
    await labels.put("sae_a", {3: "waves", 5: "sand"})
    assert await labels.labels_of("sae_a") == {3: "waves", 5: "sand", 7: "boats"}
    await labels.put("sae_a", {9: "night"}, replace=True)
    assert await labels.labels_of("sae_a") == {9: "night"}
    assert await labels.forget("sae_a") == 1
    assert await labels.forget("sae_a") == 0
    assert await labels.labels_of("sae_a") == {}
    assert await labels.labels_of("sae_b") == {3: "other"}


async def test_they_are_stored_and_not_only_remembered(database: Database) -> None:
    await registered(database, "sae_a")
    many = {index: f"label {index}" for index in range(12_000)}
    await Labels(database).put("sae_a", many)
    assert await Labels(database).labels_of("sae_a") == many
    await Labels(database).put("sae_a", {0: "first", 11_999: "last"})
    found = await Labels(database).labels_of("sae_a")
    assert (found[0], found[1], found[11_999], len(found)) == ("first", "label 1", "last", 12_000)


async def test_a_write_that_fails_changes_nothing(database: Database) -> None:
    await registered(database, "sae_a")
    labels = Labels(database)
    await labels.put("sae_a", {3: "kept"})
    assert await labels.labels_of("sae_a") == {3: "kept"}
    with pytest.raises(IntegrityError):
        await labels.put("sae_a", {4: "new", 5: None}, replace=True)  # type: ignore[dict-item]
    assert await labels.labels_of("sae_a") == {3: "kept"}


async def test_however_many_saes_are_read_each_has_its_own_and_few_labels_are_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_labels, "LABELS_KEPT", 8)
    labels = Labels(database)
    await registered(database, *(f"sae_{number}" for number in range(20)))
    for number in range(20):
        await labels.put(f"sae_{number}", {number: str(number)})
    for number in [*range(20), *range(20)]:
        assert await labels.labels_of(f"sae_{number}") == {number: str(number)}
    assert sum(map(len, labels._known.values())) == 8
    many = dict.fromkeys(range(20), "x")
    await labels.put("sae_3", many)
    assert await labels.labels_of("sae_3") == many
    assert list(labels._known) == ["sae_3"]


async def test_of_saes_without_labels_only_the_last_ones_are_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_labels, "LABELLED_SAES_KEPT", 8)
    labels = Labels(database)
    for number in range(20):
        assert await labels.labels_of(f"sae_{number}") == {}
    assert list(labels._known) == [f"sae_{number}" for number in range(12, 20)]


async def test_an_sae_that_is_not_there_gets_no_labels(database: Database) -> None:
    assert (await refused(Labels(database).put("sae_a", {3: "orphan"}))).code == "SAE_NOT_FOUND"
    assert await stored(database) == 0


async def test_an_import_beside_a_removal_leaves_no_labels(database: Database) -> None:
    many = {index: f"label {index}" for index in range(6_000)}
    for replace in (False, True):
        await registered(database, "sae_a")
        done = await asyncio.gather(
            Labels(database).put("sae_a", many, replace=replace),
            Catalog(database).remove_saes("sae_a"),
            return_exceptions=True,
        )
        assert [one.code for one in done if isinstance(one, Refusal)] in ([], ["SAE_NOT_FOUND"])
        assert not [one for one in done if one is not None and not isinstance(one, Refusal)]
        assert await stored(database) == 0


async def test_what_is_read_beside_an_import_is_all_of_one_moment(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registered(database, "sae_a")
    labels = Labels(database)
    before = dict.fromkeys(range(2_000), "before")
    await labels.put("sae_a", before)
    monkeypatch.setattr(stored_labels, "_AT_ONCE", 5)
    after = before | {0: "after", 1_999: "after"}
    begun, written = asyncio.Event(), asyncio.Event()

    def hold_the_first_reading(*_: object) -> None:
        if not begun.is_set():
            begun.set()
            await_only(written.wait())

    event.listen(database._engine.sync_engine, "after_cursor_execute", hold_the_first_reading)
    reading = asyncio.create_task(labels.labels_of("sae_a"))
    await begun.wait()
    await labels.put("sae_a", {0: "after", 1_999: "after"})
    written.set()
    assert await reading == after
    assert await labels.labels_of("sae_a") == after


async def test_the_labels_of_a_removed_sae_are_gone(database: Database) -> None:
    await registered(database, "sae_a", "sae_b")
    for sae_id in ("sae_a", "sae_b"):
        await Labels(database).put(sae_id, {3: "the sea"})
    await Catalog(database).remove_saes("sae_a")
    assert await stored(database) == 1
    await registered(database, "sae_a")
    assert await Labels(database).labels_of("sae_a") == {}


async def test_many_labels_leave_the_event_loop_free(database: Database) -> None:
    await registered(database, "sae_a")
    many = {index: f"label {index}" for index in range(60_000)}
    longest, is_over = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not is_over:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    gc.disable()  # a collection would be counted too
    try:
        watching = asyncio.create_task(watch())
        await Labels(database).put("sae_a", many)
        assert await Labels(database).labels_of("sae_a") == many
        is_over = True
        await watching
    finally:
        gc.enable()
    assert longest < 0.04
