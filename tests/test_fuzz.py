"""The fuzzer in short: it runs, it finds nothing, and it would find what it looks for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fuzz.checks import faults
from tests.fuzz.client import Answer, Request
from tests.fuzz.run import Plan, fuzz

CHAT = Request("POST", "/v1/chat/completions", b"{}")
MODELS = Request("GET", "/api/models")
ERROR = {"message": "no", "type": "server_error", "code": "model_busy", "param": None}
REFUSED = {"code": "NOT_FOUND", "message": "no", "details": {}}


@pytest.mark.timeout(180)
def test_a_short_run_finds_nothing() -> None:
    result = fuzz(Plan(requests=200, seed=1, is_measured=False))
    assert result["problems"] == [], json.dumps(result["faults"], indent=1)
    assert result["requests"] >= 200
    kinds = {"described", "bodies", "raw", "events", "sequences", "quiet"}
    assert kinds <= set(result["requests_by_kind"])


def answered(status: int, body: Any, **headers: str) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, named | {"x-service-batch": "extra_messages"}, content, is_ended=True)


def stream(*events: object, end: bytes = b"data: [DONE]\n\n") -> Answer:
    frames = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return answered(200, frames + end, content_type="text/event-stream; charset=utf-8")


GOOD = (
    (CHAT, answered(503, {"error": ERROR}, retry_after="5")),
    (CHAT, stream({"choices": []}, {"usage": {}})),
    (CHAT, stream({"choices": []}, {"error": ERROR})),
    (MODELS, answered(404, {"success": False, "data": None, "error": REFUSED})),
    (MODELS, answered(200, {"success": True, "data": {}, "error": None})),
)
BAD = (
    (CHAT, answered(503, {"error": ERROR})),
    (CHAT, answered(503, {"error": ERROR}, retry_after="0")),
    (CHAT, answered(500, {"error": ERROR})),
    (CHAT, answered(500, {"error": ERROR | {"code": "internal_error"}})),
    (CHAT, answered(500, b"Internal Server Error")),
    (CHAT, answered(400, {"success": False, "data": None, "error": REFUSED})),
    (CHAT, stream({"choices": []}, {"usage": {}}, end=b"")),
    (CHAT, stream({"choices": []})),
    (CHAT, stream({"error": ERROR}, {"choices": []})),
    (CHAT, Answer(fault="no answer in time")),
    (MODELS, answered(500, {"success": False, "data": None, "error": REFUSED})),
    (MODELS, answered(404, {"success": True, "data": None, "error": None})),
    (MODELS, answered(404, {"error": REFUSED})),
    (MODELS, answered(200, b"[]")),
)


@pytest.mark.parametrize(("sent", "answer"), GOOD)
def test_a_good_answer_has_no_fault(sent: Request, answer: Answer) -> None:
    assert list(faults(sent, answer)) == []


@pytest.mark.parametrize(("sent", "answer"), BAD)
def test_a_bad_answer_is_found(sent: Request, answer: Answer) -> None:
    assert list(faults(sent, answer)) != []
