"""Saved profiles."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.exc import StatementError

from steerserve.database.catalog import Catalog
from steerserve.database.db import Database
from steerserve.errors import Refusal
from steerserve.nouns.profiles.store import ProfileRow, ProfileStore
from steerserve.rules.bounds import PROFILES_KEPT
from steerserve.rules.saes.provenance import ModelOrigin, Origin, SaeOrigin
from tests.database.test_catalog import SAE
from tests.refusals import refused

NOW = datetime(2026, 1, 5, 10, tzinfo=UTC)
PROFILE: dict[str, Any] = {"name": "calm", "steering": {14: 2.5, 903: -1.0}}


@pytest.fixture
def documents(database: Database) -> ProfileStore:
    return ProfileStore(database)


async def code_of(call: Any) -> str:
    refusal = await refused(call)
    return refusal.code


async def test_a_profile_comes_back_whole_by_id_and_by_name(database: Database) -> None:
    documents = ProfileStore(database, lambda: NOW, lambda: "prof_0123456789ab")
    context: dict[str, Any] = {
        "description": "a\nb",
        "model_id": "7",
        "sae_id": "sae_1",
        "layer": 9,
    }
    made = await documents.add_profile(**PROFILE, **context, intensity=0.5)
    assert made == ProfileRow(
        id="prof_0123456789ab",
        name="calm",
        description="a\nb",
        model_id="7",
        sae_id="sae_1",
        layer=9,
        steering={14: 2.5, 903: -1.0},
        intensity=0.5,
        source_kind="manual",
        origin=None,
        cluster=None,
        warnings=(),
        hub_ref=None,
        sensing_enabled=False,
        sensing_min_k=None,
        created_at=NOW,
        updated_at=NOW,
    )
    assert await documents.row(made.id) == made
    for reader in (documents, ProfileStore(database)):
        assert await reader.profile_named("calm") == made
        assert (await reader.page(200))[0] == [made]


async def test_a_profile_that_is_named_again_is_as_it_was_written_last(database: Database) -> None:
    documents = ProfileStore(database)
    made = await documents.add_profile(**PROFILE, sae_id="sae_1")
    assert await documents.profile_named("calm") == made
    dialed = await documents.change_profile(made.id, {"intensity": 0.25})
    assert await documents.profile_named("calm") == dialed
    catalog = Catalog(database)
    await catalog.add_sae(id="sae_1", **SAE)
    await catalog.rename_sae("sae_1", "sae_2")
    assert (await documents.profile_named("calm")).sae_id == "sae_2"
    await documents.change_profile(made.id, {"name": "quiet"})
    assert await code_of(documents.profile_named("calm")) == "PROFILE_NOT_FOUND"
    await documents.remove(made.id)
    assert await code_of(documents.profile_named("quiet")) == "PROFILE_NOT_FOUND"


async def test_the_profiles_that_were_used_last_are_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = ProfileStore(database)
    made = [
        await documents.add_profile(name=f"p{n}", steering={}) for n in range(PROFILES_KEPT + 1)
    ]
    read: list[object] = []
    found = documents._found

    async def counted(*asked: Any) -> Any:
        read.append(asked)
        return await found(*asked)

    monkeypatch.setattr(documents, "_found", counted)
    for profile in (*made, made[-1], made[0]):
        assert await documents.profile_named(profile.name) == profile
    assert len(read) == len(made) + 1


async def test_what_is_left_out_has_its_default(documents: ProfileStore) -> None:
    made = await documents.add_profile(name="empty", steering={})
    assert re.fullmatch("prof_[0-9a-f]{12}", made.id)
    assert (made.steering, made.intensity, made.source_kind) == ({}, 1.0, "manual")
    assert (made.description, made.model_id, made.sae_id, made.layer) == (None,) * 4


async def test_profiles_are_listed_oldest_first_then_by_id(database: Database) -> None:
    times = iter([NOW.replace(day=day) for day in (2, 1, 2)])
    ids = iter(f"prof_{number:012x}" for number in (3, 2, 1))
    documents = ProfileStore(database, lambda: next(times), lambda: next(ids))
    for name in ("a", "b", "c"):
        await documents.add_profile(name=name, steering={})
    assert [row.name for row in (await documents.page(200))[0]] == ["b", "c", "a"]


@pytest.mark.parametrize(
    "value",
    [0.1 + 0.2, -200.0, 200.0, 199.99999999999997, -1e-300, sys.float_info.min, 5e-324, -0.0],
)
async def test_a_value_comes_back_as_the_same_float(documents: ProfileStore, value: float) -> None:
    made = await documents.add_profile(name="exact", steering={0: value}, intensity=1 / 3)
    assert repr(made.steering[0]) == repr(value)
    assert made.intensity == 1 / 3


async def test_indices_come_back_in_order_whatever_their_size(documents: ProfileStore) -> None:
    made = await documents.add_profile(name="many", steering={10**17: 1.0, 2: 1.0, 10: 1.0})
    assert list(made.steering) == [2, 10, 10**17]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_what_is_no_number_is_never_stored(documents: ProfileStore, value: float) -> None:
    with pytest.raises(StatementError):
        await documents.add_profile(name="poison", steering={0: value})
    assert (await documents.page(200))[0] == []


async def test_a_name_is_given_once_until_its_profile_is_removed(documents: ProfileStore) -> None:
    first = await documents.add_profile(**PROFILE)
    assert await code_of(documents.add_profile(**PROFILE)) == "PROFILE_ALREADY_EXISTS"
    await documents.remove(first.id)
    assert (await documents.add_profile(**PROFILE)).id != first.id


async def test_of_many_at_once_one_gets_the_name(documents: ProfileStore) -> None:
    made = await asyncio.gather(
        *(documents.add_profile(**PROFILE) for _ in range(5)), return_exceptions=True
    )
    rows = [row for row in made if isinstance(row, ProfileRow)]
    refused = [error.code for error in made if isinstance(error, Refusal)]
    assert (await documents.page(200))[0] == rows
    assert (len(rows), refused) == (1, ["PROFILE_ALREADY_EXISTS"] * 4)


async def test_names_are_compared_exactly(documents: ProfileStore) -> None:
    names = ["calm", "Calm", "calm ", " calm", "cälm", "ca\u0308lm", "calm%", "海 🌊"]
    for name in names:
        await documents.add_profile(name=name, steering={})
    assert [(await documents.profile_named(name)).name for name in names] == names
    assert await code_of(documents.profile_named("CALM")) == "PROFILE_NOT_FOUND"


async def test_of_two_that_remove_a_profile_the_second_is_told(documents: ProfileStore) -> None:
    kept = await documents.add_profile(name="kept", steering={})
    made = await documents.add_profile(**PROFILE)
    await documents.remove(made.id)
    assert await code_of(documents.remove(made.id)) == "PROFILE_NOT_FOUND"
    assert (await documents.page(200))[0] == [kept]


@pytest.mark.parametrize("unknown", ["", "prof_0", "' OR 1=1 --", "\x00", "\ud800", "ü" * 1000])
async def test_an_id_or_a_name_that_no_profile_has_is_not_found(
    documents: ProfileStore, unknown: str
) -> None:
    await documents.add_profile(**PROFILE)
    assert await code_of(documents.row(unknown)) == "PROFILE_NOT_FOUND"
    assert await code_of(documents.remove(unknown)) == "PROFILE_NOT_FOUND"
    refusal = await refused(documents.profile_named(unknown))
    assert (refusal.code, refusal.param) == ("PROFILE_NOT_FOUND", "profile")
    assert len((await documents.page(200))[0]) == 1


async def test_a_change_replaces_what_it_names_and_nothing_else(database: Database) -> None:
    times = iter([NOW, NOW.replace(day=6)])
    documents = ProfileStore(database, lambda: next(times))
    made = await documents.add_profile(**PROFILE, sae_id="sae_1", layer=9)
    changed = await documents.change_profile(made.id, {"steering": {7: 1.0}, "sae_id": None})
    assert changed == replace(made, steering={7: 1.0}, sae_id=None, updated_at=NOW.replace(day=6))
    assert await documents.row(made.id) == changed
    assert await documents.change_profile(made.id, {}) == changed


async def test_a_profile_may_be_renamed_to_a_free_name_and_to_its_own(
    documents: ProfileStore,
) -> None:
    made = await documents.add_profile(**PROFILE)
    await documents.add_profile(name="taken", steering={})
    assert (await documents.change_profile(made.id, {"name": "calm"})).name == "calm"
    taken = documents.change_profile(made.id, {"name": "taken", "steering": {}})
    assert await code_of(taken) == "PROFILE_ALREADY_EXISTS"
    assert (await documents.row(made.id)).steering == PROFILE["steering"]


@pytest.mark.parametrize("unknown", ["", "prof_0", "\x00", "\ud800"])
@pytest.mark.parametrize("changes", [{}, {"name": "new"}])
async def test_a_change_of_what_is_not_there_is_not_found(
    documents: ProfileStore, unknown: str, changes: dict[str, Any]
) -> None:
    assert await code_of(documents.change_profile(unknown, changes)) == "PROFILE_NOT_FOUND"


async def test_an_origin_comes_back_and_is_replaced_by_a_change(database: Database) -> None:
    documents = ProfileStore(database)
    origin = Origin(SaeOrigin("acme/saes", "abc", "layer_3"), ModelOrigin("demo", "acme/demo"))
    made = await documents.add_profile(**PROFILE, origin=origin)
    assert (await documents.row(made.id)).origin == origin
    await documents.change_profile(made.id, {"name": "new"})
    assert (await documents.row(made.id)).origin == origin
    changed = await documents.change_profile(made.id, {"origin": Origin(None, origin.model)})
    assert changed.origin == Origin(None, origin.model)
    assert (await documents.change_profile(made.id, {"origin": Origin()})).origin is None
