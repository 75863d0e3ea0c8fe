"""An engine that is alive but stands still, seen over HTTP: health, readiness, edits, requests, and its end."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from steerserve import demo
from tests.app.test_lifecycle import LONG
from tests.conftest import Start
from tests.resident import engine_pid
from tests.service import Running, add_sae, load_demo

pytestmark = pytest.mark.local("replicas that stand still are left behind, see tests/engines/fleet")

SAE = demo.saes()[0]


def until(condition: Callable[[], object]) -> None:
    while not condition():
        pass


def readiness(live: Running) -> tuple[int, str | None]:
    """The status of the readiness probe, and the message of its engine component."""
    answer = live.http.get("/api/health/ready")
    whole = answer.json()
    body = whole["data"] or whole["error"]["details"]
    (engine,) = [part for part in body["components"] if part["name"] == "engine"]
    return answer.status_code, engine["message"]


@contextmanager
def stopped(live: Running) -> Iterator[int]:
    """The process of the engine, which the system stops for the block."""
    pid = engine_pid(live)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        if live.service.owners.conductor.resident is not None:
            os.kill(pid, signal.SIGCONT)


def attached(live: Running) -> str:
    load_demo(live)
    sae_id = add_sae(live, SAE)
    live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": SAE.layer})
    live.data("POST", "/api/saes/steering", {"feature_idx": 1, "value": 1})
    return sae_id


def test_an_engine_that_stands_still_is_told_and_refuses_edits_until_it_goes_on(
    start: Start,
) -> None:
    with start(graceful_unload_timeout=600) as live, ThreadPoolExecutor(2) as pool:
        sae_id = attached(live)
        edit: tuple[Any, ...] = ("POST", "/api/saes/steering", {"feature_idx": 1, "value": 9})
        with stopped(live) as pid:
            # this edit and this request reach the engine before anybody notices
            early = pool.submit(live.error, *edit)
            asked = pool.submit(live.complete, "One day", max_tokens=2)
            assert early.result()[:2] == (503, "ENGINE_UNAVAILABLE")
            status, message = readiness(live)
            assert status == 503
            assert message is not None
            assert message.startswith("stalled: the engine has sent no heartbeat for")
            assert live.data("GET", "/api/health/detailed")["engine"]["is_stalled"] is True
            assert live.data("GET", "/api/health")["status"] == "healthy"
            for refused in (
                edit,
                ("POST", f"/api/saes/{sae_id}/detach"),
                ("POST", "/api/saes/monitoring", {"enabled": True}),
            ):
                assert live.error(*refused)[:2] == (503, "ENGINE_UNAVAILABLE")
        until(lambda: readiness(live)[0] == 200)
        assert asked.result()["choices"]
        # the edits that were refused have not been carried out, so the engine is the same one
        assert live.data("GET", "/api/saes/steering")["values"] == {"1": 1.0}
        assert engine_pid(live) == pid
        assert live.data("GET", "/api/health/detailed")["engine"]["is_stalled"] is False
        live.data(*edit)
        assert engine_pid(live) == pid
        # an unload of an engine that stands still does not wait for its requests
        model_id = live.data("GET", "/api/models")["loaded_model_id"]
        with stopped(live):
            asked = pool.submit(live.v1_error, "/v1/completions", LONG)
            until(lambda: live.data("GET", "/api/health/detailed")["inference"]["in_flight"])
            assert live.data("POST", f"/api/models/{model_id}/unload")["status"] == "ready"
        status, error = asked.result()
        assert (status, error["code"]) == (503, "model_busy")


def test_an_engine_that_stands_still_for_too_long_is_ended_like_a_crash(start: Start) -> None:
    with start(engine_stall_timeout=1) as live:
        sae_id = attached(live)
        model_id = live.data("GET", "/api/models")["loaded_model_id"]
        with live.http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as run:
            lines = (line for line in run.iter_lines() if line)
            next(lines)
            os.kill(engine_pid(live), signal.SIGSTOP)
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        error = json.loads(rest[-2].removeprefix("data: "))["error"]
        assert error["code"] == "engine_unavailable"
        until(lambda: live.data("GET", f"/api/models/{model_id}")["status"] == "ready")
        reason = live.data("GET", f"/api/models/{model_id}")["error_message"]
        said = (
            r"the engine has sent no heartbeat for \d+ s \(its process is stopped\), and was ended"
        )
        assert re.fullmatch(said, reason), reason
        assert live.complete("One day", max_tokens=2)["choices"]
        assert live.data("GET", "/api/saes/attachment")["sae_id"] == sae_id
        assert live.data("GET", "/api/saes/steering")["values"] == {"1": 1.0}
