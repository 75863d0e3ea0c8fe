"""A running service for tests: the real application behind a real socket, with a data folder of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import format_stack
from typing import Any

import httpx2
import socketio

from steerserve import demo
from steerserve.app.service import Service
from steerserve.app.wiring import surroundings
from steerserve.control.residency.cluster import EngineCluster
from steerserve.http import protocol as protocols
from steerserve.http.accepting import Server
from steerserve.http.connections import Connections
from steerserve.settings import Settings
from tests.blank import DATABASE, lay
from tests.described import Held

JSON = {"content-type": "application/json"}
EVENTS_HELD = 1000
"""The most live events of a service that are held to the description of the API."""
ONE_REPLICA: dict[str, Any] = {"engine_replicas": 1, "engine_min_replicas": 1}
"""Settings for tests that count slots: on a cluster, each replica has MAX_CONCURRENT_REQUESTS slots of its own."""
ANSWER_SECONDS = 300.0
"""Seconds for an answer. Over a cluster, a load on a busy machine takes minutes."""
STOP_SECONDS = 60
"""Seconds in which a service must have stopped."""
POLL_SECONDS = 0.01


class Polls:
    """A hook for clients. A test that asks for the same again waits for something that needs the processor, and leaves it
    for a moment."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None

    def __call__(self, request: httpx2.Request) -> None:
        asked = (request.method, str(request.url))
        if asked == self._last and request.method == "GET":
            time.sleep(POLL_SECONDS)
        self._last = asked


class Running:
    """A running service on a loopback port, with a client for it. The client holds every answer to the
    description of the API."""

    def __init__(self, service: Service, url: str, home: Path) -> None:
        self.service = service
        self.url = url
        self.home = home
        self.held = Held(service.api.openapi)
        self._events = _emitted(service.live.server)
        self.http = httpx2.Client(
            base_url=url,
            timeout=ANSWER_SECONDS,
            event_hooks={"request": [Polls()], "response": [self.held]},
        )

    def check_events(self) -> None:
        """The live events that were sent, held to the description of the API."""
        description = self.held.description if self._events else None
        for name, payload in self._events:
            assert description is not None
            sent = json.loads(json.dumps(payload))
            faults = description.component(f"LiveEvents/properties/{name}", sent)
            assert not faults, f"{name} has {payload}: {faults}"

    # ------------------------------------------------------------- shorthands that fail loudly

    def data(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        """The `data` of an `/api` answer, which must be a success."""
        answer = self.http.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        whole = answer.json()
        assert set(whole) == {"success", "data", "error"}
        assert whole["success"] is True
        assert whole["error"] is None
        return whole["data"]

    def error(self, method: str, path: str, body: Any = None) -> tuple[int, str, dict[str, Any]]:
        """The status, code and details of an `/api` answer, which must be a refusal."""
        answer = self.http.request(method, path, json=body)
        whole = answer.json()
        assert set(whole) == {"success", "data", "error"}
        assert whole["success"] is False
        assert whole["data"] is None
        assert answer.status_code != 503 or int(answer.headers["retry-after"]) >= 1
        error = whole["error"]
        return answer.status_code, error["code"], error["details"]

    def v1_error(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        """The status and the error object of a `/v1` answer, which must be a refusal."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.http.post(path, content=content, headers=JSON | headers)
        assert answer.status_code >= 400, answer.text
        assert answer.status_code != 503 or int(answer.headers["retry-after"]) >= 1
        error = answer.json()["error"]
        assert {"message", "type", "code"} <= set(error)
        return answer.status_code, error

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """A `/v1` answer with its headers, which must be a success."""
        answer = self.http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        body = {"model": demo.MODEL_NAME, "prompt": prompt, **fields}
        return self.post("/v1/completions", body).json()

    def chat(self, text: str, **fields: Any) -> dict[str, Any]:
        body = {"model": demo.MODEL_NAME, "messages": [{"role": "user", "content": text}], **fields}
        return self.post("/v1/chat/completions", body).json()

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream as objects. The last one is the string `[DONE]`."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            return [_event(line) for line in answer.iter_lines() if line and line[0] != ":"]


def _emitted(server: socketio.AsyncServer) -> deque[tuple[str, Any]]:
    """The last live events that a server sends, as name and payload."""
    sent: deque[tuple[str, Any]] = deque(maxlen=EVENTS_HELD)
    emit = server.emit

    async def noted(name: str, payload: Any, **fields: Any) -> None:
        sent.append((name, payload))
        await emit(name, payload, **fields)

    server.emit = noted
    return sent


def _event(line: str) -> Any:
    assert line.startswith("data: "), line
    text = line.removeprefix("data: ")
    return text if text == "[DONE]" else json.loads(text)


@contextmanager
def running(home: Path, cluster: EngineCluster | None = None, **settings: Any) -> Iterator[Running]:
    """A service with the data folder `home`, which listens until the block ends. With a cluster, its engines serve."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    made = Settings(_env_file=None, steerserve_home=home, port=port, **settings)  # type: ignore[call-arg]
    if "database_url" not in settings:
        lay(home / DATABASE)
    service = Service(made, surroundings(made, cluster))
    connections = Connections(made)
    server = Server(protocols.configuration(service, connections), connections)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    started = _Started(server)
    thread.start()
    started.wait()
    live = Running(service, f"http://127.0.0.1:{port}", home)
    try:
        yield live
    finally:
        live.http.close()
        server.should_exit = True
        thread.join(STOP_SECONDS)
        listening.close()
        assert not thread.is_alive(), f"the service did not stop\n{started.still_running()}"
    live.check_events()


class _Started:
    """Waits until a server has started, and knows its event loop."""

    def __init__(self, server: Server) -> None:
        self._event = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        startup = server.startup

        async def announced(sockets: Any = None) -> None:
            self._loop = asyncio.get_running_loop()
            await startup(sockets)
            self._event.set()

        server.startup = announced  # type: ignore[method-assign]

    def wait(self) -> None:
        assert self._event.wait(120), "the service did not start"

    def still_running(self) -> str:
        """The tasks of the event loop, and what each thread does."""
        tasks = [repr(task) for task in asyncio.all_tasks(self._loop)] if self._loop else []
        stacks = ["".join(format_stack(frame)) for frame in sys._current_frames().values()]
        return "\n".join([*tasks, *stacks])


def add_demo(live: Running) -> int:
    """Register the demo model, and return its id."""
    return add_model(live, demo.MODEL_DIR, demo.MODEL_NAME)


def add_model(live: Running, folder: Path, name: str | None = None, **fields: Any) -> int:
    """Register a model folder, and return its id."""
    body = {"source": "local", "local_path": str(folder), "custom_name": name, **fields}
    return int(live.data("POST", "/api/models", body, 202)["id"])


def load_demo(live: Running) -> int:
    """Register and load the demo model, and return its id."""
    model_id = add_demo(live)
    live.data("POST", f"/api/models/{model_id}/load?wait=true")
    return model_id


def add_sae(live: Running, sae: demo.DemoSae | Path) -> str:
    """Register a demo SAE or an SAE at a path, and return its id."""
    body = {"local_path": str(sae if isinstance(sae, Path) else sae.path)}
    return str(live.data("POST", "/api/saes/download", body, 202)["sae_id"])
