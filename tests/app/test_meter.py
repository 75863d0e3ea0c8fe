"""The counters of the outermost layer, and the Retry-After header of every 503."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steerserve import demo
from steerserve.app.meter import Meter
from steerserve.control.health.turns import LoopWatch
from steerserve.control.metrics import Metrics
from tests.conftest import Start
from tests.resident import crash, kill_engine
from tests.service import Running, load_demo, running
from tests.waiting import soon, until


@pytest.fixture
def live(start: Start) -> Iterator[Running]:
    with start() as made:
        yield made


def total(live: Running, series: str, **labels: str) -> float:
    return live.service.owners.metrics.total(series, **labels)


def test_requests_are_counted_under_their_routes(live: Running) -> None:
    model_id = load_demo(live)
    live.complete("One day", max_tokens=2)
    live.stream("/v1/completions", {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 2})
    live.data("GET", f"/api/models/{model_id}")
    assert live.http.get("/nowhere/at/all").status_code == 404
    assert live.v1_error("/v1/completions", {"model": "x", "prompt": "a"})[0] == 404
    route = "/v1/completions"
    assert total(live, "requests_total", route=route, status="200") == 2
    assert total(live, "requests_total", route=route, status="404") == 1
    assert total(live, "requests_total", route="/api/models/{model_id}", status="200") == 1
    assert total(live, "requests_total", route="unknown", status="404") == 1
    assert total(live, "request_duration_seconds_count", route=route, stream="true") == 1
    assert total(live, "request_duration_seconds_count", route=route, stream="false") == 2
    assert total(live, "request_errors_total", code="MODEL_NOT_FOUND") == 1
    assert total(live, "requests_active") == 0


def test_probes_of_health_are_not_counted(live: Running) -> None:
    before = total(live, "requests_total")
    live.data("GET", "/api/health")
    live.error("POST", "/api/health/circuits/nobody/reset")
    assert total(live, "requests_total") == before
    assert total(live, "request_errors_total") == 0


def test_the_refusal_of_a_question_that_nobody_clicked_is_not_counted(live: Running) -> None:
    for headers, counted in [({"x-service-background": "1"}, 0), ({}, 1)]:
        answer = live.http.get("/api/models/4711", headers=headers)
        assert answer.status_code == 404
        assert total(live, "request_errors_total", code="MODEL_NOT_FOUND") == counted
    assert live.data("GET", "/api/health/metrics")["request_errors"] == 1


def test_what_the_guards_refuse_is_counted_too(live: Running) -> None:
    answer = live.http.get("/api/models", headers={"host": "elsewhere.example"})
    assert answer.status_code == 403
    assert total(live, "requests_total", status="403") == 1
    assert total(live, "request_errors_total", code="FORBIDDEN_ORIGIN") == 1


@pytest.mark.local("a replica that ends is started again while its model stays loaded")
def test_what_fails_inside_a_stream_is_counted_by_its_code(live: Running) -> None:
    load_demo(live)
    many = {
        "model": demo.MODEL_NAME,
        "prompt": ["One day"] * 32,
        "max_tokens": 700,
        "temperature": 2.0,
        "stream": True,
    }
    with live.http.stream("POST", "/v1/completions", json=many) as answer:
        lines = answer.iter_lines()
        next(lines)
        kill_engine(live)
        assert "engine_unavailable" in "".join(lines)
    assert total(live, "request_errors_total", code="ENGINE_UNAVAILABLE") == 1


async def asked(app: ASGIApp, sent: list[Message], scope: Scope | None = None) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    plain = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    await app(scope or plain, receive, send)


async def test_a_request_is_active_until_its_answer_has_ended() -> None:
    metrics, going_on = Metrics(), asyncio.Event()

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await going_on.wait()

    sent: list[Message] = []
    answering = asyncio.ensure_future(asked(Meter(inner, metrics, LoopWatch()), sent))
    await until(lambda: sent)
    assert metrics.total("requests_active") == 1
    assert metrics.total("requests_total") == 0
    going_on.set()
    await soon(answering)
    assert metrics.total("requests_active") == 0
    assert metrics.total("requests_total", route="unknown", status="200") == 1


async def test_a_request_that_ends_without_an_answer_is_counted_as_left() -> None:
    metrics = Metrics()

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        raise OSError("the client is gone")

    with pytest.raises(OSError, match="gone"):
        await asked(Meter(inner, metrics, LoopWatch()), [])
    assert metrics.total("requests_total", status="499") == 1
    assert metrics.total("requests_active") == 0


async def test_what_is_no_request_passes_uncounted() -> None:
    metrics, seen = Metrics(), []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    await asked(Meter(inner, metrics, LoopWatch()), [], {"type": "websocket", "path": "/v1/x"})
    assert (seen, metrics.total("requests_total")) == (["websocket"], 0)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with routes that answer 503: from the framework, and with the time that the query names."""

    async def broken(_: Request) -> Response:
        raise HTTPException(503, "the framework refuses")

    async def timed(request: Request) -> Response:
        return PlainTextResponse("no", 503, headers={"retry-after": request.query_params["time"]})

    with running(tmp_path_factory.mktemp("refusing")) as live:
        for path in ("/api/broken", "/v1/broken"):
            live.service.api.add_route(path, broken)
        live.service.api.add_route("/timed", timed)
        yield live


@pytest.mark.shows("retry-after.1", "retry-after.8")
@pytest.mark.parametrize("path", ["/api/broken", "/v1/broken"])
def test_a_503_that_no_code_timed_says_when_to_come_back(
    refusing: Running, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = refusing.http.get(path)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "10"
    assert answer.json()["error"]["message"] == "the framework refuses"
    (warned,) = [line for line in caplog.messages if "retry_after_defaulted" in line]
    assert path in warned


@pytest.mark.shows("retry-after.1")
@pytest.mark.parametrize("time", ["0", "-3", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT", ""])
def test_a_503_whose_time_is_no_whole_second_gets_one(refusing: Running, time: str) -> None:
    answer = refusing.http.get("/timed", params={"time": time})
    assert answer.headers.get_list("retry-after") == ["10"]


def test_a_503_that_has_its_time_keeps_it(
    refusing: Running, caplog: pytest.LogCaptureFixture
) -> None:
    assert refusing.http.get("/timed", params={"time": "7"}).headers["retry-after"] == "7"
    assert "retry_after_defaulted" not in caplog.text


@pytest.mark.local("a replica that ends is started again while its model stays loaded")
def test_lines_of_work_in_the_background_name_no_request(live: Running) -> None:
    model_id = load_demo(live)
    live.data("POST", f"/api/models/{model_id}/unload")
    mine = {"x-request-id": "mine"}
    loaded = live.http.post(f"/api/models/{model_id}/load?wait=true", headers=mine)
    assert loaded.status_code == 200
    crash(live)
    lines = live.data("GET", "/api/health/log")["lines"]
    of_requests = {"request", "change"}
    named = {line["event"] for line in lines if line["fields"].get("request_id") == "mine"}
    assert named == of_requests
    (ended,) = (line for line in lines if line["event"] == "engine_ended")
    assert ended["fields"].keys() == {"model", "reason"}
