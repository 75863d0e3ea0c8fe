"""X-Service-Load-Policy and X-Service-Lease on the inference routes: what a request may do to the resident model."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from tests.openai.conftest import Zoo, holding, pending
from tests.resident import standing_still
from tests.service import Running

POLICY = "X-Service-Load-Policy"
LEASE = "X-Service-Lease"
REFUSE = {POLICY: "refuse"}
HELLO = [{"role": "user", "content": "fish"}]
TERMS = {"holder": "nightly", "reason": "evaluation"}
ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 2},
    "/v1/completions": {"prompt": "fish", "max_tokens": 2},
    "/v1/embeddings": {"input": "fish"},
}
ROUTES = list(ASKS)


def ask(live: Running, path: str, model: str, **headers: str) -> httpx2.Response:
    return live.http.post(path, json={"model": model} | ASKS[path], headers=headers)


def refused(live: Running, path: str, model: str, **headers: str) -> tuple[int, dict[str, Any]]:
    return live.v1_error(path, {"model": model} | ASKS[path], **headers)


def retry_after(live: Running, path: str, model: str, **headers: str) -> int:
    answer = ask(live, path, model, **headers)
    assert answer.status_code == 503
    return int(answer.headers["retry-after"])


@pytest.fixture
def tiny(zoo: Zoo) -> Zoo:
    """The models, with `tiny` resident."""
    zoo.load("tiny")
    return zoo


@contextmanager
def loading(zoo: Zoo, name: str) -> Iterator[None]:
    """While open, the model is being loaded into an empty slot."""
    zoo.empty()
    with holding(zoo.live.service.owners.launcher, "launch_resident") as hold:
        zoo.live.data("POST", f"/api/models/{zoo.ids[name]}/load", status=202)
        hold.wait()
        yield
    assert ask(zoo.live, "/v1/embeddings", name).status_code == 200


@contextmanager
def unloading(zoo: Zoo, name: str) -> Iterator[None]:
    """While open, the resident model `name` is being unloaded."""
    zoo.load(name)
    engine = zoo.live.service.owners.conductor.resident.held()
    path = f"/api/models/{zoo.ids[name]}/unload"
    with ThreadPoolExecutor(1) as pool, holding(engine, "stop") as hold:
        gone = pool.submit(zoo.live.data, "POST", path)
        hold.wait()
        yield
        hold.open.set()
        assert gone.result()["status"] == "ready"


@contextmanager
def leased(zoo: Zoo, name: str) -> Iterator[str]:
    """While open, somebody holds the lease of the resident model `name`; its id."""
    path = f"/api/models/{zoo.ids[name]}/lease"
    lease = zoo.live.data("POST", path, TERMS, 201)["lease_id"]
    yield lease
    zoo.live.http.delete(path, headers={LEASE: lease})


@contextmanager
def locked(zoo: Zoo, name: str) -> Iterator[None]:
    """While open, the resident model `name` is locked."""
    path = f"/api/models/{zoo.ids[name]}"
    zoo.live.data("POST", f"{path}/lock")
    try:
        yield
    finally:
        zoo.live.data("POST", f"{path}/unlock")


# ---------------------------------------------------------------- refuse


@pytest.mark.shows("load-policy.1", "load-policy.2")
@pytest.mark.parametrize("path", ROUTES)
def test_refuse_serves_the_resident_model_as_usual(tiny: Zoo, path: str) -> None:
    assert ask(tiny.live, path, "tiny", **{POLICY: "Refuse"}).status_code == 200


@pytest.mark.shows("load-policy.1", "load-policy.3", "model-errors.9")
@pytest.mark.parametrize("path", ROUTES)
def test_refuse_names_the_model_asked_for_and_the_resident_one_and_loads_nothing(
    tiny: Zoo, path: str
) -> None:
    answer = ask(tiny.live, path, "plain", **REFUSE)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "model_not_resident")
    assert error["type"] == "invalid_request_error"
    assert (error["details"]["requested_model"], error["details"]["resident_model"]) == (
        "plain",
        "tiny",
    )
    assert answer.headers["x-should-retry"] == "false"
    assert tiny.resident() == "tiny"
    assert tiny.status("plain") == "ready"


@pytest.mark.shows("load-policy.3")
def test_refuse_says_none_where_no_model_is_resident(zoo: Zoo) -> None:
    zoo.empty()
    status, error = refused(zoo.live, ROUTES[0], "tiny", **REFUSE)
    assert (status, error["code"]) == (409, "model_not_resident")
    assert error["details"]["resident_model"] == "none"
    assert zoo.resident() is None


@pytest.mark.shows("formats.3")
def test_refuse_streams_are_refused_before_they_begin(tiny: Zoo) -> None:
    for path in ROUTES[:2]:
        body = {"model": "plain", "stream": True} | ASKS[path]
        status, error = tiny.live.v1_error(path, body, **REFUSE)
        assert (status, error["code"]) == (409, "model_not_resident")


@pytest.mark.shows("load-policy.4", "retry-after.3", "model-errors.13")
def test_refuse_while_the_model_is_being_loaded_asks_to_come_back(zoo: Zoo) -> None:
    with loading(zoo, "tiny"):
        for path in ROUTES:
            status, error = refused(zoo.live, path, "tiny", **REFUSE)
            assert (status, error["code"]) == (503, "model_loading")
            assert retry_after(zoo.live, path, "tiny", **REFUSE) == 15
            status, error = refused(zoo.live, path, "plain", **REFUSE)
            assert (status, error["code"]) == (409, "model_not_resident")
    assert zoo.resident() == "tiny"


# ---------------------------------------------------------------- auto


@pytest.mark.shows("load-policy.5")
def test_auto_loads_the_model(zoo: Zoo) -> None:
    zoo.empty()
    assert ask(zoo.live, "/v1/embeddings", "bert", **{POLICY: "auto"}).status_code == 200
    assert zoo.resident() == "bert"


@pytest.mark.shows("retry-after.3", "general-errors.16")
def test_auto_waits_for_a_model_that_is_being_loaded_and_is_busy_for_another(zoo: Zoo) -> None:
    with ThreadPoolExecutor(1) as pool, loading(zoo, "tiny"):
        waiting = pool.submit(ask, zoo.live, ROUTES[0], "tiny")
        while not pending(zoo.live):
            pass
        for path in ROUTES:
            status, error = refused(zoo.live, path, "plain")
            assert (status, error["code"], error["type"]) == (503, "model_busy", "server_error")
            assert retry_after(zoo.live, path, "plain") == 15
        assert not waiting.done()
    assert waiting.result().status_code == 200
    assert zoo.resident() == "tiny"


# ---------------------------------------------------------------- any other value


@pytest.mark.shows("load-policy.6", "general-errors.11")
@pytest.mark.parametrize("path", ROUTES)
def test_any_other_value_is_refused_by_the_header(tiny: Zoo, path: str) -> None:
    for model, expected in (
        ("tiny", (400, "invalid_parameter", POLICY)),
        ("plain", (400, "invalid_parameter", POLICY)),
        ("nobody", (404, "model_not_found", "model")),
    ):
        status, error = refused(tiny.live, path, model, **{POLICY: "never"})
        assert (status, error["code"], error["param"]) == expected
    assert tiny.resident() == "tiny"


# ---------------------------------------------------------------- what comes first


@pytest.mark.shows("load-policy.7")
def test_other_refusals_come_before_that_of_the_policy(tiny: Zoo) -> None:
    live = tiny.live
    for path in ROUTES:
        status, error = refused(live, path, "nobody", **REFUSE)
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    for path in ROUTES[:2]:
        status, error = refused(live, path, "bert", **REFUSE)
        assert (status, error["code"], error["param"]) == (400, "invalid_parameter", "model")
    status, error = refused(live, "/v1/embeddings", "bert", **REFUSE)
    assert (status, error["code"]) == (409, "model_not_resident")
    chat = {"model": "plain"} | ASKS[ROUTES[0]]
    for fields, expected in (
        ({"tools": [{"type": "function"}]}, (400, "field_not_honoured")),
        ({"temperature": 3}, (400, "invalid_parameter")),
        ({"profile": "nobody's"}, (404, "profile_not_found")),
    ):
        status, error = live.v1_error(ROUTES[0], chat | fields, **REFUSE)
        assert (status, error["code"]) == expected
    assert tiny.resident() == "tiny"


@contextmanager
def full(zoo: Zoo) -> Iterator[None]:
    """While open, three requests of the resident model `tiny` fill the queue."""
    with ThreadPoolExecutor(3) as pool:
        with standing_still(zoo.live):
            answers = [pool.submit(ask, zoo.live, ROUTES[1], "tiny") for _ in range(3)]
            while pending(zoo.live) < 3:
                pass
            yield
        assert [answer.result().status_code for answer in answers] == [200] * 3


def test_a_full_queue_hides_no_refusal_that_waiting_does_not_change(tiny: Zoo) -> None:
    def code(model: str, **headers: str) -> str:
        return str(refused(tiny.live, ROUTES[0], model, **headers)[1]["code"])

    with full(tiny):
        assert code("plain", **REFUSE) == "model_not_resident"
        assert code("plain") == code("tiny", **REFUSE) == "queue_full"
    with leased(tiny, "tiny"), full(tiny):
        assert code("plain") == "model_leased"
    with locked(tiny, "tiny"), full(tiny):
        assert code("plain") == "model_locked"


# ---------------------------------------------------------------- an unload, a lock, a lease


@pytest.mark.shows("general-errors.16", "retry-after.3", "states.4", "model-errors.6")
def test_every_request_during_an_unload_is_told_to_come_back_soon(zoo: Zoo) -> None:
    with unloading(zoo, "tiny"):
        for path in ROUTES:
            for headers in ({}, REFUSE):
                status, error = refused(zoo.live, path, "tiny", **headers)
                assert (status, error["code"], error["type"]) == (
                    503,
                    "model_busy",
                    "server_error",
                )
                assert retry_after(zoo.live, path, "tiny", **headers) == 5
            status, error = refused(zoo.live, path, "plain")
            assert (status, error["code"]) == (503, "model_busy")
            assert retry_after(zoo.live, path, "plain") == 5
    assert zoo.resident() is None
    assert ask(zoo.live, "/v1/embeddings", "tiny").status_code == 200


@pytest.mark.shows("inference.6", "overview.10", "states.5")
def test_a_locked_model_is_not_replaced_and_serves(tiny: Zoo) -> None:
    with locked(tiny, "tiny"):
        for route in ROUTES:
            answer = ask(tiny.live, route, "plain")
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "model_locked")
            assert answer.headers["x-should-retry"] == "false"
            assert ask(tiny.live, route, "tiny").status_code == 200
            status, error = refused(tiny.live, route, "plain", **REFUSE)
            assert (status, error["code"]) == (409, "model_not_resident")
        assert [m["id"] for m in tiny.live.http.get("/v1/models").json()["data"]] == ["tiny"]


@pytest.mark.shows("load-policy.8")
def test_a_leased_model_is_replaced_by_its_holder_only(tiny: Zoo) -> None:
    with leased(tiny, "tiny") as lease:
        for path in ROUTES:
            for headers in ({}, {LEASE: "lease_of_somebody_else"}):
                answer = ask(tiny.live, path, "plain", **headers)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (409, "model_leased")
                assert answer.headers["x-should-retry"] == "false"
                assert error["details"]["holder"] == "nightly"
                assert lease not in answer.text
            assert ask(tiny.live, path, "tiny").status_code == 200
        assert ask(tiny.live, "/v1/embeddings", "plain", **{LEASE: lease}).status_code == 200
    assert tiny.resident() == "plain"
