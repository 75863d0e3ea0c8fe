"""Hundreds of models, SAEs and profiles: how many queries a request makes, whatever the number of records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event, insert
from sqlalchemy.engine import Engine

from steerserve.control.saes.records import REPOSITORY
from steerserve.database.tables import feature_labels, models, profiles, saes
from tests.control.conftest import Make
from tests.doubles import World
from tests.waiting import soon

AT = {
    "created_at": datetime(2026, 3, 1, tzinfo=UTC),
    "updated_at": datetime(2026, 3, 1, tzinfo=UTC),
}
WHOLE = "sae_whole"
"""The record of a repository with all its SAEs."""

Ask = Callable[[World], Awaitable[Any]]


async def fill(world: World, count: int) -> None:
    """Write `count` models, SAEs of one repository, and profiles. Each second model has the name of the one before."""
    async with world.database.write() as connection:
        await connection.execute(insert(models), [_model(number) for number in range(count)])
        await connection.execute(insert(saes), [_sae(number) for number in range(-1, count)])
        await connection.execute(insert(profiles), [_profile(number) for number in range(count)])
        labels = [{"sae_id": f"sae_{n}", "feature_idx": 1, "label": "x"} for n in range(count)]
        await connection.execute(insert(feature_labels), labels)


def _model(number: int) -> dict[str, Any]:
    return AT | {
        "name": f"model-{number // 2}",
        "source": "huggingface",
        "repo_id": f"owner/model-{number // 2}",
        "local_path": f"/models/{number}",
        "quantization": ("FP16", "Q8")[number % 2],
        "status": "ready",
    }


def _sae(number: int) -> dict[str, Any]:
    is_unit = number >= 0
    return AT | {
        "id": f"sae_{number}" if is_unit else WHOLE,
        "repository_id": "owner/saes",
        "revision": "b" * 40,
        "file_path": f"layer_{number}" if is_unit else None,
        "local_path": f"/saes/{number}",
        "name": f"owner/saes/{number}",
        "format": "saelens" if is_unit else REPOSITORY,
        "d_in": 8,
        "d_sae": 16,
        "status": "cached",
    }


def _profile(number: int) -> dict[str, Any]:
    return AT | {
        "id": f"prof_{number}",
        "name": f"profile {number}",
        "sae_id": "sae_0",
        "steering": dict.fromkeys(range(20), 1.0),
    }


@contextmanager
def counted() -> Iterator[list[str]]:
    """The statements that are sent to the database inside the block."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def _resolve(world: World) -> None:
    assert (await world.served.resolve("model-0:Q8")).name == "model-0:Q8"


async def _export(world: World) -> None:
    origin = await world.profiles.origin(await world.profiles.get("prof_0"))
    assert origin.sae is not None


async def _activate(world: World) -> None:
    await world.serving.applicable(await world.profiles.get("prof_0"))


ASKS: dict[str, tuple[Ask, int, int]] = {
    "list the models": (lambda world: world.models.list(), 1, 0),
    "list the models of /v1": (lambda world: world.served.listed(), 1, 0),
    "find a model by its name": (_resolve, 1, 0),
    "list the SAEs": (lambda world: world.saes.list(), 1, 0),
    "read a repository with its SAEs": (lambda w: w.sae_downloads.with_units(WHOLE), 1, 0),
    "list the profiles": (lambda world: world.profiles.page(200, 0), 2, 2),
    "export a profile": (_export, 3, 1),
    "read the labels of an SAE": (lambda world: world.labels.labels_of("sae_0"), 2, 0),
    "correct the ids at the start": (lambda world: world.saes.renew_ids(), 1, 0),
}
"""What is asked -> the queries of the first request, and of a request after it."""


@pytest.fixture(params=[3, 300])
async def world(request: pytest.FixtureRequest, make: Make) -> AsyncIterator[World]:
    async with make() as made:
        await fill(made, request.param)
        yield made


@pytest.mark.parametrize("ask", ASKS)
async def test_a_request_makes_the_same_few_queries_whatever_the_number_of_records(
    world: World, ask: str
) -> None:
    work, first, later = ASKS[ask]
    for most in (first, later):
        with counted() as statements:
            await soon(work(world))
        assert len(statements) == most, statements


async def test_requests_that_come_together_read_labels_once(world: World) -> None:
    with counted() as statements:
        every = await soon(asyncio.gather(*(world.labels.labels_of("sae_0") for _ in range(20))))
    assert every == [{1: "x"}] * 20
    assert len(statements) == 2


async def test_a_repository_is_removed_in_one_transaction(world: World) -> None:
    number = len(await world.saes.list())
    with counted() as statements:
        await soon(world.saes.remove(WHOLE))
    writes = [statement for statement in statements if not statement.startswith("SELECT")]
    # one chunk has a hundred SAEs
    assert len(writes) == 3 * -(-number // 100)
    assert len(statements) - len(writes) <= 6
    assert len(await world.saes.list()) == 0
    assert await world.labels.labels_of("sae_0") == {}


async def test_a_write_is_seen_by_the_next_request(world: World) -> None:
    before = await world.models.list(), await world.saes.list(), await world.served.listed()
    await world.catalog.change_model(1, status="error")
    await world.catalog.change_sae("sae_0", status="error")
    rows, records, served = (
        await world.models.list(),
        await world.saes.list(),
        await world.served.listed(),
    )
    assert [row.status for row in rows].count("error") == 1
    assert [row.status for row in records].count("error") == 1
    assert len(served) == len(before[2]) - 1
    # the name of the other quantization is not ambiguous any more
    assert "model-0" in {model.name for model in served}
