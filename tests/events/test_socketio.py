"""Live events: who gets the cards' numbers, and which progress reports go out."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
import socketio

from steerserve.control.health.gpus import CardReadings
from steerserve.control.models.events import DownloadError, DownloadFailure, DownloadProgress
from steerserve.control.residency.events import LoadProgress, SaeDetached
from steerserve.control.steering.events import steering_update
from steerserve.events.socketio import System, Throttle
from steerserve.nouns.circuit_sensing.form import CircuitFired
from steerserve.nouns.monitoring.form import (
    FeatureActivation,
    MonitoringActivation,
    MonitoringState,
)
from steerserve.rules.sensing.firings import (
    ContextParts,
    EdgeFiring,
    FiredFeature,
    FiringRow,
    edge_facts,
)
from tests.conftest import Start
from tests.rules.residency.test_gpus import card
from tests.service import Running
from tests.waiting import soon, until

KEYS = {
    "gpu_utilization",
    "gpu_memory_used_mb",
    "gpu_memory_total_mb",
    "gpu_temperature",
    "gpu_count",
    "gpus",
}


class Server:
    """Stands for the Socket.IO server. It keeps what was sent and to whom."""

    def __init__(self) -> None:
        self.manager = self
        self.connected = {"a", "b"}
        self.sent: asyncio.Queue[tuple[str, str, Any]] = asyncio.Queue()
        self.fails = False

    def is_connected(self, sid: str, _namespace: str) -> bool:
        return sid in self.connected

    async def emit(self, event: str, body: Any, *, to: str) -> None:
        if self.fails:
            self.fails = False
            raise OSError("gone")
        self.sent.put_nowait((event, to, body))


@pytest.fixture
def server() -> Server:
    return Server()


def system(server: Any, seconds: float = 0.001) -> System:
    return System(server, CardReadings(lambda: ([card("GPU-a", 0)], None)), seconds)


def is_sending() -> bool:
    return any(task.get_name() == "system-metrics" for task in asyncio.all_tasks())


async def test_who_joins_is_told_at_once_and_nobody_else_is(server: Server) -> None:
    asked = system(server, 3600.0)
    await asked.join("a")
    await asked.join("b")
    assert [server.sent.get_nowait()[:2] for _ in range(2)] == [
        ("system:metrics", "a"),
        ("system:metrics", "b"),
    ]
    assert server.sent.empty()
    asked.close()


async def test_reports_go_on_until_the_last_one_leaves_and_leave_no_task(server: Server) -> None:
    asked = system(server)
    await asked.join("a")
    await asked.join("b")
    for _ in range(6):
        event, _, body = await soon(server.sent.get())
        assert (event, set(body)) == ("system:metrics", KEYS)
    await asked.leave("a", "client disconnect")
    assert is_sending()
    await asked.leave("b")
    await until(lambda: not is_sending())
    await asked.join("a")
    await soon(server.sent.get())
    assert is_sending()
    asked.close()
    await until(lambda: not is_sending())


async def test_a_report_that_cannot_be_sent_does_not_end_them(server: Server) -> None:
    asked = system(server)
    await asked.join("a")
    await soon(server.sent.get())
    server.fails = True
    await soon(server.sent.get())
    await soon(server.sent.get())
    assert not server.fails
    asked.close()


async def test_who_left_before_joining_starts_nothing(server: Server) -> None:
    asked = system(server)
    await asked.join("long gone")
    assert not is_sending()
    assert server.sent.empty()


async def test_leaving_without_having_joined_is_nothing(server: Server) -> None:
    asked = system(server, 3600.0)
    await asked.leave("a")
    await asked.join("b")
    await asked.leave("a")
    assert is_sending()
    asked.close()


@pytest.mark.shows("events.1", "events.5", "overview.5", "overview.15")
async def test_a_client_joins_over_the_socket_and_others_are_not_told(shared: Running) -> None:
    shared.service.live.system.seconds = 0.01
    joined, other = socketio.AsyncSimpleClient(), socketio.AsyncSimpleClient()
    await joined.connect(shared.url, transports=["websocket"])
    await other.connect(shared.url, transports=["websocket"])
    try:
        await joined.emit("system:join")
        for _ in range(3):
            name, body = await joined.receive(timeout=10)
            assert (name, set(body)) == ("system:metrics", KEYS)
            assert body["gpu_count"] == len(body["gpus"])
        with pytest.raises(socketio.exceptions.TimeoutError):
            await other.receive(timeout=0.1)
    finally:
        await joined.disconnect()
        await other.disconnect()
    await until(lambda: shared.service.live.system._sending is None)


async def test_a_stop_ends_the_task_that_looks_after_the_clients(start: Start) -> None:
    client = socketio.AsyncSimpleClient()
    with start() as live:
        await client.connect(live.url)
        sessions = live.service.live.server.eio
        looking = sessions.service_task_handle
        assert not looking.done()
        await client.disconnect()
    assert looking.done()
    assert sessions.service_task_handle is None


# ---------------------------------------------------------------------- progress


def progress(model_id: int, percent: float) -> DownloadProgress:
    return DownloadProgress(model_id, percent, 1, 2)


def test_progress_of_each_model_passes_first_four_times_a_second_and_last() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    passed = []
    for step in range(100):
        now[0] = step / 100
        if throttle.passes(progress(1, step)):
            passed.append(step)
        # the reports of another model, or of other work on the same model, are limited separately
        assert throttle.passes(progress(2, 0.0)) is throttle.passes(
            LoadProgress(1, "loading_weights", 1.0)
        )
    assert passed == [0, 25, 50, 75]
    assert throttle.passes(progress(1, 100.0))


def test_every_other_event_passes_and_a_new_download_begins_anew() -> None:
    throttle = Throttle(lambda: 0.0)
    assert throttle.passes(progress(1, 1.0))
    assert not throttle.passes(progress(1, 2.0))
    for _ in range(3):
        assert throttle.passes(DownloadError(1, DownloadFailure("DOWNLOAD_FAILED", "no", {})))
        assert throttle.passes(SaeDetached("sae_a"))
    assert throttle.passes(progress(1, 0.0))


def seen(number: int) -> MonitoringActivation:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return MonitoringActivation(at, f"cmpl-{number}", 7, [FeatureActivation(3, 2.5)])


@pytest.mark.shows("events.4")
def test_what_monitoring_saw_passes_at_most_ten_times_a_second_and_hinders_nothing_else() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    passed = []
    for step in range(100):
        now[0] = step / 64
        if throttle.passes(seen(step)):
            passed.append(step)
        assert throttle.passes(MonitoringState(True, []))
    assert passed == list(range(0, 100, 7))


def test_what_monitoring_saw_has_keys_in_snake_case_only() -> None:
    event = seen(1)
    assert event.wire == "monitoring:activation"
    assert event.payload() == {
        "timestamp": "2026-01-01T00:00:00Z",
        "request_id": "cmpl-1",
        "position": 7,
        "activations": [{"feature_index": 3, "activation": 2.5}],
    }


def test_the_state_of_monitoring_has_keys_for_old_clients_too() -> None:
    event = MonitoringState(True, [3, 5])
    assert event.wire == "monitoring:state"
    assert event.payload() == {
        "enabled": True,
        "monitored_features": [3, 5],
        "monitoredFeatures": [3, 5],
    }


@pytest.mark.shows("events.6", "events.7")
def test_a_firing_of_a_circuit_is_told_without_the_text_around_it() -> None:
    firing = EdgeFiring(
        "cmpl-1",
        0,
        "decode",
        "rain to umbrella",
        False,
        context_text="it may rain today",
        context_token_ids=(1, 2),
        context_parts=ContextParts("it may", " rain", " today"),
        edge_key="1:70>2:31",
        up=FiredFeature(1, 70, 4, 2.5),
        down=FiredFeature(2, 31, 6, 1.5),
        edge_rung=2,
        edge_rung_language="causally validated (edge)",
    )
    row = FiringRow(3, "circ_1", datetime(2026, 1, 1, tzinfo=UTC), firing)
    event = CircuitFired(edge_facts(row))
    assert event.wire == "circuit:sensing:event"
    body = event.payload()
    assert (body["id"], body["circuit_id"], body["token_lag"]) == (3, "circ_1", 2)
    assert "may" not in str(body)
    assert not [key for key in body if "context" in key]


def test_steering_of_other_saes_is_told_where_there_is_some() -> None:
    event = steering_update(True, {"1": 2.0})
    assert (event.wire, event.payload()) == (
        "steering:update",
        {"enabled": True, "values": {"1": 2.0}, "activeCount": 1, "active_count": 1},
    )
    others = {"sae_b@2": {"5": 3.0, "6": 1.0}}
    body = steering_update(True, {"1": 2.0}, others).payload()
    assert (body["values"], body["others"], body["activeCount"]) == ({"1": 2.0}, others, 3)
