"""Packs of clusters on the model hub, against a loopback hub: search, definitions, import, breaker, cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.loopback_hub import LoopbackHub
from tests.service import Running, running

HUB = "/api/clusters/hub"
TAG = "mistudio-cluster-definition"
PACK = "acme/weather"
SENTINEL = "hf_SENTINELoftheoperator"
CLUSTER: dict[str, Any] = {
    "kind": "mistudio.cluster-definition",
    "schema_version": "1",
    "name": "weather words",
    "members": [{"feature_idx": 70, "strength": 12.5}],
    "unknown": {"kept": [1.0]},
}
FILES = {
    "rain.cluster.json": json.dumps(CLUSTER).encode(),
    "more/wind.cluster.json": json.dumps(CLUSTER | {"name": "wind"}).encode(),
    "README.md": b"a pack",
}


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as made:
        yield made


@pytest.fixture(scope="module")
def service(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One service for all tests of this file. Its operator has a token, and answers are not used again."""
    home = tmp_path_factory.mktemp("home")
    settings = {"hf_endpoint": hub.url, "hub_token": SENTINEL, "cluster_hub_cache_ttl_s": 0}
    with running(home, **settings) as live:
        yield live


@pytest.fixture
def live(service: Running, hub: LoopbackHub) -> Iterator[Running]:
    hub.repos.clear()
    hub.add(PACK, FILES, info={"tags": [TAG, "base_model:acme/tiny"], "likes": 3, "downloads": 9})
    hub.seen.clear()
    yield service
    hub.heal()
    service.data("POST", "/api/health/circuits/cluster_hub/reset")
    for cluster in service.data("GET", "/api/clusters")["clusters"]:
        service.data("DELETE", f"/api/clusters/{cluster['id']}")


def body(filename: str = "rain.cluster.json", **fields: Any) -> dict[str, Any]:
    return {"repo_id": PACK, "filename": filename, **fields}


def breaker(live: Running, name: str) -> dict[str, Any]:
    found = live.data("GET", "/api/health/circuits")
    rows = found["breakers"] if isinstance(found, dict) else found
    return next(row for row in rows if row["name"] == name)


# ------------------------------------------------------------------ searching


@pytest.mark.shows("clusters.4")
def test_packs_are_found_by_their_tag_and_by_the_model_they_are_made_for(
    live: Running, hub: LoopbackHub
) -> None:
    changed = "2026-01-05T10:00:00.000Z"
    hub.repos[PACK].info["lastModified"] = changed
    hub.add("acme/weather-model", {}, info={"tags": ["text-generation"]})
    hub.add("acme/other", {}, info={"tags": [TAG]})
    expected = {
        "repo_id": PACK,
        "likes": 3,
        "downloads": 9,
        "last_modified": changed,
        "tags": [TAG, "base_model:acme/tiny"],
    }
    found = live.data("GET", f"{HUB}/search?q=weather&base_model=acme/tiny&limit=50")
    assert found == [expected]
    assert len(live.data("GET", f"{HUB}/search?limit=1")) == 1
    for wrong in ("limit=0", "limit=51"):
        assert live.error("GET", f"{HUB}/search?{wrong}")[:2] == (422, "VALIDATION_ERROR")


def test_facts_of_a_wrong_form_are_null_and_repositories_without_a_name_are_left_out(
    live: Running, hub: LoopbackHub
) -> None:
    odd = [{"id": "../x"}, {"id": PACK, "likes": -1, "tags": [3], "lastModified": "soon"}, 7]
    hub.fault("GET /api/models?", times=1, status=200, body=json.dumps(odd).encode())
    (found,) = live.data("GET", f"{HUB}/search")
    assert found == {
        "repo_id": PACK,
        "likes": None,
        "downloads": None,
        "last_modified": None,
        "tags": [],
    }


# ------------------------------------------------------------------ definitions


@pytest.mark.shows("clusters.5")
def test_the_definitions_of_a_pack_are_its_files_with_the_suffix(live: Running) -> None:
    nothing = {"name": None, "member_count": None, "base_model": None}
    assert live.data("GET", f"{HUB}/{PACK}/definitions") == [
        {"file": "rain.cluster.json"} | nothing,
        {"file": "more/wind.cluster.json"} | nothing,
    ]


# ------------------------------------------------------------------ importing


@pytest.mark.shows("clusters.6")
def test_a_definition_is_imported_without_a_token_and_remembers_where_it_came_from(
    live: Running, hub: LoopbackHub
) -> None:
    item = live.data("POST", f"{HUB}/import", body())
    assert (item["name"], item["status"]) == ("weather words", "imported_unbound")
    (cluster,) = live.data("GET", "/api/clusters")["clusters"]
    assert cluster["hub_ref"] == {
        "repo_id": PACK,
        "revision": hub.repos[PACK].sha,
        "path": "rain.cluster.json",
    }
    assert live.data("GET", f"/api/clusters/{cluster['id']}/export") == CLUSTER
    assert {seen.token for seen in hub.seen} == {None}


@pytest.mark.shows("clusters.6")
@pytest.mark.parametrize(
    "filename",
    [
        "none.cluster.json",
        "README.md",
        "/rain.cluster.json",
        "../rain.cluster.json",
        "a\nb.cluster.json",
    ],
)
def test_a_file_that_is_not_there_or_is_no_definition_is_refused(
    live: Running, filename: str
) -> None:
    status, code, details = live.error("POST", f"{HUB}/import", body(filename))
    assert (status, code) == (422, "VALIDATION_ERROR")
    assert (details["repo_id"], details["filename"]) == (PACK, filename)
    assert details["reason"]


def test_a_repository_that_is_not_there_or_not_public_is_refused(
    live: Running, hub: LoopbackHub
) -> None:
    hub.add("acme/gated", FILES, gated="manual")
    refusals = {
        "acme/gated": live.error("POST", f"{HUB}/import", body(repo_id="acme/gated")),
        "acme/none": live.error("GET", f"{HUB}/acme/none/definitions"),
    }
    for repo_id, (status, code, details) in refusals.items():
        assert (status, code, details["repo_id"]) == (422, "VALIDATION_ERROR", repo_id)
    # an answer that refuses shows that the hub works
    assert breaker(live, "cluster_hub")["failure_count"] == 0


# ------------------------------------------------------------------ the breaker


def test_faults_of_the_cluster_hub_open_its_own_breaker_and_no_other(
    live: Running, hub: LoopbackHub
) -> None:
    hub.fault("/api/models", status=500)
    for _ in range(2):
        live.service.owners.around.cluster_hub.failed()
    assert live.error("GET", f"{HUB}/search")[:2] == (503, "HUB_UNAVAILABLE")
    before = len(hub.seen)
    answer = live.http.post(f"{HUB}/import", json=body())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "HUB_UNAVAILABLE")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert len(hub.seen) == before
    assert breaker(live, "cluster_hub")["state"] == "open"
    assert breaker(live, "huggingface")["state"] == "closed"
    closed = live.data("POST", "/api/health/circuits/cluster_hub/reset")
    assert (closed["state"], closed["failure_threshold"]) == ("closed", 3)
