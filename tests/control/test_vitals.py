"""Health, readiness, and the queue block that is always there."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from steerserve.control import vitals
from tests.control.conftest import Make
from tests.doubles import World, soon

BLOCK = {
    "backend",
    "cbm_enabled",
    "cbm_running",
    "queue_pending",
    "queue_max_concurrent",
    "queue_max_pending",
    "in_flight",
    "queue_waiting",
    "batch_backlog_rows",
    "estimated_wait_seconds",
    "error",
}


def component(state: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [part for part in state["components"] if part["name"] == name]
    return dict(found)


async def test_the_queue_block_counts_what_waits_and_what_runs(make: Make) -> None:
    async with make(max_concurrent_requests=3, max_pending_requests=5) as world:
        await world.loaded()
        asked, stream = await world.in_flight()
        block = (await world.vitals.detailed())["inference"]
        assert set(block) == BLOCK
        assert block == {
            "backend": "queue",
            "cbm_enabled": False,
            "cbm_running": False,
            "queue_pending": 1,
            "queue_max_concurrent": 3,
            "queue_max_pending": 5,
            "in_flight": 1,
            "queue_waiting": 0,
            "batch_backlog_rows": None,
            "estimated_wait_seconds": None,
            "error": None,
        }
        stream.complete()
        await soon(asked)


async def test_a_queue_that_cannot_be_read_leaves_the_block_with_its_error_and_nulls(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("no such queue")

    monkeypatch.setattr(world.queue, "counts", broken)
    block = (await world.vitals.detailed())["inference"]
    assert set(block) == BLOCK
    assert block.pop("error") == "OSError: no such queue"
    assert set(block.values()) == {None}


async def test_without_a_model_the_service_is_degraded_and_ready(world: World) -> None:
    state = await world.vitals.readiness()
    assert (state["ready"], state["status"]) == (True, "degraded")
    assert component(state, "engine")["status"] == "degraded"
    assert (state["model_loaded"], state["sae_attached"]) == (False, False)


async def test_with_a_model_the_service_is_healthy(world: World) -> None:
    await world.loaded()
    await world.attachments.attach(await world.sae(), 1)
    state = await world.vitals.readiness()
    assert (state["ready"], state["status"]) == (True, "healthy")
    detailed = await world.vitals.detailed()
    assert detailed["model_name"] == "a"
    assert (detailed["sae_id"], detailed["sae_count"]) == ("sae_a", 1)
    assert detailed["lease"] is None


async def test_while_a_model_loads_the_service_is_degraded_and_ready(world: World) -> None:
    row = await world.model()
    gate = world.launcher.hold("load")
    resident = await world.conductor.load(row)
    await soon(gate.reached.wait())
    state = await world.vitals.readiness()
    assert (state["ready"], state["model_loaded"]) == (True, False)
    assert "loading" in component(state, "engine")["message"]
    assert (await world.vitals.detailed())["model_name"] is None
    gate.open.set()
    await soon(resident.ready)


async def test_a_closing_service_is_not_ready(world: World) -> None:
    await world.loaded()
    world.generation.is_closing = True
    state = await world.vitals.readiness()
    assert (state["ready"], state["status"]) == (False, "unhealthy")
    assert world.vitals.liveness()["status"] == "healthy"


async def test_an_unusable_database_is_not_ready_and_the_queue_block_is_still_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise OSError("password=hunter2")

    monkeypatch.setattr(world.database, "ping", broken)
    state = await world.vitals.detailed()
    assert state["status"] == "unhealthy"
    assert component(state, "database")["message"] == "not usable: OSError"
    assert state["inference"]["error"] is None
    assert not (await world.vitals.readiness())["ready"]


async def test_liveness_tells_the_version_and_a_utc_time(world: World) -> None:
    state = world.vitals.liveness()
    assert set(state) == {"status", "version", "timestamp", "uptime_seconds"}
    assert state["timestamp"].endswith("Z")
    assert datetime.fromisoformat(vitals.now()).utcoffset() is not None
