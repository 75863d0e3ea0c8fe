"""/api/models/{id}/lease, and what a lease does to the other routes, against a running service."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from steerserve import demo
from tests.conftest import Start
from tests.service import JSON, Running, add_model, load_demo

TERMS = {"holder": "nightly", "reason": "evaluation of the month"}
STATUS = {
    "model_id",
    "model_name",
    "holder",
    "reason",
    "acquired_at",
    "renewed_at",
    "expires_at",
    "ttl_seconds",
    "seconds_remaining",
}
WRONG = "lease_of_somebody_else"


def call(live: Running, method: str, path: str, body: Any = None, lease: str | None = None) -> Any:
    headers = {"X-Service-Lease": lease} if lease is not None else {}
    return live.http.request(method, path, json=body, headers=headers)


def refusal(answer: httpx2.Response) -> tuple[int, str, dict[str, Any]]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["details"]


def seconds_between(first: str, second: str) -> float:
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


@pytest.fixture
def model(shared: Running) -> int:
    """The id of the resident model of the shared service."""
    return int(shared.data("GET", "/api/models")["loaded_model_id"])


@pytest.fixture
def path(model: int) -> str:
    return f"/api/models/{model}/lease"


@pytest.fixture
def lease_id(shared: Running, path: str) -> Iterator[str]:
    """A live lease of the resident model; released afterwards."""
    made = shared.data("POST", path, TERMS, 201)
    yield made["lease_id"]
    call(shared, "DELETE", path, lease=made["lease_id"])


# ---------------------------------------------------------------------- the routes


@pytest.mark.shows(
    "lease-record.2 lease-record.3 lease-record.6 lease-record.8 lease-record.9 overview.11",
    "models.11 models.12 models.13 models.14 models.32 models.39 models.40 states.16 states.17",
    "states.18 model-errors.11",
)
def test_a_lease_lives_from_its_grant_to_its_release(
    shared: Running, model: int, path: str
) -> None:
    answer = shared.http.post(path, json=TERMS | {"ttl_seconds": 60})
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    granted = answer.json()["data"]
    assert set(granted) == STATUS | {"lease_id"}
    lease_id = granted.pop("lease_id")
    assert (granted["model_id"], granted["model_name"]) == (model, demo.MODEL_NAME)
    assert {key: granted[key] for key in TERMS} == TERMS
    assert (granted["ttl_seconds"], granted["seconds_remaining"]) == (60, 60)
    assert granted["renewed_at"] is None
    assert seconds_between(granted["acquired_at"], granted["expires_at"]) == 60
    assert granted["acquired_at"].endswith("Z")

    read = shared.data("GET", path)
    assert set(read) == {"lease", "last_ended"}
    assert read["lease"] | {"seconds_remaining": 60} == granted

    renewed = call(shared, "POST", path + "/renew", {"ttl_seconds": 30}, lease_id).json()["data"]
    assert set(renewed) == STATUS
    assert renewed["acquired_at"] == granted["acquired_at"]
    assert seconds_between(renewed["renewed_at"], renewed["expires_at"]) == 30
    assert renewed["expires_at"] < granted["expires_at"]
    assert renewed["ttl_seconds"] == 30

    ended = call(shared, "DELETE", path, lease=lease_id).json()["data"]
    assert ended["end_reason"] == "released"
    assert {"model_id", "model_name", "holder", "reason", "acquired_at", "expires_at"} <= set(ended)
    assert ended["ended_at"].endswith("Z")
    assert shared.data("GET", path) == {"lease": None, "last_ended": ended}

    for answer in (
        call(shared, "POST", path + "/renew", lease=lease_id),
        call(shared, "DELETE", path, lease=lease_id),
    ):
        status, code, details = refusal(answer)
        assert (status, code, details["end_reason"]) == (409, "LEASE_EXPIRED", "released")


@pytest.mark.shows("models.13", "models.29", "models.30", "limits.5")
def test_the_time_is_7200_seconds_unless_named_also_for_a_renewal(
    shared: Running, path: str
) -> None:
    granted = shared.data("POST", path, TERMS | {"ttl_seconds": 60}, 201)
    for content in (b"", b"{}", b'{"ttl_seconds": null}', b"null"):
        answer = shared.http.post(
            path + "/renew",
            content=content,
            headers=JSON | {"X-Service-Lease": granted["lease_id"]},
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"]["ttl_seconds"] == 7200
    call(shared, "DELETE", path, lease=granted["lease_id"])
    granted = shared.data("POST", path, TERMS, 201)
    assert granted["ttl_seconds"] == granted["seconds_remaining"] == 7200
    call(shared, "DELETE", path, lease=granted["lease_id"])


@pytest.mark.shows(
    "lease-record.4 lease-record.5 lease-record.7 models.29 models.30 models.37 limits.4",
    "limits.5 model-errors.12",
)
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (None, "holder"),
        ([], "body"),
        (TERMS | {"holder": "h" * 129}, "holder"),
        (TERMS | {"holder": "\ud800"}, "holder"),
        (TERMS | {"reason": "r" * 513}, "reason"),
        (TERMS | {"ttl_seconds": 7201}, "ttl_seconds"),
        (TERMS | {"owner": "me"}, "owner"),
    ],
)
def test_a_bad_grant_is_refused_before_the_model_is_looked_for(
    shared: Running, path: str, body: Any, param: str
) -> None:
    for where in (path, "/api/models/999/lease"):
        answer = shared.http.post(where, content=json.dumps(body), headers=JSON)
        status, code, details = refusal(answer)
        assert (status, code, details["param"]) == (400, "INVALID_LEASE_REQUEST", param)
    assert shared.data("GET", path)["lease"] is None


@pytest.mark.shows("models.30", "models.39", "limits.5")
def test_a_bad_renewal_is_refused_and_changes_nothing(
    shared: Running, path: str, lease_id: str
) -> None:
    before = shared.data("GET", path)["lease"]["expires_at"]
    for body, param in (({"ttl_seconds": 0}, "ttl_seconds"), (TERMS, "holder"), ([], "body")):
        status, code, details = refusal(call(shared, "POST", path + "/renew", body, lease_id))
        assert (status, code, details["param"]) == (400, "INVALID_LEASE_REQUEST", param)
    assert shared.data("GET", path)["lease"]["expires_at"] == before


@pytest.mark.shows("models.35", "model-errors.12")
@pytest.mark.parametrize("header", [None, "", "x" * 201])
def test_renew_and_release_need_their_header(
    shared: Running, path: str, lease_id: str, header: str | None
) -> None:
    for answer in (
        call(shared, "POST", path + "/renew", {"ttl_seconds": 0}, header),
        call(shared, "DELETE", path, lease=header),
    ):
        status, code, details = refusal(answer)
        assert (status, code, details["param"]) == (400, "INVALID_LEASE_REQUEST", "X-Service-Lease")
    assert shared.data("GET", path)["lease"] is not None


@pytest.mark.shows("models.34 models.39 models.40 states.17 states.18 model-errors.10")
def test_an_unknown_id_and_the_id_of_another_model_are_not_found(
    shared: Running, path: str, lease_id: str
) -> None:
    for where, lease in ((path, WRONG), ("/api/models/999/lease", lease_id)):
        for answer in (
            call(shared, "POST", where + "/renew", lease=lease),
            call(shared, "DELETE", where, lease=lease),
        ):
            assert refusal(answer)[:2] == (404, "LEASE_NOT_FOUND")
            assert "restart" in answer.json()["error"]["message"]


@pytest.mark.shows("models.37", "models.38")
def test_an_unknown_model_has_no_lease(shared: Running) -> None:
    assert shared.error("GET", "/api/models/999/lease")[:2] == (404, "MODEL_NOT_FOUND")
    assert shared.error("POST", "/api/models/999/lease", TERMS)[:2] == (404, "MODEL_NOT_FOUND")


@pytest.mark.shows("queue-block.16", "health.3")
def test_a_lease_is_seen_in_the_records_and_in_the_health(
    shared: Running, model: int, path: str, lease_id: str
) -> None:
    lease = shared.data("GET", path)["lease"]
    for seen in (
        shared.data("GET", "/api/health/detailed")["lease"],
        shared.data("GET", f"/api/models/{model}")["lease"],
        next(m for m in shared.data("GET", "/api/models")["models"] if m["id"] == model)["lease"],
    ):
        assert seen | {"seconds_remaining": 0} == lease | {"seconds_remaining": 0}
        assert 7100 < seen["seconds_remaining"] <= 7200


# ---------------------------------------------------------------------- a service with two models


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return shutil.copytree(demo.MODEL_DIR, tmp_path / "other")


def ask_other(live: Running, lease: str | None = None, **headers: str) -> httpx2.Response:
    body = {"model": "other", "prompt": "One day", "max_tokens": 1}
    if lease is not None:
        headers["X-Service-Lease"] = lease
    return live.http.post("/v1/completions", json=body, headers=headers)


@pytest.mark.shows(
    "load-policy.8 lease-record.9 overview.11 models.22 models.23 models.31 models.33 models.36",
    "models.37 states.20 model-errors.8 model-errors.9 model-errors.11",
)
def test_a_lease_stands_against_every_swap_but_the_holders(bare: Running, other: Path) -> None:
    first, second = load_demo(bare), add_model(bare, other)
    path = f"/api/models/{first}/lease"
    status, code, details = bare.error("POST", f"/api/models/{second}/lease", TERMS)
    assert (status, code) == (409, "MODEL_NOT_RESIDENT")
    assert details["resident_model"] == demo.MODEL_NAME
    lease_id = bare.data("POST", path, TERMS, 201)["lease_id"]
    bare.data("POST", f"/api/models/{first}/lock")

    answer = ask_other(bare)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "model_leased")
    assert answer.headers["x-should-retry"] == "false"
    assert error["details"]["operation"] == "swap"
    answer = ask_other(bare, lease_id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "model_locked")
    bare.data("POST", f"/api/models/{first}/unlock")

    for lease in (None, WRONG):
        assert ask_other(bare, lease).json()["error"]["code"] == "model_leased"
        for tail, target, operation in (
            (f"{second}/load", second, "load"),
            (f"{first}/unload", first, "unload"),
        ):
            answer = call(bare, "POST", f"/api/models/{tail}", lease=lease)
            status, code, details = refusal(answer)
            assert (status, code) == (409, "MODEL_LEASED")
            assert {key: details[key] for key in TERMS} == TERMS
            assert details["expires_at"].endswith("Z")
            assert (details["leased_model_id"], details["leased_model_name"]) == (
                first,
                demo.MODEL_NAME,
            )
            assert (details["operation"], details["target_model_id"]) == (operation, target)

    answer = ask_other(bare, **{"X-Service-Load-Policy": "refuse"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "model_not_resident")
    assert error["details"]["lease"] == {
        **TERMS,
        "expires_at": bare.data("GET", path)["lease"]["expires_at"],
    }
    assert bare.data("GET", "/api/models")["loaded_model_id"] == first

    answer = ask_other(bare, lease_id)
    assert (answer.status_code, answer.json()["model"]) == (200, "other")
    read = bare.data("GET", path)
    assert read["lease"] is None
    assert read["last_ended"]["end_reason"] == "model_unloaded"
    assert bare.data("GET", f"/api/models/{second}/lease") == {
        "lease": None,
        "last_ended": None,
    }
    _, code, details = refusal(call(bare, "POST", path + "/renew", lease=lease_id))
    assert (code, details["end_reason"]) == ("LEASE_EXPIRED", "model_unloaded")


@pytest.mark.shows("models.6", "models.7", "models.23", "states.20")
def test_the_holder_loads_and_unloads_over_the_management(bare: Running, other: Path) -> None:
    first, second = load_demo(bare), add_model(bare, other)
    lease_id = bare.data("POST", f"/api/models/{first}/lease", TERMS, 201)["lease_id"]
    answer = call(bare, "POST", f"/api/models/{second}/load?wait=true", lease=lease_id)
    assert (answer.status_code, answer.json()["data"]["status"]) == (200, "loaded")
    lease_id = bare.data("POST", f"/api/models/{second}/lease", TERMS, 201)["lease_id"]
    assert call(bare, "POST", f"/api/models/{second}/unload", lease=lease_id).status_code == 200
    for model_id in (first, second):
        read = bare.data("GET", f"/api/models/{model_id}/lease")
        assert read["last_ended"]["end_reason"] == "model_unloaded"


def test_the_settings_bound_what_may_be_asked_for(start: Start) -> None:
    with start(lease_max_ttl_seconds=10, lease_holder_max_chars=4) as live:
        path = f"/api/models/{load_demo(live)}/lease"
        for change, maximum in (({"holder": "hhhhh"}, 4), ({"holder": "h", "ttl_seconds": 11}, 10)):
            status, code, details = live.error("POST", path, TERMS | change)
            assert (status, code, details["maximum"]) == (400, "INVALID_LEASE_REQUEST", maximum)
        granted = live.data("POST", path, TERMS | {"holder": "hhhh"}, 201)
        assert granted["ttl_seconds"] == 10


@pytest.mark.shows("authentication.7 lease-record.1 lease-record.10 models.12 states.16")
def test_the_id_is_told_once_and_written_nowhere(
    start: Start, other: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    with start(log_level="DEBUG", log_format="json") as live:
        first = load_demo(live)
        add_model(live, other)
        live.service.owners.bus.subscribe(lambda event: told.append(repr(event)))
        path = f"/api/models/{first}/lease"
        secret = live.data("POST", path, TERMS, 201)["lease_id"]
        assert len(secret) > 32
        for read in (
            *(path, "/api/models", f"/api/models/{first}"),
            *("/api/health/detailed", "/", "/docs"),
        ):
            told.append(live.http.get(read).text)
        told += [
            call(live, "POST", path + "/renew", lease=secret).text,
            call(live, "POST", path, TERMS, secret).text,
            call(live, "POST", path + "/renew", {"ttl_seconds": 0}, secret).text,
            call(live, "POST", "/api/models/999/lease/renew", lease=secret).text,
            ask_other(live, secret, **{"X-Service-Load-Policy": "refuse"}).text,
            ask_other(live, WRONG).text,
        ]
        answer = ask_other(live, secret)
        assert answer.status_code == 200
        told += [answer.text, str(answer.headers)]
        told += [
            call(live, "POST", path + "/renew", lease=secret).text,
            call(live, "DELETE", path, lease=secret).text,
            live.http.get(path).text,
        ]
        # a use that needs no lift: the id has ended, so it is ignored and logged
        assert ask_other(live, secret).status_code == 200
    logged = capfd.readouterr().err
    assert "lease_granted" in logged
    assert "lease_id_ignored" in logged
    stored = b"".join(file.read_bytes() for file in live.home.rglob("*") if file.is_file())
    assert secret not in logged
    assert secret.encode() not in stored
    assert not [text for text in told if secret in text]
