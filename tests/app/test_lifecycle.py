"""The service as a process: signals, crashes of the engine, clients that go away, a full queue."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from steerserve import demo
from tests.processes import Process, serving
from tests.resident import kill_engine
from tests.service import ANSWER_SECONDS, ONE_REPLICA, Running, add_sae, load_demo, running

MANY = {
    "model": demo.MODEL_NAME,
    "prompt": ["One day"] * 32,
    "max_tokens": 700,
    "temperature": 2.0,
}
"""A request for many choices at a high temperature, so that some choices are long."""
LONG = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1000, "temperature": 1.9}
GONE_SECONDS = 60
"""Seconds in which no process of a service that has ended may be left."""


def stop_amid_a_stream(served: Process, sent: int) -> None:
    """Send a signal while a stream runs: the stream finishes, new requests are refused, and no child is left."""
    children = served.family()
    assert children
    body = MANY | {"max_tokens": 300, "stream": True}
    with served.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        # the signal goes to the whole process group, as from a terminal
        os.killpg(served.process.pid, sent)
        with httpx2.Client(base_url=served.url, timeout=30) as other:
            while (ready := other.get("/api/health/ready")).status_code == 200:
                pass
            assert ready.status_code == 503
            assert int(ready.headers["retry-after"]) >= 1
            refused = other.post("/v1/completions", json=LONG)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            assert other.get("/api/health").status_code == 200
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    last = json.loads(rest[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] in ("stop", "length")
    assert served.wait() == 0
    assert psutil.wait_procs(children, timeout=GONE_SECONDS)[1] == []


@pytest.mark.shows("chat-parameters.23", "events.8", "formats.3")
def test_a_stop_that_waits_too_long_ends_the_stream_with_an_error_event(tmp_path: Path) -> None:
    with serving(tmp_path, graceful_shutdown_timeout=0.1) as served:
        served.load_demo()
        body = {
            "model": demo.MODEL_NAME,
            "prompt": ["One day"] * 64,
            "max_tokens": 1000,
            "temperature": 2.0,
            "stream": True,
        }
        with served.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            served.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        error = json.loads(rest[-2].removeprefix("data: "))["error"]
        assert error["code"] == "shutting_down"
        assert error["retry_after"] >= 1
        assert served.wait() == 0


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, graceful_shutdown_timeout=600) as served:
        served.load_demo()
        with served.http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as answer:
            next(answer.iter_lines())
            children = served.family() + served.engines()
            for engine in served.engines():
                engine.suspend()  # a suspended engine cannot end the stream
            served.process.send_signal(signal.SIGTERM)
            assert served.draining.wait(ANSWER_SECONDS), served.lines
            assert served.process.poll() is None
            served.process.send_signal(signal.SIGTERM)
            served.wait()
        assert psutil.wait_procs(children, timeout=GONE_SECONDS)[1] == []


def test_a_data_folder_has_one_service_and_is_free_again_after_a_kill(tmp_path: Path) -> None:
    """The next service has the registry of the killed one, and an interrupt lets its stream finish."""
    with serving(tmp_path) as served:
        model_id = served.load_demo()
        children = served.family()
        # tests/app/test_starting.py has what a second service says of this lock
        with (tmp_path / "lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        served.process.kill()
        served.wait()
        assert psutil.wait_procs(children, timeout=GONE_SECONDS)[1] == []
    with serving(tmp_path) as served:
        model = served.http.get(f"/api/models/{model_id}").json()["data"]
        assert model["status"] == "ready"
        assert served.http.post("/v1/completions", json=LONG | {"max_tokens": 1}).status_code == 200
        stop_amid_a_stream(served, signal.SIGINT)


@pytest.mark.slow
def test_idle_connections_take_no_file_that_the_service_needs(tmp_path: Path) -> None:
    """A signal lets the stream of this service finish too, and leaves no child."""
    with serving(tmp_path, open_files=256, request_headers_timeout=600) as served:
        for turn in range(2):
            with ExitStack() as stack:
                for _ in range(400):
                    with suppress(OSError):  # another idle connection is closed for this one
                        address = ("127.0.0.1", served.port)
                        stack.enter_context(socket.create_connection(address))
                assert httpx2.get(f"{served.url}/api/health").status_code == 200
                # an idle connection that came just now gives its place up a moment later
                while httpx2.get(f"{served.url}/api/profiles").status_code == 503:
                    pass
                if not turn:
                    served.load_demo()
                for name in ("a", "b"):
                    profile = {"name": f"{name}{turn}"}
                    saved = served.http.post("/api/profiles", json=profile)
                    assert saved.status_code == 201, saved.text
                answer = served.http.post("/v1/completions", json=LONG | {"max_tokens": 1})
                assert answer.status_code == 200, answer.text
                ready = served.http.get("/api/health/ready")
                assert ready.status_code == 200, ready.text
        assert len(served.http.get("/api/profiles").json()["data"]["profiles"]) == 4
        lines = "".join(served.lines)
        assert "too_few_open_files" in lines
        assert "database_fault" not in lines
        assert "Too many open files" not in lines
        stop_amid_a_stream(served, signal.SIGTERM)


# ---------------------------------------------------------------- the engine


@pytest.mark.local("a replica that ends is started again while its model stays loaded")
def test_a_killed_engine_costs_only_the_requests_in_flight(bare: Running) -> None:
    model_id = load_demo(bare)
    sae = demo.saes()[0]
    sae_id = add_sae(bare, sae)
    bare.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
    bare.data("POST", "/api/saes/steering", {"feature_idx": 1, "value": 1})
    with ThreadPoolExecutor(2) as pool:
        body = LONG | {"prompt": ["One day"] * 32, "temperature": 2.0}
        with bare.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as run:
            lines = (line for line in run.iter_lines() if line)
            next(lines)
            blocking = pool.submit(bare.http.post, "/v1/completions", json=body)
            while bare.data("GET", "/api/health/detailed")["inference"]["in_flight"] < 2:
                pass
            kill_engine(bare)
            rest = list(lines)
        error = json.loads(rest[-2].removeprefix("data: "))["error"]
        assert error["code"] == "engine_unavailable"
        assert rest[-1] == "data: [DONE]"
        answer = blocking.result()
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
    assert bare.http.get("/api/health").status_code == 200
    while (model := bare.data("GET", f"/api/models/{model_id}"))["status"] == "loaded":
        pass
    assert model["status"] == "ready"
    assert "signal 9" in model["error_message"]
    assert model["locked"] is True  # the lock stays, so no request replaces the model
    assert bare.data("GET", "/api/saes/attachment")["is_attached"] is False
    assert bare.data("GET", f"/api/saes/{sae_id}")["status"] == "cached"
    assert bare.complete("One day", max_tokens=2)["choices"]
    assert bare.data("GET", f"/api/models/{model_id}")["error_message"] is None
    # the SAE was attached and its values were set again before the request was served
    assert bare.data("GET", f"/api/saes/{sae_id}")["status"] == "attached"
    assert bare.data("GET", "/api/saes/steering") == {"enabled": True, "values": {"1": 1.0}}


# ---------------------------------------------------------------- clients that go away


def until_idle(live: Running) -> None:
    while True:
        block = live.data("GET", "/api/health/detailed")["inference"]
        if block["queue_pending"] == block["in_flight"] == 0:
            return


def raw_request(live: Running, body: dict[str, Any]) -> socket.socket:
    content = json.dumps(body).encode()
    host, port = live.url.removeprefix("http://").split(":")
    link = socket.create_connection((host, int(port)))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    link.sendall(head.encode() + content)
    return link


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with one slot and two places to wait, for all tests below."""
    room = {"max_concurrent_requests": 1, "max_pending_requests": 2}
    with running(tmp_path_factory.mktemp("narrow"), **ONE_REPLICA, **room) as live:
        load_demo(live)
        yield live


@pytest.mark.shows("retry-after.2", "general-errors.3", "overview.12", "limits.27")
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_also_while_it_waits(
    narrow: Running, is_stream: bool
) -> None:
    """While all places are taken, a request is refused with an estimate of the time until one is free."""
    narrow.complete("One day", max_tokens=1)
    body = LONG | {"prompt": ["One day"] * 64, "temperature": 2.0, "stream": is_stream}
    links = []
    for count in (1, 2, 3):
        links.append(raw_request(narrow, body))
        while narrow.data("GET", "/api/health/detailed")["inference"]["queue_pending"] < count:
            pass
    answer = narrow.http.post("/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "queue_full")
    assert error["type"] == "invalid_request_error"
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    for link in links:
        link.close()
    until_idle(narrow)
    assert narrow.complete("One day", max_tokens=2)["choices"]


def test_a_reader_that_stops_reading_does_not_keep_its_slot(narrow: Running) -> None:
    link = raw_request(narrow, LONG | {"prompt": ["One day"] * 8, "stream": True})
    assert narrow.complete("One day", max_tokens=2)["choices"]
    link.close()
    until_idle(narrow)


def test_many_clients_that_leave_leave_nothing_behind(shared: Running) -> None:
    def ended() -> int:
        """The requests whose clients left. A link may be accepted after its client has left."""
        metrics = shared.http.get("/api/health/metrics/prometheus").text
        counted = r'^steerserve_requests_total\{route="/v1/completions",status="499"\} (\d+)\.0$'
        found = re.search(counted, metrics, re.M)
        return int(found[1]) if found else 0

    before = ended()
    for _ in range(30):
        raw_request(shared, LONG | {"stream": True}).close()
    while ended() < before + 30:
        pass
    until_idle(shared)
    assert shared.service.owners.generation.active == 0


def test_a_hangup_reads_the_keys_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys"

    def status(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx2.get(f"{served.url}/v1/models", headers=headers, timeout=60).status_code

    def hang_up(text: str, event: str) -> None:
        keys.write_text(text)
        before = len(served.lines)
        served.process.send_signal(signal.SIGHUP)
        while not any(f'"{event}"' in line for line in served.lines[before:]):
            assert served.process.poll() is None

    keys.write_text("first\n")
    with serving(tmp_path / "home", api_keys_file=keys) as served:
        assert (status("first"), status("second")) == (200, 401)
        hang_up("second\nthird\n", "keys_read")
        assert (status("first"), status("second"), status("third")) == (401, 200, 200)
        # a bad file opens and closes nothing
        hang_up("\n", "keys_not_read")
        assert (status("first"), status("second")) == (401, 200)
