"""Health, readiness, and the queue block that is always there."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from steerserve.control.health import health as vitals
from steerserve.control.residency.occupant import Occupant
from steerserve.database.faults import DatabaseFault
from steerserve.messages import GraphsChanged
from steerserve.rules.inference.stepping import CudaGraphs, Decoding
from steerserve.rules.residency.gpus import Card
from tests.control.conftest import Make
from tests.doubles import World, breaker
from tests.refusals import refusal_of
from tests.rules.residency.test_gpus import card
from tests.scripted_answers import FACTS
from tests.waiting import plain, soon

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


@pytest.mark.shows(
    "queue-block.4 queue-block.5 queue-block.6 queue-block.7 queue-block.8 queue-block.9",
    "queue-block.10 queue-block.12",
)
async def test_the_queue_block_counts_what_waits_and_what_runs(make: Make) -> None:
    async with make(max_concurrent_requests=3, max_pending_requests=5) as world:
        await world.loaded()
        asked, stream = await world.in_flight()
        block = plain(await world.vitals.detailed())["inference"]
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


@pytest.mark.shows("queue-block.1", "queue-block.2", "queue-block.3", "queue-block.12")
async def test_a_queue_that_cannot_be_read_leaves_the_block_with_its_error_and_nulls(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("no such queue")

    monkeypatch.setattr(world.queue, "counts", broken)
    block = plain(await world.vitals.detailed())["inference"]
    assert set(block) == BLOCK
    assert block.pop("error") == "OSError: no such queue"
    assert set(block.values()) == {None}


@pytest.mark.shows("queue-block.4", "queue-block.5", "queue-block.8", "queue-block.9", "health.5")
@pytest.mark.parametrize(
    ("case", "serves"),
    [("none", "serial"), ("checkpoint", "cbm"), ("gguf", "serial"), ("embedding", "serial")],
)
async def test_both_routes_tell_the_backend_that_serves_the_resident_model(
    make: Make, case: str, serves: str
) -> None:
    async with make(enable_continuous_batching=True) as world:
        world.launcher.facts = msgspec.structs.replace(FACTS, is_embedding_only=case == "embedding")
        if case != "none":
            await world.loaded()
        if case == "gguf":
            assert isinstance(world.resident, Occupant)
            # the digest of the model is written into the row meanwhile
            await soon(world.contents.until_known(world.resident.row))
            world.resident.row = replace(world.resident.row, engine="gguf")
        backend = world.vitals.backend()
        block = plain(await world.vitals.detailed())["inference"]
        is_batching = serves == "cbm"
        assert backend.backend == serves
        left_out = (backend.queue is UNSET, backend.cbm_config is UNSET)
        assert left_out == (is_batching, not is_batching)
        assert backend.capabilities.per_request_sampling_params is not is_batching
        assert "response_format is refused" in backend.limitations
        assert block["backend"] == ("cbm" if is_batching else "queue")
        assert (block["cbm_enabled"], block["cbm_running"]) == (True, is_batching)
        counted = (None, None) if is_batching else (0, 0)
        assert (block["in_flight"], block["queue_waiting"]) == counted


async def test_both_routes_are_serial_while_what_is_observed_takes_every_request_to_a_slot(
    make: Make,
) -> None:
    async with make(enable_continuous_batching=True, cbm_force_serial_monitoring=True) as world:
        await world.attached()

        async def told() -> tuple[str, str]:
            block = plain(await world.vitals.detailed())["inference"]
            return world.vitals.backend().backend, block["backend"]

        assert await told() == ("cbm", "cbm")
        await world.monitoring.configure()
        assert await told() == ("serial", "queue")


async def test_without_a_model_the_service_is_degraded_and_ready(world: World) -> None:
    state = plain(await world.vitals.readiness())
    assert (state["ready"], state["status"]) == (True, "degraded")
    assert component(state, "engine")["status"] == "degraded"
    assert (state["model_loaded"], state["sae_attached"]) == (False, False)


@pytest.mark.shows("queue-block.16")
async def test_with_a_model_the_service_is_healthy(world: World) -> None:
    await world.attached()
    state = plain(await world.vitals.readiness())
    assert (state["ready"], state["status"]) == (True, "healthy")
    detailed = plain(await world.vitals.detailed())
    assert detailed["model_name"] == "a"
    assert (detailed["sae_id"], detailed["sae_count"]) == ("sae_a", 1)
    assert detailed["lease"] is None


async def test_the_last_change_of_the_way_in_which_decode_passes_are_run_is_shown(
    world: World,
) -> None:
    await world.loaded()
    assert world.vitals.backend().cuda_graphs == FACTS.cuda_graphs
    changed = CudaGraphs(Decoding.STATIC, "passes are not recorded any more")
    world.launcher.engine.tell(graphs=GraphsChanged(changed))
    assert world.vitals.backend().cuda_graphs == changed


async def test_while_a_model_loads_the_service_is_degraded_and_ready(world: World) -> None:
    row = await world.model()
    resident, gate = await world.reaching("load", world.conductor.load(row))
    state = plain(await world.vitals.readiness())
    assert (state["ready"], state["model_loaded"]) == (True, False)
    assert "loading" in component(state, "engine")["message"]
    assert plain(await world.vitals.detailed())["model_name"] is None
    gate.open.set()
    await soon(resident.ready)


async def test_a_closing_service_is_not_ready(world: World) -> None:
    await world.loaded()
    world.generation.is_closing = True
    state = plain(await world.vitals.readiness())
    assert (state["ready"], state["status"]) == (False, "unhealthy")
    assert plain(world.vitals.liveness())["status"] == "healthy"


@pytest.mark.shows("queue-block.1")
async def test_an_unusable_database_is_not_ready_and_the_queue_block_is_still_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone() -> DatabaseFault:
        return DatabaseFault("it does not answer")

    monkeypatch.setattr(world.database, "fault", gone)
    state = plain(await world.vitals.detailed())
    assert state["status"] == "unhealthy"
    assert component(state, "database")["message"] == "not usable: it does not answer"
    assert state["inference"]["error"] is None
    assert not plain(await world.vitals.readiness())["ready"]


async def test_liveness_tells_the_version_and_a_utc_time(world: World) -> None:
    state = plain(world.vitals.liveness())
    assert set(state) == {"status", "version", "timestamp", "uptime_seconds"}
    assert state["timestamp"].endswith("Z")
    assert datetime.fromisoformat(state["timestamp"]).utcoffset() == timedelta(0)


async def test_an_open_breaker_is_shown_and_degrades_without_taking_the_service_out(
    world: World,
) -> None:
    await world.loaded()
    world.breakers.states = [breaker()]
    hub = component(plain(await world.vitals.readiness()), "hub")
    assert hub["status"] == "healthy"
    # health knows only of the questions that were asked, and says so
    assert "steerserve doctor" in hub["message"]
    world.breakers.states = [breaker(state="open", is_open=True, failure_count=5, trips=1)]
    state = plain(await world.vitals.readiness())
    assert (state["ready"], state["status"]) == (True, "degraded")
    assert "huggingface" in component(state, "hub")["message"]
    detailed = plain(await world.vitals.detailed())
    assert (
        detailed["circuit_breakers"]
        == plain(world.breakers.states)
        == plain(world.vitals.breakers())
    )


async def test_a_queue_that_refuses_degrades_health_until_it_has_room(world: World) -> None:
    await world.loaded()
    assert plain(await world.vitals.readiness())["status"] == "healthy"
    world.metrics.full_queue.note()
    state = plain(await world.vitals.readiness())
    assert (state["ready"], state["status"]) == (True, "degraded")
    assert component(state, "queue")["status"] == "degraded"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"failure_count": 2}, "healthy"),
        ({"failure_count": 3}, "degraded"),
        ({"state": "half_open", "failure_count": 1, "trips": 1}, "degraded"),
    ],
)
async def test_a_hub_that_failed_three_times_is_not_healthy(
    world: World, changes: dict[str, Any], status: str
) -> None:
    world.breakers.states = [breaker(**changes)]
    assert component(plain(await world.vitals.readiness()), "hub")["status"] == status


async def test_a_breaker_is_reset_by_its_name(world: World) -> None:
    world.breakers.states = [breaker(state="open", is_open=True, failure_count=5)]
    assert world.vitals.reset("huggingface").state == "closed"
    assert component(plain(await world.vitals.readiness()), "hub")["status"] == "healthy"
    assert refusal_of(world.vitals.reset, "nobody").code == "BREAKER_NOT_FOUND"


async def test_a_block_that_cannot_be_built_is_null_and_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("token=hf_secret")

    async def broken_read() -> None:
        broken()

    await world.loaded()
    monkeypatch.setattr(world.breakers, "breakers", broken)
    monkeypatch.setattr(world.conductor.leases, "status", broken)
    monkeypatch.setattr(world.serving, "profile", broken_read)
    detailed = plain(await world.vitals.detailed())
    failed = ("circuit_breakers", "active_profile", "lease")
    assert detailed["errors"] == dict.fromkeys(failed, "OSError")
    assert {detailed[name] for name in failed} == {None}
    assert detailed["model_name"] == "a"
    assert detailed["inference"]["error"] is None
    assert plain(await world.vitals.readiness())["ready"]


async def test_nothing_fails_while_every_block_can_be_built(world: World) -> None:
    detailed = plain(await world.vitals.detailed())
    assert detailed["errors"] == {}
    assert detailed["model_placement"] is None
    assert detailed["circuit_breakers"] == []


@pytest.mark.shows("health.2")
@pytest.mark.parametrize(
    ("cards", "reason", "status", "said"),
    [
        ([], "no driver", "healthy", "the processor serves"),
        ([card("GPU-a", 0)], None, "healthy", "Card"),
        ([card("GPU-a", 0)], "card 1 cannot be read: lost", "degraded", "card 1"),
    ],
)
async def test_the_cards_are_a_component(
    world: World, cards: list[Card], reason: str | None, status: str, said: str
) -> None:
    await world.loaded()
    world.driver.cards, world.driver.reason = cards, reason
    state = plain(await world.vitals.readiness())
    assert state["status"] == component(state, "gpu")["status"] == status
    assert said in component(state, "gpu")["message"]


@pytest.mark.shows("queue-block.17")
async def test_the_detailed_body_never_asks_the_driver(world: World) -> None:
    state = plain(await world.vitals.detailed())
    assert world.driver.readings == 0
    assert component(state, "gpu")["message"] == "the cards have not been read yet"
    await world.vitals.readiness()
    assert world.driver.readings == 1
    state = plain(await world.vitals.detailed())
    assert world.driver.readings == 1
    assert "the processor serves" in component(state, "gpu")["message"]


async def test_a_driver_that_hangs_degrades_and_readiness_still_answers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vitals, "CARDS_SECONDS", 0.01)
    held = threading.Event()
    monkeypatch.setattr(world.cards, "_read", lambda: (held.wait() and [], None))
    await world.loaded()
    state = plain(await world.vitals.readiness())
    assert (state["ready"], state["status"]) == (True, "degraded")
    assert "has not answered" in component(state, "gpu")["message"]
    held.set()
    await soon(world.cards.begin_reading())


@pytest.mark.shows("health.2")
async def test_an_engine_that_cannot_be_started_is_not_ready_unless_one_serves(
    world: World,
) -> None:
    world.launcher.reason = "no engine process can be started: OSError"
    state = plain(await world.vitals.readiness())
    assert (state["ready"], state["status"]) == (False, "unhealthy")
    assert component(state, "engine")["message"] == world.launcher.reason
    await world.loaded()
    assert plain(await world.vitals.readiness())["status"] == "healthy"
