"""The access log, the ids of requests, and the Server-Timing header."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from steerserve import demo
from steerserve.app import meter
from steerserve.nouns import registry
from steerserve.rules import changes
from tests.conftest import Start
from tests.service import Running, add_model, add_sae, load_demo

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SECRET = "a very private sentence"
PHASES = {"queue", "prefill", "decode"}
NEW_ID = re.compile(r"req_[0-9a-f]{24}")


class Lines:
    """Keeps the access lines, by level."""

    def __init__(self) -> None:
        self.has_line = threading.Event()
        self.info_lines: list[dict[str, Any]] = []
        self.debug_lines: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        assert event == "request"
        self.info_lines.append(fields)
        self.has_line.set()

    def debug(self, event: str, **fields: Any) -> None:
        assert event == "request"
        self.debug_lines.append(fields)

    def one(self) -> dict[str, Any]:
        """The only line since the last call. The line of a streamed request is written after its last byte was sent."""
        assert self.has_line.wait(30)
        self.has_line.clear()
        (line,) = self.info_lines
        self.info_lines.clear()
        return line


@pytest.fixture
def lines(shared: Running, monkeypatch: pytest.MonkeyPatch) -> Lines:
    kept = Lines()
    monkeypatch.setattr(meter, "log", kept)
    return kept


def asking(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": SECRET}]
    return {
        "model": demo.MODEL_NAME,
        "messages": messages,
        "max_tokens": 16,
        "temperature": 0,
    } | fields


def timed(header: str) -> dict[str, float]:
    """Name -> milliseconds of a Server-Timing header."""
    parts = (part.split(";dur=") for part in header.split(", "))
    return {name: float(milliseconds) for name, milliseconds in parts}


def test_an_answer_leaves_one_line_with_its_times_and_tokens(shared: Running, lines: Lines) -> None:
    answer = shared.post(CHAT, asking())
    line = lines.one()
    assert (line["method"], line["route"], line["status"]) == ("POST", CHAT, 200)
    assert (line["model"], line["stream"]) == (demo.MODEL_NAME, False)
    usage = answer.json()["usage"]
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == usage["completion_tokens"]
    assert all(line[f"{phase}_ms"] >= 0 for phase in PHASES)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert "code" not in line
    assert SECRET not in str(line)
    assert answer.json()["choices"][0]["message"]["content"] not in str(line)


def test_an_answer_that_is_not_streamed_tells_its_times_in_a_header(
    shared: Running, lines: Lines
) -> None:
    header = timed(shared.post(CHAT, asking()).headers["server-timing"])
    assert set(header) == PHASES | {"total"}
    assert header["total"] >= max(header[phase] for phase in PHASES)
    scored = shared.post(
        TEXT, {"model": demo.MODEL_NAME, "prompt": "a", "max_tokens": 1, "logprobs": 1}
    )
    assert set(timed(scored.headers["server-timing"])) == {"queue", "prefill", "total"}
    listed = shared.http.get("/api/models")
    assert set(timed(listed.headers["server-timing"])) == {"total"}
    assert "service" not in shared.post(CHAT, asking()).json()


@pytest.mark.shows("request-activations.8")
def test_a_stream_that_asks_for_its_usage_has_no_service_key_and_its_times_are_logged(
    shared: Running, lines: Lines
) -> None:
    body = asking(stream=True, stream_options={"include_usage": True})
    with shared.http.stream("POST", CHAT, json=body) as answer:
        assert "server-timing" not in answer.headers
        assert answer.headers["x-request-id"]
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    *chunks, done = events
    assert done == "[DONE]"
    assert not any("service" in json.loads(chunk) for chunk in chunks)
    line = lines.one()
    assert all(line[f"{phase}_ms"] >= 0 for phase in PHASES)
    assert (line["status"], line["stream"]) == (200, True)
    assert line["completion_tokens"] == json.loads(chunks[-1])["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "route"),
    [
        ("POST", CHAT, asking(model="nobody"), 404, "MODEL_NOT_FOUND", CHAT),
        ("POST", CHAT, asking(tools=[{}]), 400, "FIELD_NOT_HONOURED", CHAT),
        ("POST", CHAT, asking(max_tokens=10**6), 400, "CONTEXT_LENGTH_EXCEEDED", CHAT),
        ("GET", "/api/models/999999", None, 404, "MODEL_NOT_FOUND", "/api/models/{model_id}"),
        ("GET", f"/nowhere/{SECRET}", None, 404, "NOT_FOUND", "unknown"),
    ],
)
def test_a_refusal_leaves_one_line_with_its_code(
    shared: Running,
    lines: Lines,
    method: str,
    path: str,
    body: Any,
    status: int,
    code: str,
    route: str,
) -> None:
    answer = shared.http.request(method, path, json=body)
    assert answer.status_code == status
    line = lines.one()
    assert (line["status"], line["code"], line["route"]) == (status, code, route)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert SECRET not in str(line)


def test_what_stands_before_every_route_leaves_a_line_too(shared: Running, lines: Lines) -> None:
    answer = shared.http.get("/api/models", headers={"host": "elsewhere.example"})
    assert answer.status_code == 403
    assert lines.one()["code"] == "FORBIDDEN_ORIGIN"
    assert NEW_ID.fullmatch(answer.headers["x-request-id"])


def test_a_probe_that_succeeds_is_a_line_for_debugging(shared: Running, lines: Lines) -> None:
    shared.data("GET", "/api/health")
    assert not lines.info_lines
    (line,) = lines.debug_lines
    assert (line["route"], line["status"]) == ("/api/health", 200)
    shared.error("POST", "/api/health/circuits/nobody/reset")
    assert lines.one()["status"] == 404


@pytest.mark.parametrize("wanted", ["abc", "a-b_c.1:2/3+4=5@6", "x" * 128])
def test_the_id_of_a_client_is_given_back(shared: Running, lines: Lines, wanted: str) -> None:
    answer = shared.http.get("/api/models", headers={"x-request-id": wanted})
    assert answer.headers["x-request-id"] == wanted
    assert lines.one()["request_id"] == wanted


@pytest.mark.parametrize("wanted", ["", "x" * 129, "two words", "a\tb", "a;b", 'quote"', "<b>"])
def test_a_bad_id_is_replaced(shared: Running, lines: Lines, wanted: str) -> None:
    answer = shared.http.get("/v1/models", headers={"x-request-id": wanted})
    assert NEW_ID.fullmatch(answer.headers["x-request-id"])


# ------------------------------------------------------------------ who changed what

KEY = "a-key-of-a-person"
WHO = {"authorization": f"Bearer {KEY}"}


def test_every_request_that_changes_something_has_a_name_in_the_log(shared: Running) -> None:
    routes = [route for route in shared.service.api.routes if isinstance(route, Route)]
    questions = changes.QUESTIONS.union(*(noun.questions for noun in registry.nouns().values()))
    asked = {
        (method, route.path)
        for route in routes
        if route.include_in_schema and route.path.startswith("/api/")
        for method in (route.methods or set()) - {"GET", "HEAD"}
        if route.path not in questions
    }
    assert asked == set(registry.actions())


def logged(live: Running, event: str, count: int) -> list[dict[str, Any]]:
    """The fields of the lines of an event, once there are so many. A line is written after its answer was sent."""
    while True:
        answer = live.http.get("/api/health/log?limit=500", headers=WHO).json()
        lines = answer["data"]["lines"]
        found = [line["fields"] for line in lines if line["event"] == event]
        if len(found) >= count:
            return found


@pytest.mark.timeout(120)
def test_each_change_is_a_line_with_who_did_it_and_how_it_ended(start: Start) -> None:
    with start(api_keys=[KEY], local_paths=[demo.DATA]) as live:
        live.http.headers.update(WHO)
        model_id = load_demo(live)
        body = {"holder": "alice", "reason": SECRET}
        lease = live.data("POST", f"/api/models/{model_id}/lease", body, 201)["lease_id"]
        assert live.error("POST", f"/api/models/{model_id}/lease", body)[0] == 409
        live.data("POST", f"/api/models/{model_id}/lock")
        sae_id = add_sae(live, demo.saes()[0])
        live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": demo.saes()[0].layer})
        live.data("POST", "/api/saes/steering/batch", {"steering": {"90": 52.5, "7": -1}})
        live.error("DELETE", f"/api/saes/{SECRET}")
        found = logged(live, "change", 9)
        told = [(line["action"], line["result"]) for line in found]
        assert told == [
            ("model_add", "begun"),
            ("model_load", "done"),
            ("lease_grant", "done"),
            ("lease_grant", "MODEL_LEASED"),
            ("model_lock", "done"),
            ("sae_add", "begun"),
            ("sae_attach", "done"),
            ("steering_set", "done"),
            ("sae_delete", "SAE_NOT_FOUND"),
        ]
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        assert {line["client"] for line in found} == {"127.0.0.1"}
        assert {line["key"] for line in found} == {digest[:8]}
        assert all(NEW_ID.fullmatch(line["request_id"]) for line in found)
        assert {line["model_id"] for line in found[:5]} == {str(model_id), model_id}
        assert (found[5]["sae_id"], found[6]["layer"]) == (sae_id, demo.saes()[0].layer)
        assert (found[7]["features"], found[7]["values"]) == (2, ["90: 52.5", "7: -1"])
        assert not any(secret in str(found) for secret in (SECRET, lease, KEY))


def test_a_request_that_exchanges_the_model_leaves_a_line(start: Start, tmp_path: Path) -> None:
    other = tmp_path / "second"
    shutil.copytree(demo.MODEL_DIR, other)
    with start() as live:
        model_id = load_demo(live)
        second = add_model(live, other, "second")
        body = {"model": "second", "prompt": "a", "max_tokens": 1}
        answer = live.post(TEXT, body)
        swap = logged(live, "change", 4)[3]
        assert (swap["action"], swap["client"]) == ("model_swap", "127.0.0.1")
        assert (swap["model_id"], swap["replaced_id"]) == (second, model_id)
        assert swap["request_id"] == answer.headers["x-request-id"]
        assert {line["client"] for line in logged(live, "request", 4)} == {"127.0.0.1"}
