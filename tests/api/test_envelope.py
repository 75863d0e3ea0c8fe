"""The rules that the bodies of all `/api` routes share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steerserve.rules.bounds import MANAGEMENT_BODY_VALUES
from tests.service import Running

JSON = {"content-type": "application/json"}
TWICE = b'{"name": "n", "steering": {"1": 1.0, "1": 2.0}, "description": "%s"}'


@pytest.mark.shows("formats.1", "envelope.3")
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/models/99999", 404),
        ("POST", "/api/models", 422),
        ("GET", "/api/nothing", 404),
        ("PATCH", "/api/models", 405),
        ("GET", "/api/models/seven", 422),
        ("POST", "/api/models/99999/lease", 400),
    ],
)
def test_every_refusal_has_a_code_a_message_and_details(
    shared: Running, method: str, path: str, status: int
) -> None:
    answer = shared.http.request(method, path, json={})
    assert answer.status_code == status
    whole = answer.json()
    error = whole.pop("error")
    assert whole == {"success": False, "data": None}
    assert set(error) == {"code", "message", "details"}
    assert error["code"].isupper()
    assert error["message"]
    assert isinstance(error["details"], dict)


@pytest.mark.parametrize("path", ["/api/saes/steering", "/api/clusters/import"])
@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"feature_idx": 90,\n "value" 5}', "line 2, column 10"),
        (b'{"feature_idx": 90, "value": 5}}', "line 1, column 32"),
        (b'{"feature_idx": 90, "value": "\xff"}', "byte 30 is not UTF-8"),
        (b'{"feature_idx": ' + b"9" * 5000 + b', "value": 5}', "too many digits"),
    ],
)
def test_a_body_that_is_not_json_is_refused_with_the_place_of_the_fault(
    steered: Running, path: str, body: bytes, place: str
) -> None:
    refused = steered.http.post(path, content=body, headers=JSON)
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert error["code"] == "VALIDATION_ERROR"
    assert error["message"].startswith("the body is not JSON: ")
    assert place in error["message"]
    assert error["details"]["errors"] == [{"loc": ["body"], "msg": error["message"]}]


@pytest.mark.parametrize("length", [0, 100_000])
@pytest.mark.parametrize(
    "path",
    [
        "/api/profiles",
        "/api/profiles/import",
        "/api/saes/steering/batch",
        "/api/compare",
    ],
)
def test_a_key_that_stands_twice_is_refused_in_bodies_of_every_size(
    steered: Running, path: str, length: int
) -> None:
    body = TWICE.replace(b"%s", b"x" * length)
    if path == "/api/compare":
        body = body.replace(b'"name": "n"', b'"prompt": "One day"')
    refused = steered.http.post(path, content=body, headers=JSON)
    assert refused.status_code == 422
    assert "'1' stands twice" in refused.json()["error"]["message"]


def test_a_document_that_is_too_large_is_not_read(shared: Running) -> None:
    body = TWICE.replace(b"%s", b"x" * 2**20)
    refused = shared.http.post("/api/profiles/import", content=body, headers=JSON)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")


@pytest.mark.shows("steering-errors.8")
@pytest.mark.parametrize(
    ("path", "body", "unknown", "nearest"),
    [
        ("/api/compare", {"prompt": "One day", "temprature": 1.0}, "temprature", "temperature"),
        ("/api/profiles", {"name": "n", "steerin": {"1": 2.0}}, "steerin", "steering"),
        ("/api/saes/steering", {"feature_idx": 1, "valeu": 2.0}, "valeu", "value"),
        ("/api/saes/download", {"repository": "org/saes"}, "repository", "repository_id"),
        ("/api/models", {"source": "local", "localpath": "/x"}, "localpath", "local_path"),
        ("/api/models/preview", {"repo_id": "org/m", "hftoken": "t"}, "hftoken", "hf_token"),
        ("/api/monitoring/enable", {"enable": True}, "enable", "enabled"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_known_one(
    shared: Running, path: str, body: dict[str, Any], unknown: str, nearest: str
) -> None:
    status, code, details = shared.error("POST", path, body)
    assert (status, code) == (422, "VALIDATION_ERROR")
    assert [(one["loc"], one["type"]) for one in details["errors"]] == [
        (["body", unknown], "extra_forbidden")
    ]
    assert f"'{nearest}'" in details["errors"][0]["msg"]


def test_unknown_fields_inside_a_body_are_named_by_their_place(shared: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Hi", "contents": "Hi"}], "\ud800" * 200: 1}
    _, _, details = shared.error("POST", "/api/compare", {"messages": body["messages"]})
    assert details["errors"][0]["loc"] == ["body", "messages", 0, "contents"]
    answer = shared.http.post("/api/compare", content=json.dumps(body), headers=JSON)
    assert answer.status_code == 422
    assert len(answer.json()["error"]["details"]["errors"][0]["loc"][1]) <= 100


def test_a_field_that_resembles_none_is_refused_with_all_that_are_known(shared: Running) -> None:
    body = {"steering": {"1": 1.0}, "zzz": 1}
    _, _, details = shared.error("POST", "/api/saes/steering/batch", body)
    assert "'steering'" in details["errors"][0]["msg"]


@pytest.mark.shows("envelope.8")
@pytest.mark.parametrize("path", ["/api/profiles", "/api/profiles/import"])
@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "", None])
def test_json_under_another_name_is_refused(shared: Running, path: str, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    body = b'{"name": "n", "version": "1.0", "steering": {}}'
    refused = shared.http.post(path, content=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "VALIDATION_ERROR")


@pytest.mark.shows("envelope.8")
@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.x+json"])
def test_json_by_each_of_its_names_is_imported(shared: Running, kind: str) -> None:
    body = json.dumps({"name": f"under {kind}", "version": "1.0", "steering": {}}).encode()
    made = shared.http.post("/api/profiles/import", content=body, headers={"content-type": kind})
    assert made.status_code == 201, made.text
    shared.data("DELETE", f"/api/profiles/{made.json()['data']['id']}")


def test_a_body_of_very_many_values_is_refused_before_it_is_read(shared: Running) -> None:
    body = {"features": [""] * (MANAGEMENT_BODY_VALUES + 1)}
    status, code, _ = shared.error("POST", "/api/monitoring/configure", body)
    assert (status, code) == (413, "PAYLOAD_TOO_LARGE")


def test_only_some_of_very_many_unknown_fields_are_named(shared: Running) -> None:
    body = {f"unknown{i}": 1 for i in range(1000)}
    status, code, details = shared.error("POST", "/api/monitoring/configure", body)
    assert (status, code) == (422, "VALIDATION_ERROR")
    assert len(details["errors"]) == 20
