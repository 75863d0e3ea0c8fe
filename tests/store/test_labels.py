"""Labels of features: what is kept in memory is what is stored."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError

from steerserve.store.db import Database
from steerserve.store.labels import Labels


async def test_labels_are_merged_replaced_and_forgotten(database: Database) -> None:
    labels = Labels(database)
    assert await labels.of("sae_a") == {}
    await labels.put("sae_a", {7: "boats", 3: "the sea"})
    await labels.put("sae_b", {3: "other"})
    assert list((await labels.of("sae_a")).items()) == [(3, "the sea"), (7, "boats")]
    await labels.put("sae_a", {3: "waves", 5: "sand"})
    assert await labels.of("sae_a") == {3: "waves", 5: "sand", 7: "boats"}
    await labels.put("sae_a", {9: "night"}, replace=True)
    assert await labels.of("sae_a") == {9: "night"}
    assert await labels.forget("sae_a") == 1
    assert await labels.forget("sae_a") == 0
    assert await labels.of("sae_a") == {}
    assert await labels.of("sae_b") == {3: "other"}


async def test_they_are_stored_and_not_only_remembered(database: Database) -> None:
    many = {index: f"label {index}" for index in range(12_000)}
    await Labels(database).put("sae_a", many)
    assert await Labels(database).of("sae_a") == many
    await Labels(database).put("sae_a", {0: "first", 11_999: "last"})
    found = await Labels(database).of("sae_a")
    assert (found[0], found[1], found[11_999], len(found)) == ("first", "label 1", "last", 12_000)


async def test_a_write_that_fails_changes_nothing(database: Database) -> None:
    labels = Labels(database)
    await labels.put("sae_a", {3: "kept"})
    assert await labels.of("sae_a") == {3: "kept"}
    with pytest.raises(IntegrityError):
        await labels.put("sae_a", {4: "new", 5: None}, replace=True)  # type: ignore[dict-item]
    assert await labels.of("sae_a") == {3: "kept"}


async def test_however_many_saes_are_read_each_has_its_own(database: Database) -> None:
    labels = Labels(database)
    for number in range(20):
        await labels.put(f"sae_{number}", {number: str(number)})
    for number in [*range(20), *range(20)]:
        assert await labels.of(f"sae_{number}") == {number: str(number)}
    assert len(labels._known) <= 8
