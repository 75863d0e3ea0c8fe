"""/api/saes/{sae_id}/labels/suggest against a running service and an endpoint on this machine."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from steerserve import demo
from tests.service import Running, add_sae, load_demo, running

LAYER, FEATURE = 3, 90
"""The feature of the sea."""
VARIABLE, KEY = "LABEL_TEST_KEY", "s3cret-key"
SEA = [
    "The boat sailed over the waves",
    "A whale swam near the ship",
    "The sailor saw the lighthouse",
    "The fish in the harbour",
]
LAND = [
    "The farmer fed the cow",
    "She baked bread in the kitchen",
    "The king sat on the throne",
    "A bus drove down the street",
]
_LINE = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)


class Endpoint(ThreadingHTTPServer):
    """An OpenAI-compatible endpoint that names every feature `name`, and finds the texts of the sea."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.seen: list[tuple[str, str | None, dict[str, Any]]] = []
        self.name = 'Label: "the sea"'
        self.status = 200


class _Answer(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((self.path, self.headers["authorization"], body))
        text = body["messages"][0]["content"]
        answer = self.server.name
        if "fits this label" in text:
            lines = _LINE.findall(text)
            answer = ", ".join(number for number, line in lines if _is_of_the_sea(line)) or "none"
        made = json.dumps({"choices": [{"message": {"role": "assistant", "content": answer}}]})
        self.send_response(self.server.status)
        self.send_header("location", f"{self.server.url}/elsewhere")
        self.send_header("content-length", str(len(made)))
        self.end_headers()
        self.wfile.write(made.encode())

    def log_message(self, *_: object) -> None:
        pass


def _is_of_the_sea(line: str) -> bool:
    return not any(one.split()[-1] in line for one in LAND)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint) -> Iterator[Running]:
    listed = [f"{endpoint.url}={VARIABLE}"]
    with running(tmp_path_factory.mktemp("labels"), label_endpoints=listed) as live:
        load_demo(live)
        sae = next(one for one in demo.saes() if one.layer == LAYER)
        sae_id = add_sae(live, sae)
        live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
        yield live


@pytest.fixture
def path(live: Running, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The path of the labels, which are all forgotten after the test."""
    monkeypatch.setenv(VARIABLE, KEY)
    endpoint.seen.clear()
    path = f"/api/saes/{live.data('GET', '/api/saes/attachment')['sae_id']}/labels"
    yield path
    live.data("DELETE", path)
    endpoint.status, endpoint.name = 200, 'Label: "the sea"'


def asked(endpoint: Endpoint, **fields: Any) -> dict[str, Any]:
    named = {"base_url": f"{endpoint.url}/", "model": "somebody", "api_key_env": VARIABLE}
    body = {"features": [FEATURE], "endpoint": named, "examples": 2, "texts": [*SEA, *LAND]}
    return body | fields


def labels(live: Running, path: str) -> dict[int, str]:
    return {one["feature_idx"]: one["label"] for one in live.data("GET", path)["labels"]}


def test_a_label_is_suggested_scored_and_accepted(
    live: Running, path: str, endpoint: Endpoint
) -> None:
    job = live.data("POST", f"{path}/suggest?wait=true", asked(endpoint))["job"]
    (suggested,) = job["result"]["suggestions"]
    created = suggested.pop("created_at")
    assert suggested == {
        "index": FEATURE,
        "label": "the sea",
        "source": "suggested",
        "model": "somebody",
        "score": 1.0,
        "prompt_version": 1,
        "accepted": False,
    }
    (place, key, naming), (*_, detecting) = endpoint.seen
    assert (place, key) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert (naming["model"], naming["temperature"]) == ("somebody", 0)
    assert "<<" in naming["messages"][0]["content"]
    assert "<s>" not in naming["messages"][0]["content"]
    assert "<<" not in detecting["messages"][0]["content"].partition("1. ")[2]
    assert labels(live, path) == {}
    listed = live.data("GET", f"{path}/suggestions")["suggestions"]
    assert listed == [suggested | {"created_at": created}]
    accepted = live.data("POST", f"{path}/accept", {"features": [FEATURE]})
    assert (accepted["accepted"], accepted["kept"]) == ([FEATURE], [])
    assert labels(live, path) == {FEATURE: "the sea"}
    assert live.data("GET", f"{path}/suggestions")["suggestions"][0]["accepted"] is True


def test_an_accepted_label_is_replaced_and_that_of_a_person_is_kept(
    live: Running, path: str, endpoint: Endpoint
) -> None:
    for name in ("water", "ships"):
        endpoint.name = name
        live.data("POST", f"{path}/suggest?wait=true", asked(endpoint))
        live.data("POST", f"{path}/accept", {"features": [FEATURE]})
        assert labels(live, path) == {FEATURE: name}
    live.data("POST", path, {str(FEATURE): "by hand"})
    endpoint.name = "boats"
    live.data("POST", f"{path}/suggest?wait=true", asked(endpoint))
    kept = live.data("POST", f"{path}/accept", {"features": [FEATURE]})
    assert (kept["accepted"], kept["kept"]) == ([], [FEATURE])
    assert labels(live, path) == {FEATURE: "by hand"}
    status, code, details = live.error("POST", f"{path}/accept", {"features": [FEATURE, 3]})
    assert (status, code, details["param"]) == (422, "VALIDATION_ERROR", "features[1]")


@pytest.mark.parametrize(
    "changes",
    [
        {"base_url": "http://169.254.169.254/latest"},
        {"base_url": "http://127.0.0.1:1/v1"},
        {"api_key_env": "HOME"},
    ],
)
def test_no_other_address_is_asked_and_no_other_variable_is_sent(
    live: Running, path: str, endpoint: Endpoint, changes: dict[str, str]
) -> None:
    body = asked(endpoint)
    body["endpoint"] |= changes
    status, code, details = live.error("POST", f"{path}/suggest", body)
    assert (status, code) == (403, "LABEL_ENDPOINT_REFUSED")
    assert details["param"] == f"endpoint.{next(iter(changes))}"
    assert endpoint.seen == []


def test_an_endpoint_that_fails_or_redirects_ends_the_job(
    live: Running, path: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.status = 307
    found = live.error("POST", f"{path}/suggest?wait=true", asked(endpoint))
    assert found[:2] == (502, "LABEL_ENDPOINT_FAILED")
    assert len(endpoint.seen) == 1
    monkeypatch.delenv(VARIABLE)
    found = live.error("POST", f"{path}/suggest", asked(endpoint))
    assert found[:2] == (502, "LABEL_ENDPOINT_FAILED")


def test_what_has_no_example_or_no_label_is_named(
    live: Running, path: str, endpoint: Endpoint
) -> None:
    endpoint.name = ""
    body = asked(endpoint)
    result = live.data("POST", f"{path}/suggest?wait=true", body)["job"]["result"]
    assert (result["without_label"], result["suggestions"]) == ([FEATURE], [])
    del body["texts"]
    result = live.data("POST", f"{path}/suggest?wait=true", body)["job"]["result"]
    assert result["without_examples"] == [FEATURE]
    found = live.error("POST", f"{path}/suggest", asked(endpoint, features=[9_999_999]))
    assert found[:2] == (400, "INVALID_FEATURE_INDEX")


def test_the_resident_model_is_asked_without_any_steering(live: Running, path: str) -> None:
    body = {"features": [FEATURE], "endpoint": "resident", "examples": 2, "texts": [*SEA, *LAND]}
    result = live.data("POST", f"{path}/suggest?wait=true", body)["job"]["result"]
    told = [one["index"] for one in result["suggestions"]] + result["without_label"]
    assert told == [FEATURE]


def test_the_examples_of_a_corpus_are_used(live: Running, path: str, endpoint: Endpoint) -> None:
    corpus = {"name": "sea", "source": "inline", "texts": [*SEA, *LAND]}
    live.data("POST", "/api/corpora?wait=true", corpus)
    body = asked(endpoint)
    del body["texts"]
    (suggested,) = live.data("POST", f"{path}/suggest?wait=true", body)["job"]["result"][
        "suggestions"
    ]
    assert suggested["label"] == "the sea"
    assert "<<" in endpoint.seen[0][2]["messages"][0]["content"]
