"""Imported documents at the limits of their parsers: each is stored or refused by name, and liveness answers
meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from steerserve import demo
from steerserve.rules.bounds import DOCUMENT_BYTES, DOCUMENT_LEVELS
from tests.loopback_hub import LoopbackHub
from tests.service import JSON, Running, add_sae, running

LIVENESS_SECONDS = 2.0
"""A bound for liveness beside an import. On a busy machine, where an import takes long, it is half of that time."""
BODY_BYTES = 8_000_000
PACK = "acme/large"
CIRCUITS, CLUSTERS, PROFILES = (
    "/api/circuits/import",
    "/api/clusters/import",
    "/api/profiles/import",
)
HUB = "/api/clusters/hub"
LABELS = "/api/saes/{sae_id}/labels"
LINES = {"content-type": "application/x-ndjson"}


@dataclass(frozen=True)
class Large:
    """A document at a limit, and the code of its refusal; None where it is stored."""

    path: str
    body: bytes
    code: str | None
    headers: dict[str, str]


def filled(document: dict[str, Any], key: str, part: str, close: str = "") -> bytes:
    """The document with a list under `key` that fills it to the largest size. The list repeats `part`."""
    head = json.dumps(document)[:-1] + f', "{key}": ['
    times = (DOCUMENT_BYTES - len(head) - len(close) - 2) // (len(part) + 1)
    return (head + ",".join([part] * times) + f"]{close}}}").encode()


def numbered(document: dict[str, Any], key: str, part: str, size: int = DOCUMENT_BYTES) -> bytes:
    """The document with a list under `key` whose entries have numbers."""
    head = json.dumps(document)[:-1] + f', "{key}": ['
    return (
        head + ",".join(part % n for n in range((size - len(head)) // (len(part) + 5)))
    ).encode() + b"]}"


def nested(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


CIRCUIT = {"name": "large", "saes": [{"layer": 1}]}
CLUSTER = {"name": "large", "members": [{"feature_idx": 1, "strength": 1}]}
MEMBER = '{"layer":1,"feature":{"feature_idx":1,"strength":1}}'
WHOLE_CIRCUIT = CIRCUIT | {
    "members": [
        {"layer": layer, "expanded_members": [{"feature_idx": i, "strength": 1} for i in range(20)]}
        for layer in range(16)
    ],
    "edges": [{"up": {"layer": 1}, "down": {"layer": 2}}] * 200,
}
BUNDLE = {
    "kind": "mistudio.cluster-bundle",
    "definitions": [
        {"name": f"large {n}", "narrative": "é" * 10_000, "members": CLUSTER["members"] * 20}
        for n in range(50)
    ],
}
PROFILE = {"name": "large profile", "version": "1.0"}
INVALID = "VALIDATION_ERROR"


def at(path: str, body: bytes, code: str | None, **headers: str) -> Large:
    return Large(path, body, code, headers or JSON)


def labels(part: bytes, size: int = BODY_BYTES) -> bytes:
    return part * (size // len(part))


AT_LIMITS: dict[str, Callable[[], Large]] = {
    "circuit of many layers": lambda: at(
        CIRCUITS, numbered(CIRCUIT, "members", '{"layer":%d}'), INVALID
    ),
    "circuit of many members": lambda: at(CIRCUITS, filled(CIRCUIT, "members", MEMBER), INVALID),
    "circuit with unknown lists": lambda: at(CIRCUITS, filled(WHOLE_CIRCUIT, "x", "[]"), None),
    "circuit with a number that JSON lacks": lambda: at(
        CIRCUITS, filled(WHOLE_CIRCUIT, "x", "1e999"), INVALID
    ),
    "circuit with probes": lambda: at(
        CIRCUITS,
        filled(
            WHOLE_CIRCUIT | {"calibration": {"onset": 0, "sweet_spot": 1, "cliff": 2}},
            "x",
            '{"prompt":"a","expected":"b"}',
        ),
        None,
    ),
    "cluster with unknown numbers": lambda: at(CLUSTERS, filled(CLUSTER, "x", "1"), None),
    "cluster of many members": lambda: at(
        CLUSTERS, filled({"name": "large"}, "members", "{}"), INVALID
    ),
    "bundle": lambda: at(CLUSTERS, json.dumps(BUNDLE, ensure_ascii=False).encode(), None),
    "bundle of many definitions": lambda: at(
        CLUSTERS, filled({"kind": BUNDLE["kind"]}, "definitions", "{}"), INVALID
    ),
    "profile of many features": lambda: at(PROFILES, filled(PROFILE, "features", "0"), INVALID),
    "profile of many values": lambda: at(
        PROFILES,
        json.dumps(PROFILE | {"steering": {str(i): 1 for i in range(80_000)}}).encode(),
        INVALID,
    ),
    "profile with unknown lists": lambda: at(PROFILES, filled(PROFILE, "x", "{}"), None),
    "labels as JSON": lambda: at(
        LABELS, b"[" + labels(b'{"index":1,"label":"large"},', 5_000_000) + b"0]", INVALID
    ),
    "labels as one object": lambda: at(
        LABELS, b"{" + labels(b'"1":"a",', 7_000_000) + b'"1":"a"}', INVALID
    ),
    "labels of many values": lambda: at(LABELS, b"[" + labels(b'"",') + b"0]", "PAYLOAD_TOO_LARGE"),
    "labels as lines": lambda: at(
        LABELS, labels(b'{"index":1,"label":"large"}\n', 2_000_000) + b"0", INVALID, **LINES
    ),
    "definition of a pack": lambda: at(
        f"{HUB}/import",
        b'{"repo_id": "%s", "filename": "large.cluster.json"}' % PACK.encode(),
        None,
    ),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    files = {
        "large.cluster.json": filled(CLUSTER, "x", "[]"),
        "manifest.jsonl": b"{}\n" * (DOCUMENT_BYTES // 3),
    }
    with LoopbackHub() as hub:
        hub.add(PACK, files)
        with running(tmp_path_factory.mktemp("home"), hf_endpoint=hub.url) as service:
            yield service


@pytest.fixture(scope="module")
def sae_id(live: Running) -> str:
    return add_sae(live, demo.saes()[0])


@contextmanager
def liveness(live: Running) -> Iterator[None]:
    """Asks for liveness again and again inside the block, and checks how long the slowest answer took."""
    seconds: list[float] = []
    done, begun = threading.Event(), threading.Event()

    def ask() -> None:
        with httpx2.Client(base_url=live.url, timeout=60) as http:
            while not done.wait(0.01):
                since = time.monotonic()
                assert http.get("/api/health").status_code == 200
                seconds.append(time.monotonic() - since)
                begun.set()

    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(ask)
        try:
            assert begun.wait(60)
            since = time.monotonic()
            yield
            took = time.monotonic() - since
        finally:
            done.set()
        asked.result()
    assert max(seconds) < max(LIVENESS_SECONDS, took / 2)


@pytest.mark.parametrize("name", AT_LIMITS)
def test_a_document_at_a_limit_leaves_liveness(live: Running, sae_id: str, name: str) -> None:
    large = AT_LIMITS[name]()
    path = large.path.format(sae_id=sae_id)
    with liveness(live):
        answer = live.http.post(path, content=large.body, headers=large.headers)
    refused = answer.json()["error"]
    assert (refused and refused["code"]) == large.code, answer.text[:300]


def test_the_largest_manifest_of_a_pack_leaves_liveness(live: Running) -> None:
    with liveness(live):
        assert live.data("GET", f"{HUB}/{PACK}/definitions") == []


def test_twenty_imports_that_fail_leave_liveness(live: Running) -> None:
    large = AT_LIMITS["circuit of many members"]()
    with liveness(live), ThreadPoolExecutor(20) as clients:
        answers = clients.map(
            lambda _: httpx2.post(
                live.url + large.path, content=large.body, headers=JSON, timeout=120
            ),
            range(20),
        )
        assert {answer.json()["error"]["code"] for answer in answers} == {INVALID}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("path", [CIRCUITS, CLUSTERS, PROFILES, "/api/profiles", "/v1/completions"])
def test_a_body_that_is_not_utf_8_is_refused(live: Running, path: str, encoding: str) -> None:
    body = json.dumps(CIRCUIT | {"members": [], "x": [[[]]]}).encode(encoding)
    answer = live.http.post(path, content=body, headers=JSON)
    assert answer.status_code == 415
    assert answer.json()["error"]["code"].upper() == "UNSUPPORTED_ENCODING"


def test_the_encoding_of_a_body_that_comes_byte_by_byte_is_checked(live: Running) -> None:
    for text, status in ((json.dumps(PROFILE).encode("utf-16"), 415), (b'{"name":"bytes"}', 201)):
        parts = (bytes([byte]) for byte in text)
        answer = live.http.post("/api/profiles", content=parts, headers=JSON)
        assert answer.status_code == status


def test_a_byte_that_is_not_utf_8_is_named(live: Running) -> None:
    # half a surrogate pair, as some encoders write it
    answer = live.http.post(PROFILES, content=b'{"name": "\xed\xa0\x80"}', headers=JSON)
    assert answer.status_code == 422
    assert "byte 10 is not UTF-8" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", [CIRCUITS, CLUSTERS, PROFILES])
def test_a_document_that_is_nested_too_deep_is_refused_by_name(live: Running, path: str) -> None:
    answer = live.http.post(path, content=nested(DOCUMENT_LEVELS + 1), headers=JSON)
    assert "nested deeper" in answer.json()["error"]["message"]
