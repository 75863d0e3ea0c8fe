"""The replicas of the loaded model through HTTP, on engines that a test directs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from steerserve.app.service import Service
from steerserve.app.wiring import surroundings
from steerserve.rules.residency.replicas import ReplicaState
from steerserve.settings import Settings
from tests.blank import DATABASE, lay
from tests.described import Held
from tests.doubles import write_checkpoint
from tests.scripted_engine import Launcher, ScriptedEngine
from tests.waiting import soon

pytestmark = pytest.mark.local("starts doubles of engines with replicas of their own")


class Replicated:
    """A service whose engines are doubles, with a client for it."""

    def __init__(self, service: Service, launcher: Launcher, client: httpx2.AsyncClient) -> None:
        self.service = service
        self.launcher = launcher
        self.client = client
        self.emitted: list[tuple[str, Any]] = []
        service.live.server.emit = self._emit

    async def _emit(self, name: str, payload: Any, **_: Any) -> None:
        self.emitted.append((name, payload))

    @property
    def engine(self) -> ScriptedEngine:
        return self.launcher.engine

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status of an answer, and its data or the code of its error."""
        answer = await soon(self.client.request(method, path, json=body))
        whole = answer.json()
        return answer.status_code, whole["data"] if whole["success"] else whole["error"]["code"]

    async def data(self, method: str, path: str, body: Any = None) -> Any:
        status, data = await self.call(method, path, body)
        assert status < 300, data
        return data


@asynccontextmanager
async def replicated(home: Path, count: int, **settings: Any) -> AsyncIterator[Replicated]:
    """A service with one loaded model of so many replicas; with 0, one engine process serves."""
    data = home / "data"
    data.mkdir()
    made = Settings(_env_file=None, steerserve_home=data, **settings)  # type: ignore[call-arg]
    lay(data / DATABASE)
    launcher: Any = Launcher()
    launcher.replicas = count
    service = Service(made, replace(surroundings(made), launcher=launcher))
    held = Held(service.api.openapi)

    async def check(answer: httpx2.Response) -> None:
        await answer.aread()
        held(answer)

    async with (
        service.api.router.lifespan_context(service.api),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(service),
            base_url="http://127.0.0.1",
            event_hooks={"response": [check]},
        ) as client,
    ):
        live = Replicated(service, launcher, client)
        folder = str(write_checkpoint(home / "model"))
        body = {"source": "local", "local_path": folder, "custom_name": "a"}
        await live.data("POST", "/api/models", body)
        await live.data("POST", "/api/models/1/load?wait=true")
        yield live
        for name, payload in live.emitted:
            faults = held.description.component(f"LiveEvents/properties/{name}", payload)
            assert not faults, (name, payload, faults)


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Replicated]:
    async with replicated(tmp_path, 3, max_concurrent_requests=2) as live:
        yield live


async def test_with_one_process_replicas_are_null_and_their_routes_refuse(tmp_path: Path) -> None:
    async with replicated(tmp_path, 0) as live:
        refused = (409, "REPLICAS_UNAVAILABLE")
        base = "/api/models/1/replicas"
        assert await live.call("GET", base) == refused
        assert await live.call("PUT", base, {"count": 2}) == refused
        assert await live.call("POST", f"{base}/replica-1/drain") == refused
        assert await live.call("POST", f"{base}/replica-1/replace") == refused
        assert (await live.data("GET", "/api/models/1"))["replicas"] is None
        detailed = await live.data("GET", "/api/health/detailed")
        assert detailed["replicas"] is None
        assert "replicas" not in {part["name"] for part in detailed["components"]}
        assert (await live.data("GET", "/api/health/ready"))["replicas"] is None
        text = (await live.client.get("/api/health/metrics/prometheus")).text
        assert "steerserve_replica_serving{" not in text
        assert "model:replica" not in dict(live.emitted)


async def test_replicas_are_added_and_drained_while_the_model_serves(three: Replicated) -> None:
    now = await three.data("GET", "/api/models/1/replicas")
    assert (now["wanted"], now["serving"], now["strength"]) == (3, 3, "whole")
    status, grown = await three.call("PUT", "/api/models/1/replicas", {"count": 4})
    assert (status, grown["wanted"], grown["serving"]) == (202, 4, 3)
    states = [replica["state"] for replica in grown["replicas"]]
    assert states == ["serving", "serving", "serving", "starting"]
    inference = (await three.data("GET", "/api/health/detailed"))["inference"]
    assert inference["queue_max_concurrent"] == 6
    three.engine.become("replica-4", ReplicaState.SERVING)
    inference = (await three.data("GET", "/api/health/detailed"))["inference"]
    assert inference["queue_max_concurrent"] == 8
    status, drained = await three.call("POST", "/api/models/1/replicas/replica-2/drain")
    assert (status, drained["wanted"], drained["serving"]) == (202, 3, 3)
    three.engine.become("replica-2", ReplicaState.ENDED)
    record = await three.data("GET", "/api/models/1")
    assert [r["name"] for r in record["replicas"]["replicas"]] == [
        "replica-1",
        "replica-3",
        "replica-4",
    ]
    assert record["status"] == "loaded"
    status, replaced = await three.call("POST", "/api/models/1/replicas/replica-1/replace")
    assert (status, replaced["wanted"]) == (202, 3)
    told = [payload for name, payload in three.emitted if name == "model:replica"]
    assert [(e["replica"]["name"], e["replica"]["state"], e["serving"]) for e in told[-5:]] == [
        ("replica-4", "starting", 3),
        ("replica-4", "serving", 4),
        ("replica-2", "draining", 3),
        ("replica-2", "ended", 3),
        ("replica-1", "starting", 2),
    ]


async def test_a_lost_replica_degrades_readiness_with_the_figures(three: Replicated) -> None:
    await three.data("POST", "/api/models/1/lock")
    ready = await three.data("GET", "/api/health/ready")
    assert ready["replicas"] == {"wanted": 3, "serving": 3, "least": 1, "strength": "whole"}
    three.engine.become("replica-2", ReplicaState.LOST, reason="its node went away")
    ready = await three.data("GET", "/api/health/ready")
    (part,) = [part for part in ready["components"] if part["name"] == "replicas"]
    assert (ready["ready"], ready["status"], part["status"]) == (True, "degraded", "degraded")
    assert part["message"] == "2 of 3 replicas serve; replica-2 is lost: its node went away"
    assert ready["replicas"] == {"wanted": 3, "serving": 2, "least": 1, "strength": "degraded"}
    assert (await three.data("GET", "/api/models/1"))["locked"] is True
    for name in ("replica-1", "replica-3"):
        three.engine.become(name, ReplicaState.STALLED)
    answer = await three.client.get("/api/health/ready")
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert answer.json()["error"]["details"]["replicas"]["strength"] == "none"
    assert (await three.client.get("/api/health")).status_code == 200
    three.engine.become("replica-1", ReplicaState.SERVING)
    assert (await three.data("GET", "/api/health/ready"))["ready"] is True


async def test_a_load_degrades_readiness_as_with_one_process(three: Replicated) -> None:
    await three.data("POST", "/api/models/1/unload")
    held = three.launcher.hold("load")
    await three.data("POST", "/api/models/1/load")
    await soon(held.reached.wait())
    ready = await three.data("GET", "/api/health/ready")
    assert (ready["ready"], ready["status"], ready["model_loaded"]) == (True, "degraded", False)
    assert ready["replicas"] == {"wanted": 3, "serving": 0, "least": 1, "strength": "none"}
    (part,) = [part for part in ready["components"] if part["name"] == "replicas"]
    assert part["message"].startswith("0 of 3 replicas serve; replica-1 is starting")
    held.open.set()
    while not ready["model_loaded"]:
        ready = await three.data("GET", "/api/health/ready")
    assert (ready["status"], ready["replicas"]["serving"]) == ("healthy", 3)


async def test_metrics_have_every_replica_by_its_name_and_node(three: Replicated) -> None:
    three.engine.become(
        "replica-2", ReplicaState.LOST, reason="killed", restarts=4, epoch=6, requests=0
    )
    three.engine.become("replica-1", ReplicaState.SERVING, requests=5, epoch=7)
    text = (await three.client.get("/api/health/metrics/prometheus")).text
    for line in (
        'steerserve_replicas{state="serving"} 2.0',
        'steerserve_replicas{state="lost"} 1.0',
        'steerserve_replicas{state="starting"} 0.0',
        'steerserve_replica_serving{node="node-1",replica="replica-1"} 1.0',
        'steerserve_replica_serving{node="node-1",replica="replica-2"} 0.0',
        'steerserve_replica_requests{node="node-1",replica="replica-1"} 5.0',
        'steerserve_replica_epoch{node="node-1",replica="replica-1"} 7.0',
        'steerserve_replica_restarts{node="node-1",replica="replica-2"} 4.0',
    ):
        assert line in text, line
    three.engine.become("replica-2", ReplicaState.ENDED)
    text = (await three.client.get("/api/health/metrics/prometheus")).text
    assert 'replica="replica-2"' not in text


@pytest.mark.parametrize("body", [{}, {"count": 0}, {"count": 65}, {"count": "2"}, {"number": 2}])
async def test_a_count_that_is_no_count_is_refused_and_changes_nothing(
    three: Replicated, body: dict[str, Any]
) -> None:
    assert await three.call("PUT", "/api/models/1/replicas", body) == (422, "VALIDATION_ERROR")
    assert (await three.data("GET", "/api/models/1/replicas"))["wanted"] == 3


async def test_unknown_models_replicas_and_unloaded_models_are_refused(three: Replicated) -> None:
    assert await three.call("PUT", "/api/models/9/replicas", {"count": 2}) == (
        404,
        "MODEL_NOT_FOUND",
    )
    for change in ("drain", "replace"):
        path = f"/api/models/1/replicas/replica-9/{change}"
        assert await three.call("POST", path) == (404, "REPLICA_NOT_FOUND")
    await three.data("POST", "/api/models/1/unload")
    assert (await three.data("GET", "/api/models/1"))["replicas"] is None
    for method, path, body in (
        ("GET", "/api/models/1/replicas", None),
        ("PUT", "/api/models/1/replicas", {"count": 2}),
        ("POST", "/api/models/1/replicas/replica-1/drain", None),
    ):
        assert await three.call(method, path, body) == (400, "MODEL_NOT_LOADED")
