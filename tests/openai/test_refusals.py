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
INVALID = (400, "invalid_parameter")
NOT_HONOURED = (400, "field_not_honoured")


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HELLO, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "One day", **fields}


CASES: list[tuple[str, Any, tuple[int, str], str | None]] = [
    # the body itself
    (CHAT, b"{", INVALID, None),
    (CHAT, b"", INVALID, None),
    (CHAT, b"[]", INVALID, None),
    (CHAT, b'"x"', INVALID, None),
    (CHAT, b"[" * 100_000, INVALID, None),
    (CHAT, b'{"model": NaN}', INVALID, None),
    (CHAT, b'{"model": "\xff"}', INVALID, None),
    # model and prompt
    (CHAT, {"messages": HELLO}, INVALID, "model"),
    (CHAT, {"model": 3, "messages": HELLO}, INVALID, "model"),
    (CHAT, {"model": "nobody", "messages": HELLO}, (404, "model_not_found"), "model"),
    (TEXT, {"model": "no\r\nbody", "prompt": "x"}, (404, "model_not_found"), "model"),
    (CHAT, {"model": MODEL}, INVALID, "messages"),
    (CHAT, {"model": MODEL, "messages": []}, INVALID, "messages"),
    (CHAT, {"model": MODEL, "messages": "Hello"}, INVALID, "messages"),
    (CHAT, {"model": MODEL, "messages": [{"role": "user"}]}, INVALID, "messages[0].content"),
    (CHAT, {"model": MODEL, "messages": [{"content": "x"}]}, INVALID, "messages[0].role"),
    (
        CHAT,
        {"model": MODEL, "messages": [{"role": "wizard", "content": "x"}]},
        INVALID,
        "messages[0].role",
    ),
    (TEXT, {"model": MODEL}, INVALID, "prompt"),
    (TEXT, text(prompt="", add_special_tokens=False), INVALID, "prompt"),
    (TEXT, text(prompt=[]), INVALID, "prompt"),
    (TEXT, text(prompt=["a", ""], add_special_tokens=False), INVALID, "prompt[1]"),
    (TEXT, text(prompt=[[]]), INVALID, "prompt[0]"),
    (TEXT, text(prompt=[5, "a"]), INVALID, "prompt[1]"),
    (TEXT, text(prompt=["a", 5]), INVALID, "prompt[1]"),
    (TEXT, text(prompt=[[5], "a"]), INVALID, "prompt[1]"),
    (TEXT, text(prompt=[5, -1]), INVALID, "prompt[1]"),
    (TEXT, text(prompt=[5, 2**31]), INVALID, "prompt[1]"),
    (TEXT, text(prompt=[5, True]), INVALID, "prompt[1]"),
    (TEXT, text(prompt=[5, 1.5]), INVALID, "prompt[1]"),
    (TEXT, text(prompt=[1.0]), INVALID, "prompt[0]"),
    (TEXT, text(prompt=[5, 10**6]), INVALID, "prompt[1]"),
    (TEXT, text(prompt=[[5], [5, 6, 10**6]]), INVALID, "prompt[1][2]"),
    (TEXT, text(prompt=[[10**6]], stream=True), INVALID, "prompt[0][0]"),
    (TEXT, text(prompt=[5] * 2000), (400, "context_length_exceeded"), None),
    (TEXT, text(prompt=["x"] * 129), INVALID, "prompt"),
    # sampling bounds
    (CHAT, chat(temperature=2.1), INVALID, "temperature"),
    (CHAT, chat(temperature=-0.1), INVALID, "temperature"),
    (CHAT, chat(temperature="1"), INVALID, "temperature"),
    (CHAT, chat(temperature=True), INVALID, "temperature"),
    (CHAT, chat(top_p=1.1), INVALID, "top_p"),
    (CHAT, chat(top_p=-1), INVALID, "top_p"),
    (CHAT, chat(frequency_penalty=2.5), INVALID, "frequency_penalty"),
    (CHAT, chat(presence_penalty=-2.5), INVALID, "presence_penalty"),
    (CHAT, chat(max_tokens=0), INVALID, "max_tokens"),
    (CHAT, chat(max_tokens=-1), INVALID, "max_tokens"),
    (CHAT, chat(max_tokens=1.5), INVALID, "max_tokens"),
    (CHAT, chat(max_tokens=True), INVALID, "max_tokens"),
    (CHAT, chat(max_tokens=3, max_completion_tokens=4), INVALID, "max_completion_tokens"),
    (CHAT, chat(seed=-1), INVALID, "seed"),
    (CHAT, chat(seed=2**32), INVALID, "seed"),
    (CHAT, chat(seed=True), INVALID, "seed"),
    (CHAT, chat(seed=1.0), INVALID, "seed"),
    (CHAT, chat(seed="1"), INVALID, "seed"),
    (CHAT, chat(n=0), INVALID, "n"),
    (CHAT, chat(n=17), INVALID, "n"),
    (CHAT, chat(n=10**30), INVALID, "n"),
    (CHAT, chat(n=True), INVALID, "n"),
    (CHAT, chat(n=2, stream=True), INVALID, "n"),
    (CHAT, chat(stop=""), INVALID, "stop"),
    (CHAT, chat(stop=["a"] * 17), INVALID, "stop"),
    (CHAT, chat(stop=[1]), INVALID, "stop[0]"),
    (CHAT, chat(stream="yes"), INVALID, "stream"),
    (CHAT, chat(messages=HELLO * 2001), INVALID, "messages"),
    # the context
    (TEXT, text(max_tokens=100_000), (400, "context_length_exceeded"), None),
    (TEXT, text(prompt="word " * 3000), (400, "context_length_exceeded"), None),
    (TEXT, text(prompt="x" * 7_000_000), (400, "context_length_exceeded"), None),
    (TEXT, text(prompt="word " * 3000, stream=True), (400, "context_length_exceeded"), None),
    # refused before the model is even looked for
    (CHAT, {"model": "nobody", "messages": HELLO, "tools": [{}]}, NOT_HONOURED, "tools"),
    # a score is of one token
    (CHAT, chat(logprobs=True), INVALID, "max_tokens"),
    (TEXT, text(logprobs=1), INVALID, "max_tokens"),
    # several conversations
    (CHAT, chat(extra_messages=HELLO), INVALID, "extra_messages[0]"),
    (CHAT, chat(extra_messages=[HELLO, []]), INVALID, "extra_messages[1]"),
    (CHAT, chat(extra_messages=[HELLO] * 65), INVALID, "extra_messages"),
    (CHAT, chat(extra_messages=[HELLO * 2001]), INVALID, "extra_messages[0]"),
    (CHAT, chat(extra_messages=[HELLO], n=2), INVALID, "n"),
    (
        CHAT,
        chat(extra_messages=[HELLO, [*HELLO, {"role": "user"}]]),
        INVALID,
        "extra_messages[1][1].content",
    ),
    # what a template is given
    (CHAT, chat(chat_template_kwargs=[]), INVALID, "chat_template_kwargs"),
    (
        CHAT,
        chat(chat_template_kwargs={"messages": []}),
        INVALID,
        "chat_template_kwargs.messages",
    ),
]


@pytest.mark.shows(
    "chat-parameters.1",
    "chat-parameters.2",
    "chat-parameters.4",
    "chat-parameters.5",
    "chat-parameters.6",
    "chat-parameters.10",
    "chat-parameters.11",
    "seeds.1",
    "limits.10",
    "limits.11",
    "limits.12",
    "limits.14",
)
@pytest.mark.parametrize(("path", "body", "expected", "param"), CASES)
def test_a_bad_request_is_refused(
    shared: Running, path: str, body: Any, expected: tuple[int, str], param: str | None
) -> None:
    status, error = shared.v1_error(path, body)
    assert (status, error["code"]) == expected
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.shows("chat-parameters.7", "model-naming.2", "general-errors.1")
def test_the_context_refusal_counts_the_tokens(shared: Running) -> None:
    _, error = shared.v1_error(TEXT, text(max_tokens=2000))
    details = error["details"]
    assert details["max_tokens"] == 2000
    assert details["requested_tokens"] == details["prompt_tokens"] + 2000
    assert details["max_context_tokens"] == 1024
    assert str(details["prompt_tokens"]) in error["message"]


def test_a_prompt_that_just_fits_is_served(shared: Running) -> None:
    refused = shared.v1_error(TEXT, text(max_tokens=1024))[1]
    room = 1024 - refused["details"]["prompt_tokens"]
    assert shared.complete("One day", max_tokens=room, stop=["."])["usage"]["total_tokens"] <= 1024
    assert shared.v1_error(TEXT, text(max_tokens=room + 1))[1]["code"] == "context_length_exceeded"


@pytest.mark.shows("request-validation.1", "request-validation.2", "request-validation.5")
def test_unused_fields_are_reported_with_their_places(shared: Running) -> None:
    messages = [{"role": "user", "content": "Hi", "mood": "glad"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, "user": "u", "café\n": 1}
    for extra in ({}, {"stream": True}):
        answer = shared.http.post(CHAT, json=body | extra)
        assert answer.status_code == 200
        assert answer.headers["x-service-ignored-fields"] == "user, caf%C3%A9%0A, messages[0].mood"


@pytest.mark.shows("request-validation.4", "request-validation.5")
def test_strict_mode_refuses_unused_fields_and_only_those(shared: Running) -> None:
    strict = {"X-Service-Strict": "true"}
    status, error = shared.v1_error(CHAT, chat(user="u", seed=1), **strict)
    assert (status, error["code"]) == (400, "unused_fields_refused")
    assert "user" in error["message"]
    answer = shared.http.post(CHAT, json=chat(max_tokens=1), headers=strict)
    assert answer.status_code == 200
    relaxed = {"X-Service-Strict": "0"}
    assert shared.http.post(CHAT, json=chat(max_tokens=1, user="u"), headers=relaxed).is_success
    status, error = shared.v1_error(CHAT, chat(), **{"X-Service-Strict": "maybe"})
    assert (status, error["param"]) == (400, "X-Service-Strict")


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


def test_other_media_types_are_not_read_as_json(shared: Running) -> None:
    answer = shared.http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Content-Type"


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
