"""Every code of the compatible surface raised by a real request, and every field on every route."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from steerserve import demo
from tests import SHARED
from tests.openai.conftest import POISON, Zoo, holding, pending
from tests.service import Running

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBED = "/v1/embeddings"
HELLO = [{"role": "user", "content": "fish"}]
SPECIFICATION = SHARED / "specification.md"

CODES: dict[str, str] = {
    "context_length_exceeded": "400",
    "model_not_found": "404",
    "queue_full": "503",
    "field_not_honoured": "400",
    "unused_fields_refused": "400",
    "response_format_unsupported": "400",
    "no_chat_template": "400",
    "constrained_output_invalid": "500",
    "invalid_scoring_request": "400",
    "non_finite_logits": "500",
    "invalid_parameter": "400",
    "invalid_feature_index": "SSE error event then `[DONE]`",
    "unsupported_quantization": "400",
    "insufficient_memory": "503",
    "model_load_failed": "500",
    "model_busy": "503",
}
"""The specification's table of general and `/v1` errors: code -> how it is answered."""

NOT_REACHED = {"invalid_feature_index"}
"""Codes of the table that no request can raise; `NOT_SHOWN` in docs/coverage.py says why."""

SERVER_ERRORS = {"model_busy"}
"""Codes whose `type` is `server_error`."""

Error = dict[str, Any]


@dataclass
class Stage:
    """What a case may use."""

    shared: Running
    zoo: Zoo
    patched: pytest.MonkeyPatch

    def refused(self, path: str, **fields: Any) -> tuple[str, Error]:
        status, error = self.zoo.live.v1_error(path, fields)
        return str(status), error


def context_length_exceeded(stage: Stage) -> tuple[str, Error]:
    stage.zoo.load("tiny")
    status, error = stage.refused(EMBED, model="tiny", input="fish " * 300)
    assert error["details"]["max_context_tokens"] == 256
    status, error = stage.refused(TEXT, model="tiny", prompt="fish", max_tokens=256)
    details = error["details"]
    assert details["requested_tokens"] == details["prompt_tokens"] + 256
    assert (details["max_tokens"], details["max_context_tokens"]) == (256, 256)
    return status, error


def model_not_found(stage: Stage) -> tuple[str, Error]:
    return stage.refused(TEXT, model="nobody", prompt="fish")


def queue_full(stage: Stage) -> tuple[str, Error]:
    live = stage.zoo.live
    stage.zoo.empty()
    body = {"model": "tiny", "prompt": "fish", "max_tokens": 2}
    with (
        ThreadPoolExecutor(3) as pool,
        holding(live.service.owners.launcher, "launch_resident") as hold,
    ):
        waiting = [pool.submit(live.http.post, TEXT, json=body) for _ in range(3)]
        while pending(live) < 3:
            pass
        found = stage.refused(TEXT, **body)
        retry = live.http.post(TEXT, json=body).headers["retry-after"]
        assert 1 <= int(retry) <= 60
        hold.open.set()
        assert [answer.result().status_code for answer in waiting] == [200] * 3
    return found


def field_not_honoured(stage: Stage) -> tuple[str, Error]:
    return stage.refused(CHAT, model="tiny", messages=HELLO, logit_bias={"5": 1})


def unused_fields_refused(stage: Stage) -> tuple[str, Error]:
    body = {"model": "tiny", "prompt": "fish", "user": "me"}
    status, error = stage.zoo.live.v1_error(TEXT, body, **{"X-Service-Strict": "1"})
    return str(status), error


def response_format_unsupported(stage: Stage) -> tuple[str, Error]:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}
    return stage.refused(CHAT, model="tiny", messages=HELLO, response_format=schema)


def no_chat_template(stage: Stage) -> tuple[str, Error]:
    body = {"model": "plain", "messages": HELLO, "max_tokens": 1}
    for fields in ({}, {"stream": True}):
        assert stage.refused(CHAT, **body, **fields)[1]["code"] == "no_chat_template"
    return stage.refused(CHAT, **body, logprobs=True)


def constrained_output_invalid(stage: Stage) -> tuple[str, Error]:
    async def disagree(*_: Any) -> str:
        return "$: not what I meant"

    stage.patched.setattr(stage.shared.service.owners.around.checker, "validate", disagree)
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 1}}}
    body = {"model": demo.MODEL_NAME, "messages": HELLO, "response_format": schema}
    status, error = stage.shared.v1_error(CHAT, body)
    return str(status), error


def invalid_scoring_request(stage: Stage) -> tuple[str, Error]:
    fields = {"prompt": "fish", "max_tokens": 1, "allowed_token_ids": [10**6]}
    return stage.refused(TEXT, model="tiny", **fields)


def non_finite_logits(stage: Stage) -> tuple[str, Error]:
    body = {"model": "poisoned", "prompt": f"a {POISON} b", "max_tokens": 1}
    assert stage.refused(TEXT, **body)[1]["code"] == "non_finite_logits"
    *_, error, done = stage.zoo.live.stream(TEXT, body)
    assert (error["error"]["code"], done) == ("non_finite_logits", "[DONE]")
    return stage.refused(TEXT, **body, logprobs=5)


def invalid_parameter(stage: Stage) -> tuple[str, Error]:
    headers = {"X-Service-Load-Policy": "never"}
    body = {"model": "tiny", "messages": HELLO}
    _, error = stage.zoo.live.v1_error(CHAT, body, **headers)
    assert (error["code"], error["param"]) == ("invalid_parameter", "X-Service-Load-Policy")
    return stage.refused(CHAT, **body, steering_intensity=3)


def unsupported_quantization(stage: Stage) -> tuple[str, Error]:
    stage.zoo.load("tiny")
    found = stage.refused(TEXT, model="quarter", prompt="fish")
    assert stage.zoo.resident() == "tiny"
    assert stage.refused(TEXT, model="quarter", prompt="fish") == found
    return found


def insufficient_memory(stage: Stage) -> tuple[str, Error]:
    stage.zoo.empty()
    stage.zoo.renew("large")
    loading = stage.refused(TEXT, model="large", prompt="fish")
    body = {"model": "tiny", "prompt": ["fish"] * 100, "max_tokens": 40, "seed": 1}
    generating = stage.refused(TEXT, **body)
    assert generating[0] == loading[0]
    assert generating[1]["code"] == loading[1]["code"]
    named = {"device", "device_name", "prompt_tokens", "max_new_tokens", "batch_rows"}
    assert named <= set(generating[1]["details"])
    assert generating[1]["details"]["batch_rows"] == 100
    assert generating[1]["details"]["max_new_tokens"] == 40
    answer = stage.zoo.live.http.post(TEXT, json=body)
    assert answer.headers["retry-after"] == "30"
    return loading


def model_load_failed(stage: Stage) -> tuple[str, Error]:
    stage.zoo.renew("damaged")
    stage.zoo.load("tiny")
    found = stage.refused(TEXT, model="damaged", prompt="fish")
    again = stage.refused(EMBED, model="damaged", input="fish")
    assert (again[0], again[1]["code"]) == (found[0], found[1]["code"])
    record = stage.zoo.live.data("GET", f"/api/models/{stage.zoo.ids['damaged']}")
    assert record["status"] == "error"
    assert record["error_message"]
    # nothing is left in the way of another model
    assert stage.zoo.live.post(EMBED, {"model": "tiny", "input": "fish"}).status_code == 200
    return found


def model_busy(stage: Stage) -> tuple[str, Error]:
    live = stage.zoo.live
    stage.zoo.empty()
    with holding(live.service.owners.launcher, "launch_resident") as hold:
        live.data("POST", f"/api/models/{stage.zoo.ids['tiny']}/load", status=202)
        hold.wait()
        found = stage.refused(TEXT, model="plain", prompt="fish")
        answer = live.http.post(TEXT, json={"model": "plain", "prompt": "fish"})
        assert answer.headers["retry-after"] == "15"
    assert live.post(EMBED, {"model": "tiny", "input": "fish"}).status_code == 200
    return found


CASES: dict[str, Callable[[Stage], tuple[str, Error]]] = {
    case.__name__: case
    for case in (
        context_length_exceeded,
        model_not_found,
        queue_full,
        field_not_honoured,
        unused_fields_refused,
        response_format_unsupported,
        no_chat_template,
        constrained_output_invalid,
        invalid_scoring_request,
        non_finite_logits,
        invalid_parameter,
        unsupported_quantization,
        insufficient_memory,
        model_load_failed,
        model_busy,
    )
}


def specified() -> dict[str, str]:
    """Code -> how it is answered, as the specification prints it; the table here where it is not at hand."""
    if not SPECIFICATION.exists():
        return CODES
    text = SPECIFICATION.read_text(encoding="utf-8")
    section = text.partition("### General and `/v1` errors")[2].partition("###")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("|")][2:]
    found = {}
    for _, names, answered, *_ in rows:
        (code,) = {name.lower() for name in re.findall(r"[A-Za-z_]{6,}", names)}
        found[code] = answered.strip()
    return found


def test_the_table_of_codes_is_the_one_in_the_specification_and_each_has_a_case() -> None:
    assert specified() == CODES
    assert set(CASES) == set(CODES) - NOT_REACHED


@pytest.mark.shows(
    "chat-scoring.4",
    "chat-parameters.23",
    "formats.2",
    "general-errors.1",
    "general-errors.2",
    "general-errors.3",
    "general-errors.4",
    "general-errors.5",
    "general-errors.6",
    "general-errors.7",
    "general-errors.8",
    "general-errors.9",
    "general-errors.10",
    "general-errors.11",
    "general-errors.13",
    "general-errors.14",
    "general-errors.15",
    "general-errors.16",
    "retry-after.5",
    "limits.27",
    "versioning.3",
    "model-naming.2",
    "overview.13",
    "resource-errors.1",
    "resource-errors.7",
)
@pytest.mark.parametrize("code", CASES)
def test_a_real_request_is_answered_with_the_code_its_status_and_its_type(
    shared: Running, zoo: Zoo, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    answered, error = CASES[code](Stage(shared, zoo, monkeypatch))
    assert error["code"] == code
    assert answered == CODES[code]
    assert error["type"] == ("server_error" if code in SERVER_ERRORS else "invalid_request_error")
    assert error["message"]
    assert "param" in error


# ---------------------------------------------------------------- a load that fails behind the resident model


def test_a_load_that_fails_once_the_resident_model_left_is_a_failed_load(zoo: Zoo) -> None:
    zoo.renew("large")
    zoo.load("tiny")
    status, error = zoo.live.v1_error(EMBED, {"model": "large", "input": "fish"})
    if zoo.resident() == "tiny":
        assert (status, error["code"]) == (503, "insufficient_memory")
    else:
        assert (status, error["code"]) == (500, "model_load_failed")


# ---------------------------------------------------------------- fields: rules/inference/test_fields.py has the table

BODIES: dict[str, dict[str, object]] = {
    CHAT: {"messages": HELLO, "max_tokens": 2},
    TEXT: {"prompt": "One day", "max_tokens": 2},
    EMBED: {"input": "One day"},
}


@pytest.mark.shows("request-validation.7", "chat-parameters.15")
@pytest.mark.parametrize("path", BODIES)
def test_a_field_that_a_route_cannot_honour_is_refused_before_a_model_is_sought(
    shared: Running, zoo: Zoo, path: str
) -> None:
    body = BODIES[path] | {"logit_bias": {"5": 1}}
    for headers in ({}, {"X-Service-Strict": "true"}, {"X-Service-Strict": "false"}):
        status, error = shared.v1_error(path, {"model": "nobody"} | body, **headers)
        assert (status, error["code"], error["param"]) == (400, "field_not_honoured", "logit_bias")
    if path != EMBED:
        streamed = shared.v1_error(path, {"model": "nobody", "stream": True} | body)
        assert streamed == (status, error)
    zoo.empty()
    status, error = zoo.live.v1_error(path, {"model": "tiny"} | body)
    assert (status, error["code"]) == (400, "field_not_honoured")
    assert zoo.resident() is None
