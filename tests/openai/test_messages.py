"""What people read about requests that they get wrong: what is wrong, where, and what to send instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steerserve import demo
from tests.service import JSON, Running

MODEL = demo.MODEL_NAME
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HELLO, "max_tokens": 1, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "One", "max_tokens": 1, **fields}


def edits(*made: dict[str, Any]) -> dict[str, Any]:
    return {"interventions": {"edits": list(made)}}


def add(value: float, **more: Any) -> dict[str, Any]:
    return {"op": "add", "feature": {"index": 1}, "value": value, **more}


NEAREST = f"the nearest known model is {MODEL!r}"
FROM = ("`", "Input should", "Extra inputs", "Expected", "(byte", "codec", "Struct")
"""Words of the libraries that read requests."""

CASES: list[tuple[str, str, Any, tuple[str, ...]]] = [
    # names of models
    ("POST", CHAT, chat(model=f"{MODEL} "), (NEAREST,)),
    ("POST", CHAT, chat(model=MODEL.title()), (NEAREST,)),
    ("GET", f"/v1/models/{MODEL[1:]}", None, (NEAREST,)),
    ("POST", f"/api/models/{MODEL}/load", None, ("plain digits", "GET /api/models")),
    # fields
    ("POST", CHAT, text(), ("messages: is required", "/v1/completions")),
    ("POST", TEXT, chat(), ("prompt: is required", "/v1/chat/completions")),
    (
        "POST",
        TEXT,
        text(**edits(add(1, scale=2))),
        ("edits[0].scale", "the known fields are", "'op'"),
    ),
    ("POST", TEXT, text(**edits(add(150), add(150))), ("sum up to 300", "from -200 to 200")),
    (
        "POST",
        TEXT,
        text(**edits(add(1, positions=5))),
        ("positions: must be a string or an object or null",),
    ),
    (
        "POST",
        TEXT,
        text(prompt=["One"] * 100, max_tokens=500, return_logprobs={"top": 20}),
        ("return_logprobs: the answer may have",),
    ),
    (
        "POST",
        "/api/profiles",
        {"name": "p", "steering": {"14": "abc", "2": 1}},
        ("a value must be a finite number", "'14'"),
    ),
    ("POST", "/api/profiles", {"name": "p", "steering": {"x": 1}}, ("index of a feature", "'x'")),
    (
        "POST",
        "/api/compare",
        {"prompt": "One", "stop": "x"},
        ("unknown field; the known fields are", "'max_tokens'"),
    ),
    (
        "GET",
        "/api/sensing/events?since=yesterday",
        None,
        ("must be a time", "2026-01-31T12:00:00Z"),
    ),
    (
        "POST",
        "/api/saes/nobody/attach",
        {"layer": 2},
        ("no SAE has the id", "there are sae_"),
    ),
    (
        "POST",
        "/api/vectors",
        {"name": "v", "source": "local", "local_path": "/tmp/no such folder/calm.gguf"},
        ("does not exist",),
    ),
    # bodies
    ("POST", CHAT, b'{"model": "x",\n "temperature": NaN}', ("NaN at line 2, column 17",)),
    ("POST", CHAT, b'{"model": "\xe9"}', ("byte 0xe9 at line 1, column 12", "send UTF-8")),
    ("POST", CHAT, b'{"model": "x"\n "a"}', ("line 2, column 2",)),
    # routes
    ("GET", CHAT, None, ("GET is not allowed here; the route takes POST",)),
    ("POST", f"{CHAT}/", chat(), (f"the nearest is {CHAT!r}",)),
    ("POST", "/chat/completions", chat(), (f"the nearest is {CHAT!r}",)),
    ("POST", f"/v1{CHAT}", chat(), (f"the nearest is {CHAT!r}",)),
    ("GET", "/api/v1/models", None, ("the nearest is '/v1/models'",)),
    ("GET", "/models", None, ("the nearest is '/v1/models'",)),
    ("POST", "/v1/chat/completion", chat(), (f"the nearest is {CHAT!r}",)),
]


@pytest.mark.parametrize(("method", "path", "body", "words"), CASES)
def test_a_refusal_says_what_is_wrong_and_what_to_send(
    steered: Running, method: str, path: str, body: Any, words: tuple[str, ...]
) -> None:
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    answer = steered.http.request(method, path, content=content, headers=JSON)
    assert answer.status_code >= 400, answer.text
    message = answer.json()["error"]["message"]
    assert all(word in message for word in words), message
    assert not any(word in message for word in FROM), message


def test_a_body_without_its_content_type_is_told_so(shared: Running) -> None:
    answer = shared.http.post("/api/profiles", content=b'{"name": "p"}')
    assert answer.status_code == 422
    assert "content-type: application/json" in answer.json()["error"]["message"]


def test_details_name_the_methods_the_nearest_route_and_the_file(shared: Running) -> None:
    assert shared.http.get(CHAT).json()["error"]["details"] == {"allowed_methods": ["POST"]}
    assert shared.http.get("/models").json()["error"]["details"] == {"nearest": "/v1/models"}
    asked = {"name": "v", "source": "local", "local_path": "/tmp/calm of nobody.gguf"}
    details = shared.error("POST", "/api/vectors", asked)[2]
    assert details["local_path"] == "/tmp/calm of nobody.gguf"


def test_a_fault_of_a_field_names_the_field_also_where_there_are_several_prompts(
    shared: Running,
) -> None:
    body = text(prompt=["One"] * 100, max_tokens=500, return_logprobs={"top": 20})
    assert shared.v1_error(TEXT, body)[1]["param"] == "return_logprobs"


def test_an_sae_is_found_by_its_name_in_the_refusal(steered: Running) -> None:
    sae = steered.data("GET", "/api/saes")["saes"][0]
    answer = steered.http.get(f"/api/saes/{sae['name']}")
    assert f"has the id {sae['id']!r}" in answer.json()["error"]["message"]


def test_the_log_names_the_field_that_was_meant(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    shared.post(CHAT, chat(max_token=5))
    (line,) = [one for one in caplog.messages if "request_fields_unused" in one]
    assert "'max_token': 'max_tokens'" in line
