"""Every refusal of the compatible surface: status, code, and the field it names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from steerserve import demo
from steerserve.errors import Refusal
from tests.service import JSON, Running

MODEL = demo.MODEL_NAME
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HELLO, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "One day", **fields}


def test_a_prompt_that_just_fits_is_served(shared: Running) -> None:
    refused = shared.v1_error(TEXT, text(max_tokens=1024))[1]
    room = 1024 - refused["details"]["prompt_tokens"]
    assert shared.complete("One day", max_tokens=room, stop=["."])["usage"]["total_tokens"] <= 1024
    assert shared.v1_error(TEXT, text(max_tokens=room + 1))[1]["code"] == "context_length_exceeded"


@pytest.mark.shows("retry-after.4", "retry-after.1", "formats.2")
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_engine_that_ended_before_the_request_is_told_with_the_time_to_come_back(
    shared: Running, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    async def ended(*_: Any, **__: Any) -> AsyncIterator[Any]:
        raise Refusal("MODEL_NOT_LOADED", "the engine ended while the request waited")
        yield

    resident = shared.service.owners.conductor.resident
    assert resident is not None
    monkeypatch.setattr(resident.held(), "run", ended)
    answer = shared.http.post(TEXT, json=text(stream=is_stream))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("model_not_loaded", "invalid_request_error")


def test_unknown_routes_and_methods_answer_in_the_protocols_form(shared: Running) -> None:
    missing = shared.http.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    wrong = shared.http.get(CHAT)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert shared.http.get("/v1/models/nobody").json()["error"]["code"] == "model_not_found"


def test_a_body_over_the_limit_is_refused_with_and_without_a_length(shared: Running) -> None:
    limit = shared.service.settings.max_body_bytes
    big = b'{"model": "' + b"x" * limit + b'"}'
    assert shared.v1_error(TEXT, big)[0] == 413

    def pieces():
        for start in range(0, len(big), 1 << 16):
            yield big[start : start + (1 << 16)]

    answer = shared.http.post(TEXT, content=pieces(), headers=JSON)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "payload_too_large"


def test_a_foreign_page_or_host_cannot_drive_the_service(shared: Running) -> None:
    body = chat(max_tokens=1)
    foreign = shared.http.post(CHAT, json=body, headers={"Origin": "http://evil.example"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "forbidden_origin")
    opaque = shared.http.post("/api/models", json={}, headers={"Origin": "null"})
    assert opaque.status_code == 403
    assert opaque.json()["error"]["code"] == "FORBIDDEN_ORIGIN"
    rebound = shared.http.get("/api/health", headers={"Host": "evil.example"})
    assert rebound.status_code == 403
    own = shared.http.post(CHAT, json=body, headers={"Origin": shared.url})
    assert own.status_code == 200
