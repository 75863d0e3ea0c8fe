"""/api/health against a running service."""

from __future__ import annotations

import threading

from steerserve import __version__
from tests.conftest import Start
from tests.service import Running, add_demo


def test_liveness_and_version(shared: Running) -> None:
    body = shared.data("GET", "/api/health")
    assert set(body) == {"status", "version", "timestamp", "uptime_seconds"}
    assert body["version"] == __version__
    assert body["uptime_seconds"] > 0
    assert shared.data("GET", "/api/health/version") == {
        "version": __version__,
        "app": "steerserve",
    }


def test_ready_with_a_model_and_degraded_but_ready_without(shared: Running, start: Start) -> None:
    ready = shared.data("GET", "/api/health/ready")
    assert (ready["ready"], ready["status"], ready["model_loaded"]) == (True, "healthy", True)
    with start() as live:
        ready = live.data("GET", "/api/health/ready")
        assert (ready["ready"], ready["status"], ready["model_loaded"]) == (
            True,
            "degraded",
            False,
        )


def test_the_queue_block_has_every_specified_field(shared: Running) -> None:
    block = shared.data("GET", "/api/health/detailed")["inference"]
    assert set(block) == set(
        "backend cbm_enabled cbm_running queue_pending queue_max_concurrent queue_max_pending "
        "in_flight queue_waiting batch_backlog_rows estimated_wait_seconds error".split()
    )
    assert block["backend"] == "queue"
    assert (block["queue_max_concurrent"], block["queue_max_pending"]) == (8, 64)
    assert block["batch_backlog_rows"] is None


def test_the_estimate_is_null_before_three_requests(start: Start) -> None:
    with start() as live:
        add_demo(live)
        for expected in (None, None, None, 0.0):
            block = live.data("GET", "/api/health/detailed")["inference"]
            assert block["estimated_wait_seconds"] == expected
            live.complete("One day", max_tokens=1)


def test_an_unusable_database_is_not_ready_and_liveness_stays(start: Start) -> None:
    with start() as live:

        async def broken() -> None:
            raise OSError("gone")

        live.service.database.ping = broken  # type: ignore[method-assign]
        status, code, details = live.error("GET", "/api/health/ready")
        assert (status, code) == (503, "NOT_READY")
        assert details["components"][0]["status"] == "unhealthy"
        assert live.http.get("/api/health/ready").headers["retry-after"] == "5"
        assert live.http.get("/api/health").status_code == 200


def test_health_answers_while_a_model_loads(start: Start) -> None:
    with start() as live:
        model_id = add_demo(live)
        live.data("POST", f"/api/models/{model_id}/load", status=202)
        done = threading.Event()
        answers = 0
        while not done.is_set():
            assert live.http.get("/api/health").status_code == 200
            answers += 1
            if live.data("GET", f"/api/models/{model_id}")["status"] == "loaded":
                done.set()
        assert answers > 1


def test_a_wrong_method_is_told_every_right_one(shared: Running) -> None:
    answer = shared.http.options("/api/models")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
    assert shared.http.put("/v1/models").headers["allow"] == "GET"
