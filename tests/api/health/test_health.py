"""/api/health against a running service."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from steerserve import __version__, demo
from steerserve.app import startup
from steerserve.control.residency import loading
from steerserve.errors import Refusal
from steerserve.rules.models.compilers import COMPILERS
from tests import ROOT
from tests.conftest import Start
from tests.resident import crash, engine_of, kill_engine, processes
from tests.service import Running, add_demo, add_model, add_sae, load_demo
from tests.worker import models


@pytest.mark.shows("versioning.1", "health.1", "health.10")
def test_liveness_and_version(shared: Running) -> None:
    body = shared.data("GET", "/api/health")
    assert set(body) == {"status", "version", "timestamp", "uptime_seconds"}
    assert body["version"] == __version__
    assert body["uptime_seconds"] > 0
    assert shared.data("GET", "/api/health/version") == {
        "version": __version__,
        "app": "steerserve",
    }


ASKED = "/api/health/ready?for=inference"


def forget_the_version(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DELETE FROM alembic_version")
        connection.commit()


def test_readiness_for_inference_waits_for_the_model_and_not_for_the_database(start: Start) -> None:
    with start(auto_load_model="nobody") as live:
        # without a model the service is ready, but not for inference
        assert live.data("GET", "/api/health/ready")["ready"]
        while "failed" not in live.error("GET", ASKED)[2]["components"][0]["message"]:
            pass
        load_demo(live)
        assert live.data("GET", ASKED)["ready"]
        assert live.error("GET", "/api/health/ready?for=dinner")[0] == 422
    with start(auto_load_model=demo.MODEL_NAME) as live:
        while (answer := live.http.get(ASKED)).status_code == 503:
            assert answer.json()["error"]["code"] == "NOT_READY"
            assert answer.headers["retry-after"] == "5"
        assert answer.json()["data"]["model_loaded"]
        assert live.complete("One day", max_tokens=1)["choices"]
        (live.home / "steerserve.db").unlink()
        assert live.error("GET", "/api/health/ready")[0] == 503
        assert live.data("GET", ASKED)["ready"]


@pytest.mark.shows("retry-after.7", "health.2")
@pytest.mark.parametrize("destroy", [Path.unlink, forget_the_version])
def test_a_database_that_cannot_be_used_is_not_ready_and_liveness_stays(
    start: Start, destroy: Callable[[Path], None]
) -> None:
    with start() as live:
        destroy(live.home / "steerserve.db")
        status, code, details = live.error("GET", "/api/health/ready")
        assert (status, code) == (503, "NOT_READY")
        assert details["components"][0]["name"] == "database"
        assert details["components"][0]["status"] == "unhealthy"
        assert details["components"][0]["message"].startswith("not usable: ")
        assert live.http.get("/api/health/ready").headers["retry-after"] == "5"
        assert live.http.get("/api/health").status_code == 200


def test_a_model_of_the_start_that_fails_makes_readiness_degraded_with_the_reason(
    start: Start,
) -> None:
    with start(auto_load_model="nobody") as live:
        while "nobody" not in engine(live)["message"]:
            pass
        assert live.data("GET", "/api/health/ready")["status"] == "degraded"
        assert engine(live)["message"].startswith("AUTO_LOAD_MODEL 'nobody' failed: ")
        load_demo(live)
        assert engine(live) == engine(live) | {"status": "healthy", "message": None}


@pytest.mark.local("a replica that ends is started again while its model stays loaded")
def test_the_model_of_the_start_is_tried_again_in_bounds(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    failing = 2
    prepare = loading.prepare

    async def crowded(row: Any, *rest: Any) -> Any:
        tried.append(row.name)
        if len(tried) <= failing:
            raise Refusal("INSUFFICIENT_MEMORY", "no room")
        return await prepare(row, *rest)

    def wait_for(state: str) -> None:
        while state not in str(live.http.get(ASKED).json()):
            pass

    with start() as live:
        add_demo(live)
    monkeypatch.setattr(startup, "PAUSES", (0.0,) * 4)
    monkeypatch.setattr(loading, "prepare", crowded)
    with start(auto_load_model=demo.MODEL_NAME) as live:
        wait_for("'ready': True")
        assert len(tried) == 3
        # the engine dies: the model comes back without a request, until the tries are spent
        kill_engine(live)
        wait_for("'model_loaded': False")
        wait_for("'ready': True")
        assert len(tried) == 4
        crash(live)
        wait_for("ended by itself")
        assert "signal 9" in engine(live)["message"]
        for path, body in (
            ("/api/saes/steering", {"feature_idx": 1, "value": 1.0}),
            ("/api/tokenize", {"text": "One day"}),
        ):
            _, code, _ = live.error("POST", path, body)
            message = live.http.post(path, json=body).json()["error"]["message"]
            assert code in ("SAE_NOT_ATTACHED", "MODEL_NOT_LOADED")
            assert "signal 9" in message
        assert len(tried) == 4
        # a request loads it all the same
        assert live.complete("One day", max_tokens=1)["choices"]


def test_a_demo_that_finds_no_room_makes_readiness_degraded_with_the_reason(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise shutil.Error([(str(source), str(target), "[Errno 28] No space left on device")])

    monkeypatch.setattr(shutil, "copytree", full)
    with start(demo=True) as live:
        while "DEMO" not in (engine(live)["message"] or ""):
            pass
        assert live.data("GET", "/api/health/ready")["status"] == "degraded"
        assert engine(live)["message"] == "DEMO failed: [Errno 28] No space left on device"


def engine(live: Running) -> dict[str, Any]:
    components = live.data("GET", "/api/health/ready")["components"]
    return next(one for one in components if one["name"] == "engine")


def test_health_answers_while_a_model_loads(bare: Running) -> None:
    model_id = add_demo(bare)
    bare.data("POST", f"/api/models/{model_id}/load", status=202)
    done = threading.Event()
    answers = 0
    while not done.is_set():
        assert bare.http.get("/api/health").status_code == 200
        answers += 1
        if bare.data("GET", f"/api/models/{model_id}")["status"] == "loaded":
            done.set()
    assert answers > 1


@pytest.mark.shows("gpus.1", "gpus.13", "health.4")
def test_the_cards_are_listed_or_the_reason_is_given(shared: Running) -> None:
    body = shared.data("GET", "/api/health/gpus")
    expected = ("read_at", "reason", "cards", "host", "nodes", "nodes_reason", "model_memory")
    assert set(body) == set(expected)
    assert 0 < body["host"]["available_mb"] <= body["host"]["total_mb"]
    assert bool(body["cards"]) != (body["reason"] is not None)
    loaded = shared.data("GET", "/api/models")["loaded_model_id"]
    assert body["model_memory"]["model_id"] == loaded
    assert all(
        part["process_mb"] > part["weights_mb"] > 0 for part in body["model_memory"]["parts"]
    )
    assert datetime.fromisoformat(body["read_at"]).utcoffset() == timedelta(0)


@pytest.mark.shows("health.3")
def test_the_detailed_body_has_every_block(shared: Running) -> None:
    body = shared.data("GET", "/api/health/detailed")
    expected = (
        "status version timestamp uptime_seconds components circuit_breakers model_loaded model_name "
        "model_placement sae_attached sae_id sae_count sae_ids inference engine active_profile circuits lease "
        "ended_by_restart errors replicas interventions turns"
    )
    assert set(body) == set(expected.split())
    is_one_process = engine_of(shared).fleet is None
    assert (body["replicas"] is None) is is_one_process
    assert body["errors"] == {}
    assert body["model_name"] == demo.MODEL_NAME
    parts = {"database", "engine", "gpu", "hub"} | (set() if is_one_process else {"replicas"})
    assert {part["name"] for part in body["components"]} == parts
    assert {part["status"] for part in body["components"]} == {"healthy"}
    assert 1 <= body["engine"]["threads"] <= body["engine"]["most_threads"]
    assert set(body["turns"]) == {"event_loop", "engine"}


def test_the_active_profile_is_told(steered: Running) -> None:
    calm = {"name": "calm", "steering": {"1": 2.0}, "intensity": 0.5}
    profile_id = steered.data("POST", "/api/profiles", calm, 201)["id"]
    try:
        assert steered.data("GET", "/api/health/detailed")["active_profile"] is None
        steered.data("POST", f"/api/profiles/{profile_id}/activate")
        assert steered.data("GET", "/api/health/detailed")["active_profile"] == {
            "id": profile_id,
            "name": "calm",
            "source_kind": "manual",
            "intensity": 0.5,
            "sensing_enabled": False,
        }
    finally:
        steered.data("DELETE", f"/api/profiles/{profile_id}")
    assert steered.data("GET", "/api/health/detailed")["active_profile"] is None


@pytest.mark.shows("health.6")
def test_the_metrics_grow_with_the_requests(steered: Running) -> None:
    before = steered.data("GET", "/api/health/metrics")
    steered.complete("One day", max_tokens=3)
    after = steered.data("GET", "/api/health/metrics")
    assert after["total_requests"] > before["total_requests"]
    assert after["completion_tokens"] > before["completion_tokens"]
    assert after["latency_ms"]["p50"] > 0
    assert after["time_to_first_token_ms"]["p99"] >= after["time_to_first_token_ms"]["p50"] > 0
    assert (after["model_name"], after["sae_attached"]) == (demo.MODEL_NAME, True)
    assert after["uptime_seconds"] > before["uptime_seconds"]


@pytest.mark.shows("health.7")
def test_the_text_is_what_a_scraper_reads(shared: Running) -> None:
    shared.complete("One day", max_tokens=3)
    answer = shared.http.get("/api/health/metrics/prometheus")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    assert families["steerserve_completion_tokens"].type == "counter"
    assert families["steerserve_time_to_first_token_seconds"].type == "histogram"
    memory = families["steerserve_process_resident_memory_bytes"].samples
    # replicas may run on other machines
    measured = {"control"} if engine_of(shared).fleet else {"control", "engine"}
    assert {sample.labels["process"] for sample in memory} == measured
    assert demo.MODEL_NAME not in answer.text


@pytest.mark.shows("health.5")
def test_the_backend_is_described(shared: Running) -> None:
    body = shared.data("GET", "/api/health/inference")
    assert body["backend"] == "serial"
    slots = 8 * len(processes(shared))
    assert body["queue"] == {"max_concurrent": slots, "max_pending": 64, "current_pending": 0}
    assert body["row_steps"]["are_batched"] is True
    assert body["cuda_graphs"] == {
        "decoding": "called",
        "reason": "the model is on no card, and only cards record passes",
    }
    has_compiler = any(map(shutil.which, COMPILERS))
    assert body["compiled_functions"]["are_used"] is has_compiler
    assert body["limitations"] == []


def test_the_backend_says_that_rows_are_stepped_one_at_a_time(
    bare: Running, tmp_path: Path
) -> None:
    folder = models.save("jamba", tmp_path / "recurrent")
    add_model(bare, folder)
    body = {"model": "recurrent", "prompt": "One day", "max_tokens": 5, "seed": 3}
    texts = [bare.http.post("/v1/completions", json=body).json()["choices"] for _ in range(2)]
    assert texts[0] == texts[1]
    body = bare.data("GET", "/api/health/inference")
    assert body["row_steps"]["are_batched"] is False
    assert body["limitations"] == [body["row_steps"]["reason"]]
    assert "one at a time" in body["row_steps"]["reason"]
    assert body["seeded_rows"]["are_shared"] is True


PAGE = ROOT / "docs" / "health.md"
SECTIONS = PAGE.read_text(encoding="utf-8").split("\n## ")
SHOWN = {
    section.split("`")[1].split()[1]: json.loads(
        section.partition("```json")[2].partition("```")[0]
    )
    for section in SECTIONS
    if "```json" in section
}


def test_the_page_shows_every_route_that_answers_json(shared: Running) -> None:
    described = shared.service.api.openapi()["paths"]
    mine = {path for path in described if path.startswith("/api/health")}
    assert set(SHOWN) == mine - {"/api/health/metrics/prometheus"}


@pytest.mark.shows("health.5", "health.6")
@pytest.mark.parametrize("route", SHOWN)
def test_the_page_shows_the_fields_that_are_answered(shared: Running, route: str) -> None:
    is_reset = route.endswith("/reset")
    path = route.replace("{name}", "huggingface")
    answered = shared.data("POST" if is_reset else "GET", path)
    assert fields(answered) == fields(SHOWN[route])


def fields(body: Any) -> Any:
    """The names in a body: of an object, and of the objects in it. Devices are those of the machine, and one engine
    process has no replicas."""
    if isinstance(body, list):
        return [fields(body[0])] if body and isinstance(body[0], dict) else []
    hidden = ("memory_by_device_mb", "replicas")
    return {
        name: fields(part) if isinstance(part, dict) and name not in hidden else None
        for name, part in body.items()
    }


@pytest.mark.timeout(120)
def test_a_restart_says_what_it_ended(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    sae = demo.saes()[0]
    with start() as first:
        assert first.data("GET", "/api/health/detailed")["ended_by_restart"] is None
        model_id, sae_id = load_demo(first), add_sae(first, sae)
        first.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
    capfd.readouterr()
    with start() as second:
        ended = {"models": [demo.MODEL_NAME], "sae_ids": [sae_id], "circuit_ids": []}
        assert second.data("GET", "/api/health/detailed")["ended_by_restart"] == ended
        model = second.data("GET", f"/api/models/{model_id}")
        assert (model["status"], "restarted" in model["error_message"]) == ("ready", True)
        record = second.data("GET", f"/api/saes/{sae_id}")
        assert (record["status"], "restarted" in record["error_message"]) == ("cached", True)
        (line,) = [x for x in capfd.readouterr().err.splitlines() if "ended_by_restart" in x]
        assert all(word in line for word in (demo.MODEL_NAME, sae_id, "steering values", "lease"))
        # what is there again has no such note
        second.data("POST", f"/api/models/{model_id}/load?wait=true")
        second.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
        assert second.data("GET", f"/api/models/{model_id}")["error_message"] is None
        assert second.data("GET", f"/api/saes/{sae_id}")["error_message"] is None
