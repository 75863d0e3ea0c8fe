"""Hostile values on the management API: each is refused by name, and none harms the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from steerserve.errors import TABLE
from tests.service import Running, running
from tests.soak import watching
from tests.worker import saes

MODEL = "red"
NO_INTEGER = (
    "-1",
    "2147483648",
    "9223372036854775808",
    "1e308",
    "1e400",
    "NaN",
    "-Infinity",
    "true",
    '"1"',
    "[]",
    "{}",
    "1.5",
)
"""As they are written in JSON: nothing that an identifier, a layer or a number of seconds may be."""
NO_PATH = (
    "-1",
    "0",
    "2147483648",
    "9223372036854775808",
    "-9223372036854775809",
    "1e308",
    "NaN",
    "true",
    "[]",
    "%00",
    "9" * 5000,
)
"""As they are written in a path or a query."""
NO_NAME = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "a\r\nFAKE: 1",
    "a\x1b[31m",
    "a\u2028b",
    "a\u202eb",
    "\U0001f600",
    "\ud800",
    "../../etc/passwd",
    "a/../b",
    "..",
    "a//b",
    "%s%n",
    "x" * 101,
    "x" * 10_000,
)
"""Texts that no model may be called."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Iterator[Running]:
    """A service with a loaded model of 32 dimensions, and an attached SAE. Nothing here changes any of it."""
    root = tmp_path_factory.mktemp("hostile")
    arrays = saes.arrays("standard", d_in=32)
    folder = saes.write(root / "sae", saes.config_v6("standard", d_in=32), arrays)
    with running(root / "home", **watching.SMALL) as live:
        watching.load(live.http, watching.register(live.http, folders["red"], MODEL))
        made = live.data("POST", "/api/saes/download", {"local_path": str(folder)}, 202)
        live.data("POST", f"/api/saes/{made['sae_id']}/attach", {"layer": 0})
        before = state(live)
        yield live
        assert state(live) == before
        assert live.http.get("/api/health").status_code == 200


def state(live: Running) -> list[Any]:
    paths = (
        "/api/models",
        "/api/saes",
        "/api/saes/attachment",
        "/api/saes/steering",
        "/api/profiles",
    )
    return [live.data("GET", path) for path in (*paths, "/api/models/1/lease")]


def check_refused(answer: httpx2.Response) -> None:
    """A 4xx in the envelope with a code of the table; nothing of the inside is told."""
    assert 400 <= answer.status_code < 500, answer.text[:500]
    body = answer.json()
    assert set(body) == {"success", "data", "error"}
    assert (body["success"], body["data"]) == (False, None)
    assert TABLE[body["error"]["code"]].api == answer.status_code
    assert "Traceback" not in answer.text
    assert len(answer.content) < 20_000


def post(live: Running, path: str, content: str) -> httpx2.Response:
    headers = {"content-type": "application/json"}
    return live.http.post(path, content=content.encode("utf-8", "surrogatepass"), headers=headers)


def sae_id(live: Running) -> str:
    return str(live.data("GET", "/api/saes/attachment")["sae_id"])


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("value", NO_PATH, ids=lambda value: value[:25])
@pytest.mark.parametrize(
    ("method", "tail"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/load"),
        ("POST", "/unload"),
        ("POST", "/lock"),
        ("POST", "/unlock"),
        ("GET", "/lease"),
    ],
)
def test_a_path_that_is_no_model_id_is_refused(
    live: Running, method: str, tail: str, value: str
) -> None:
    check_refused(live.http.request(method, f"/api/models/{value}{tail}"))


@pytest.mark.parametrize("value", NO_PATH, ids=lambda value: value[:25])
def test_leases_of_a_path_that_is_no_model_id_are_refused(live: Running, value: str) -> None:
    path, header = f"/api/models/{value}/lease", {"X-Service-Lease": "lease_nobody"}
    check_refused(live.http.post(path, json={"holder": "soak", "reason": "hostile"}))
    check_refused(live.http.post(f"{path}/renew", json={}, headers=header))
    check_refused(live.http.delete(path, headers=header))


@pytest.mark.parametrize("value", NO_PATH, ids=lambda value: value[:25])
def test_an_sae_id_or_a_feature_in_the_path_that_names_nothing_is_refused(
    live: Running, value: str
) -> None:
    for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/detach")):
        check_refused(live.http.request(method, f"/api/saes/{value}{tail}"))
    if value != "0":
        check_refused(live.http.delete(f"/api/saes/steering/{value}"))


@pytest.mark.parametrize("value", [v for v in NO_PATH if v != "0"], ids=lambda value: value[:25])
def test_a_layer_in_the_query_that_is_none_is_refused_or_not_compatible(
    live: Running, value: str
) -> None:
    answer = live.http.get(f"/api/saes/{sae_id(live)}/compatibility?layer={value}")
    if answer.status_code == 200:
        assert answer.json()["data"]["compatible"] is False
    else:
        check_refused(answer)


@pytest.mark.parametrize("value", NO_INTEGER)
def test_an_integer_in_a_body_that_is_none_is_refused(live: Running, value: str) -> None:
    check_refused(post(live, f"/api/saes/{sae_id(live)}/attach", f'{{"layer": {value}}}'))
    check_refused(post(live, "/api/saes/steering", f'{{"feature_idx": {value}, "value": 1.0}}'))
    check_refused(post(live, "/api/profiles", f'{{"name": "hostile", "layer": {value}}}'))


@pytest.mark.parametrize("value", [*NO_INTEGER, "0", "7201"])
def test_a_lease_of_seconds_that_are_none_is_refused(live: Running, value: str) -> None:
    body = f'{{"holder": "soak", "reason": "hostile", "ttl_seconds": {value}}}'
    check_refused(post(live, "/api/models/1/lease", body))
    header = {"X-Service-Lease": "lease_nobody", "content-type": "application/json"}
    path, renewal = "/api/models/1/lease/renew", f'{{"ttl_seconds": {value}}}'
    check_refused(live.http.post(path, content=renewal, headers=header))


@pytest.mark.parametrize(
    "value", ["201", "-201", "1e308", "1e400", "NaN", "Infinity", "true", '"1"', "[]", "null"]
)
def test_a_steering_value_that_is_none_is_refused(live: Running, value: str) -> None:
    check_refused(post(live, "/api/saes/steering", f'{{"feature_idx": 1, "value": {value}}}'))
    check_refused(post(live, "/api/saes/steering/batch", f'{{"steering": {{"1": {value}}}}}'))


@pytest.mark.parametrize(
    "key", ["-1", "64", "2147483648", "9" * 400, "1e3", "NaN", "true", "", " ", "\x00", "1.0"]
)
def test_a_feature_that_the_sae_has_not_is_refused(live: Running, key: str) -> None:
    check_refused(live.http.post("/api/saes/steering/batch", json={"steering": {key: 1.0}}))


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize("name", NO_NAME, ids=lambda name: ascii(name[:25]))
def test_a_text_that_is_no_name_names_no_model(
    live: Running, folders: dict[str, Path], name: str
) -> None:
    body = {"source": "local", "local_path": str(folders["blue"]), "custom_name": name}
    check_refused(post(live, "/api/models", json.dumps(body)))


@pytest.mark.parametrize(
    "value",
    [
        "1",
        "true",
        "[]",
        "{}",
        "1e400",
        '"\\u0000"',
        '"/etc"',
        '"../../etc"',
        '"/proc/self/root/etc"',
        '"~root"',
        json.dumps("x" * 10_000),
    ],
)
@pytest.mark.parametrize("field", ["source", "local_path", "quantization", "trust_remote_code"])
def test_a_field_of_a_model_of_another_type_is_refused(
    live: Running, folders: dict[str, Path], field: str, value: str
) -> None:
    fields = {"source": '"local"', "local_path": json.dumps(str(folders["red"] / "none"))}
    body = ", ".join(f'"{name}": {text}' for name, text in (fields | {field: value}).items())
    check_refused(post(live, "/api/models", f"{{{body}}}"))


@pytest.mark.parametrize(
    "value",
    [
        "1",
        "[]",
        "null",
        '""',
        '"\\u0000"',
        '"\\ud800"',
        '"/etc"',
        '"../../etc"',
        '"/dev/zero"',
        '"a/\\r\\nb"',
        json.dumps("x" * 10_000),
        json.dumps("/" + "x/" * 240),
    ],
)
def test_a_path_that_is_no_sae_is_refused(live: Running, value: str) -> None:
    check_refused(post(live, "/api/saes/download", f'{{"local_path": {value}}}'))


@pytest.mark.parametrize(
    "value",
    [b"", b"x" * 10_000, b"\xff\xfe", b"\xf0\x9f\x98\x80", b"../..", b"lease_%00"],
    ids=range(6),
)
def test_a_header_that_is_no_lease_id_is_refused(live: Running, value: bytes) -> None:
    header = {"X-Service-Lease": value}
    check_refused(live.http.post("/api/models/1/lease/renew", json={}, headers=header))
    check_refused(live.http.delete("/api/models/1/lease", headers=header))


@pytest.mark.parametrize(
    "content",
    ["", "null", "[]", "1", '"a"', "{", "[" * 100_000, "\ufeff{}", '{"layer": 0', "\ud800"],
    ids=range(10),
)
def test_a_body_that_is_no_object_is_refused(live: Running, content: str) -> None:
    for path in (
        "/api/models",
        f"/api/saes/{sae_id(live)}/attach",
        "/api/saes/steering",
        "/api/saes/steering/batch",
    ):
        check_refused(post(live, path, content))
    if content not in ("", "null"):
        check_refused(post(live, "/api/models/1/lease", content))
