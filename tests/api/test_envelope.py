"""What every body with a map is held to."""

from __future__ import annotations

import pytest

from tests.service import Running

JSON = {"content-type": "application/json"}
TWICE = b'{"name": "n", "steering": {"1": 1.0, "1": 2.0}, "description": "%s"}'


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
    if path == "/api/profiles" and length:
        body = body.replace(b'"description"', b'"unknown"')
    if path == "/api/compare":
        body = body.replace(b'"name": "n"', b'"prompt": "One day"')
    refused = steered.http.post(path, content=body, headers=JSON)
    assert refused.status_code == 422
    assert "'1' stands twice" in refused.json()["error"]["message"]


def test_a_document_that_is_too_large_is_not_read(shared: Running) -> None:
    body = TWICE.replace(b"%s", b"x" * 2**20)
    refused = shared.http.post("/api/profiles/import", content=body, headers=JSON)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
