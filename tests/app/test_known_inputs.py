"""What a route does not read is refused by its name, on every route of /api, and listed on /v1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from steerserve import demo
from tests.service import JSON, Running

ANY_QUERY = {"/api/health", "/api/health/ready", "/api/health/metrics/prometheus"}


def operations(live: Running, prefix: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The method, the path and the description of each route whose path begins so."""
    for path, methods in live.service.api.openapi()["paths"].items():  # type: ignore[attr-defined]
        if path.startswith(prefix):
            for method, described in methods.items():
                yield method.upper(), re.sub(r"\{\w+\}", "1", path), described


def refusal(live: Running, method: str, path: str, body: bytes | None = None) -> Any:
    answer = live.http.request(method, path, content=body, headers=JSON if body else None)
    assert answer.status_code == 422, (method, path, answer.text)
    error = answer.json()["error"]
    assert error["code"] == "VALIDATION_ERROR"
    return error


def test_an_unknown_query_parameter_is_refused_by_every_route(shared: Running) -> None:
    routes = [one for one in operations(shared, "/api/") if one[1] not in ANY_QUERY]
    assert len(routes) > 100
    for method, path, _ in routes:
        error = refusal(shared, method, f"{path}?zzz=1")
        assert error["details"]["errors"][0]["loc"] == ["query", "zzz"]
    path = "/api/profiles/1/deactivate?clear_sterring=false"
    assert "nearest known parameter is 'clear_steering'" in refusal(shared, "POST", path)["message"]


def test_a_body_is_refused_by_every_route_that_takes_none(shared: Running) -> None:
    routes = [one for one in operations(shared, "/api/") if "requestBody" not in one[2]]
    assert len(routes) > 80
    for method, path, _ in routes:
        if path not in ANY_QUERY:
            error = refusal(shared, method, path, b'{"zzz": 1}')
            assert error["details"]["errors"][0]["loc"] == ["body", "zzz"]
    path = "/api/profiles/1/deactivate"
    message = refusal(shared, "POST", path, b'{"clear_steering": false}')["message"]
    assert "clear_steering is a parameter of its query" in message
    for none in (b"", b"{}", b" { } ", b"null"):
        answer = shared.http.request("GET", "/api/health/version", content=none, headers=JSON)
        assert answer.status_code == 200
    assert "takes no body" in refusal(shared, "GET", "/api/health/version", b"[1]")["message"]


def test_a_key_that_stands_twice_is_refused_by_every_route_that_reads_json(shared: Running) -> None:
    twice = b'{"a": {"b": 1, "b": 2}}'
    for method, path, described in operations(shared, "/api/"):
        content = described.get("requestBody", {}).get("content", {})
        if "application/json" in content and "labels" not in path:  # its SAE is looked up first
            error = refusal(shared, method, path, twice)
            assert "'b' stands twice" in error["message"], (method, path)
    for method, path, described in operations(shared, "/v1/"):
        if "application/json" in described.get("requestBody", {}).get("content", {}):
            status, fault = shared.v1_error(path, twice)
            assert (status, fault["code"]) == (400, "invalid_parameter"), (method, path)
            assert "'b' stands twice" in fault["message"]


@pytest.mark.parametrize("path", sorted(ANY_QUERY))
def test_probes_and_scrapers_may_add_parameters(shared: Running, path: str) -> None:
    assert shared.http.get(f"{path}?zzz=1").status_code == 200


def test_wait_is_known_also_where_the_answer_is_there_at_once(shared: Running) -> None:
    for path in ("/api/lens", "/api/attribution", "/api/runs/nobody/replay"):
        answer = shared.http.post(f"{path}?wait=true")
        assert "query" not in answer.text


def test_an_unknown_query_parameter_of_v1_is_listed(shared: Running) -> None:
    body = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1, "user": "u"}
    answer = shared.post("/v1/completions?api-version=1&api-version=2", body)
    assert answer.headers["x-service-ignored-fields"] == "user, query.api-version"
    listed = shared.http.get("/v1/files?limit=1&zzz=1")
    assert listed.headers["x-service-ignored-fields"] == "query.zzz"
    assert "x-service-ignored-fields" not in shared.http.get("/v1/models").headers
    status, error = shared.v1_error("/v1/completions?zzz=1", body, **{"X-Service-Strict": "1"})
    assert (status, error["details"]["fields"]) == (400, ["user", "query.zzz"])
