"""Stored vectors as requests find them: from memory where they can be, and never after their deletion."""

from __future__ import annotations

import pytest

from steerserve.errors import Refusal
from steerserve.nouns.directions import owner as module
from steerserve.nouns.directions.rules import VectorRecord, VectorSource
from steerserve.rules.steering.vector import Direction, ReadVector, packed
from tests.control.conftest import refused
from tests.doubles import World
from tests.waiting import soon

SOURCE = VectorSource(kind="trained", format="mean_difference")


async def added(world: World, name: str = "calm", width: int = 2) -> VectorRecord:
    directions = (
        Direction(1, "resid_post", packed([1.0] * width)),
        Direction(4, "mlp_out", packed([2.0] * width)),
    )
    read = ReadVector(format="mean_difference", directions=directions, keys=())
    return await world.vectors.add(name, read, SOURCE)


async def test_a_vector_is_found_by_its_id_and_by_its_name(world: World) -> None:
    row = await added(world)
    assert await world.vectors.get(row.id) == await world.vectors.get("calm") == row
    by_id, by_name = await world.vectors.find(row.id), await world.vectors.find("calm")
    assert by_id is by_name
    assert [(one.layer, one.site, one.values) for one in by_id.directions] == [
        (1, "resid_post", (1.0, 1.0)),
        (4, "mlp_out", (2.0, 2.0)),
    ]
    assert by_id.content_digest == row.content_digest
    assert (await refused(world.vectors.find("other"))).code == "VECTOR_NOT_FOUND"
    assert (await refused(world.vectors.find("\x00"))).code == "VECTOR_NOT_FOUND"


async def test_a_vector_that_was_in_use_is_found_while_the_database_has_a_fault(
    world: World,
) -> None:
    await added(world)
    await added(world, "other")
    await world.vectors.find("calm")
    await world.database.close()
    assert (await world.vectors.find("calm")).name == "calm"
    assert (await refused(world.vectors.find("other"))).code == "DATABASE_UNAVAILABLE"


async def test_a_deleted_vector_is_not_found_and_its_name_is_free(world: World) -> None:
    row = await added(world)
    before = await world.vectors.find("calm")
    assert await world.vectors.remove("calm") == row.id
    assert (await refused(world.vectors.find("calm"))).code == "VECTOR_NOT_FOUND"
    assert (await refused(world.vectors.remove(row.id))).code == "VECTOR_NOT_FOUND"
    again = await added(world)
    assert again.id != row.id
    assert before.directions == (await world.vectors.find("calm")).directions


async def test_the_vectors_in_memory_are_bounded_and_the_latest_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 40)
    for name in ("a", "b", "c"):
        await added(world, name)
        await world.vectors.find(name)
    await world.vectors.find("b")
    await added(world, "large", width=1000)
    await world.database.close()
    assert (await world.vectors.find("b")).name == "b"
    assert (await refused(world.vectors.find("a"))).code == "DATABASE_UNAVAILABLE"


async def test_of_two_vectors_of_one_name_one_is_stored(world: World) -> None:
    await added(world)
    with pytest.raises(Refusal) as taken:
        await soon(added(world))
    assert taken.value.code == "VECTOR_ALREADY_EXISTS"
    assert (await world.vectors.page(10))[1] == 1
