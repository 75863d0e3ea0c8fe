"""A llama.cpp engine whose decoding stands still while its HTTP server answers, seen over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from steerserve.engines.gguf import client as gguf_client
from steerserve.engines.gguf import process as llama_process
from steerserve.engines.gguf.client import GgufEngine
from steerserve.rules.residency import heartbeat
from steerserve.rules.residency.heartbeat import Activity
from tests import gguf, resident
from tests.conftest import Start
from tests.engines import held_llama
from tests.service import Running, add_model
from tests.test_stalls import readiness, until

pytestmark = pytest.mark.local("GGUF models are served by one engine of this machine")

LONG: dict[str, Any] = {
    "model": "held:F32",
    "prompt": "one",
    "max_tokens": 8000,
    "temperature": 0,
    "stream": True,
}
PATIENCE_SECONDS = 0.5
HEALTH_SECONDS = 0.2
BOUND_SECONDS = 3.0
"""Long enough for several attempts to hold the engine (see `held`)."""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a model that writes for long; the engine can be held, and its patience is short."""
    monkeypatch.setattr(llama_process, "MODULE", held_llama.MODULE)
    monkeypatch.setattr(gguf_client, "SIGN_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "PATIENCE", dict.fromkeys(heartbeat.PATIENCE, PATIENCE_SECONDS))
    monkeypatch.setattr(heartbeat, "LOOK_SECONDS", 0.1)
    path = tmp_path / "held-F32.gguf"
    # the model of this seed does not write an end within 3,000 tokens
    return gguf.write(path, "F32", kind="random", context=8192, layers=2, seed=1)


def engine_of(live: Running) -> GgufEngine:
    engine = resident.engine_of(live)
    assert isinstance(engine, GgufEngine)
    return engine


def answers(engine: GgufEngine) -> bool:
    """Whether the server of the engine answers that it is healthy."""
    assert engine._opened is not None
    with suppress(httpx2.TimeoutException):
        url = engine._opened.server._http.base_url.join("/health")
        return httpx2.get(url, timeout=HEALTH_SECONDS).status_code == 200
    return False


@contextmanager
def held(live: Running) -> Iterator[Callable[[], None]]:
    """Hold the thread of the engine that decodes; the function lets the thread go on.

    A thread that is held within a lock of the memory allocator would hold the HTTP threads too, so it is held again.
    """
    engine = engine_of(live)
    assert engine.pid is not None
    pid, thread = engine.pid, held_llama.decoder(engine.pid)
    held_llama.hold(pid, thread)
    while not answers(engine):
        held_llama.release(pid, thread)
        held_llama.hold(pid, thread)
    yield lambda: held_llama.release(pid, thread)


def test_decoding_that_stands_still_is_told_while_the_server_of_the_engine_answers(
    start: Start, model: Path
) -> None:
    with start(graceful_unload_timeout=600) as live, ThreadPoolExecutor(1) as pool:
        model_id = add_model(live, model)
        with live.http.stream("POST", "/v1/completions", json=LONG) as run:
            lines = (line for line in run.iter_lines() if line)
            next(lines)
            with held(live) as release:
                # requests that reach the standing engine are no heartbeats
                asked = pool.submit(
                    live.post, "/v1/completions", LONG | {"max_tokens": 1, "stream": False}
                )
                until(lambda: readiness(live)[0] == 503)
                message = readiness(live)[1]
                assert message is not None
                assert message.startswith("stalled: the engine has sent no heartbeat for")
                engine = live.data("GET", "/api/health/detailed")["engine"]
                assert engine["is_stalled"] is True
                assert engine["activity"] == Activity.PREFILL.name.lower()
                assert live.data("GET", "/api/health")["status"] == "healthy"
                release()
            until(lambda: readiness(live)[0] == 200)
            assert asked.result().status_code == 200
            next(lines)
            # an unload of an engine that stands still does not wait for its requests
            with held(live):
                until(lambda: readiness(live)[0] == 503)
                assert live.data("POST", f"/api/models/{model_id}/unload")["status"] == "ready"
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "model_busy"


def test_decoding_that_stands_still_for_too_long_ends_the_engine_like_a_crash(
    start: Start, model: Path
) -> None:
    with start(engine_stall_timeout=BOUND_SECONDS) as live:
        model_id = add_model(live, model)
        with live.http.stream("POST", "/v1/completions", json=LONG) as run:
            lines = (line for line in run.iter_lines() if line)
            next(lines)
            with held(live):
                rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        error = json.loads(rest[-2].removeprefix("data: "))["error"]
        assert error["code"] == "engine_unavailable"
        assert "the engine has sent no heartbeat for" in error["message"]
        reason = live.data("GET", f"/api/models/{model_id}")["error_message"]
        assert "(it was writing)" in reason
        again = live.post("/v1/completions", LONG | {"max_tokens": 2, "stream": False})
        assert again.status_code == 200
