"""The access log, the ids of requests, and the Server-Timing header."""

from __future__ import annotations

import json
import logging
import re
import threading
from typing import Any

import pytest

from steerserve import demo, log, meter
from tests.service import Running

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


def test_a_stream_that_asks_for_its_usage_gets_its_times_in_its_last_chunk(
    shared: Running, lines: Lines
) -> None:
    body = asking(stream=True, stream_options={"include_usage": True})
    with shared.http.stream("POST", CHAT, json=body) as answer:
        assert "server-timing" not in answer.headers
        assert answer.headers["x-request-id"]
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    *chunks, done = events
    assert done == "[DONE]"
    services = [json.loads(chunk).get("service") for chunk in chunks]
    assert services[:-1] == [None] * (len(chunks) - 1)
    assert set(services[-1]["timing"]) == {f"{phase}_ms" for phase in PHASES}
    line = lines.one()
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


def test_lines_of_the_server_have_no_coloured_copy(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        log.configure("INFO", "json")
        colour = {"color_message": "\x1b[36mStarted\x1b[0m"}
        logging.getLogger("uvicorn.error").info("Started", extra=colour)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "Started"
    assert "color_message" not in line
