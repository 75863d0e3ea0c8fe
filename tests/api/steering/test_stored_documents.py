"""Stored profiles, clusters and circuits: their pages, the limits of their number and size, and what a full disk and a
disk with little room leave possible."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from steerserve import demo
from steerserve.nouns.monitoring import routes as monitoring
from tests.circuits import document, imported
from tests.conftest import Start
from tests.service import JSON, Running, add_sae, running
from tests.worker.sae.checkpoints import saelens

CLUSTER = {"members": [{"feature_idx": 1, "strength": 1}]}
LISTS = ("profiles", "clusters", "circuits")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that stores six documents with 1 MiB in all."""
    home = tmp_path_factory.mktemp("home")
    with running(home, max_stored_documents=6, stored_documents_mb=1) as made:
        yield made


@pytest.fixture
def live(service: Running) -> Iterator[Running]:
    yield service
    for noun in ("circuits", "profiles"):
        for row in service.data("GET", f"/api/{noun}")[noun]:
            service.data("DELETE", f"/api/{noun}/{row['id']}")


def add(live: Running, noun: str, name: str, **more: Any) -> None:
    if noun == "profiles":
        live.data("POST", "/api/profiles", {"name": name, "steering": {"1": 2.0}}, 201)
    elif noun == "clusters":
        live.data("POST", "/api/clusters/import", CLUSTER | {"name": name} | more)
    else:
        imported(live, name=name, **more)


@pytest.mark.parametrize("noun", LISTS)
def test_a_list_is_answered_page_by_page(live: Running, noun: str) -> None:
    names = [f"name {number}" for number in range(5)]
    for name in names:
        add(live, noun, name)
    if noun == "circuits":
        names.reverse()  # the newest first
    pages = [live.data("GET", f"/api/{noun}?limit=2&offset={first}") for first in (0, 2, 4, 6)]
    assert [[row["name"] for row in page[noun]] for page in pages] == [
        names[:2],
        names[2:4],
        names[4:],
        [],
    ]
    assert {page["total"] for page in pages} == {5}
    assert live.data("GET", f"/api/{noun}")["total"] == 5
    for wrong in ("limit=0", "limit=201", "offset=-1"):
        assert live.error("GET", f"/api/{noun}?{wrong}")[:2] == (422, "VALIDATION_ERROR")


def test_the_circuits_that_cannot_be_served_are_paged_too(live: Running) -> None:
    for number in range(3):
        add(live, "circuits", f"name {number}")
    page = live.data("GET", "/api/circuits?serveable=false&limit=1&offset=1")
    assert ([row["name"] for row in page["circuits"]], page["total"]) == (["name 1"], 3)
    assert live.data("GET", "/api/circuits?serveable=true")["total"] == 0


class Sent(NamedTuple):
    path: str
    body: dict[str, Any]


MORE = {
    "profile": Sent("/api/profiles", {"name": "more"}),
    "imported profile": Sent("/api/profiles/import", {"name": "more", "steering": {}}),
    "cluster": Sent("/api/clusters/import", CLUSTER | {"name": "more"}),
    "circuit": Sent("/api/circuits/import", document(name="more")),
}


@pytest.mark.parametrize("noun", MORE)
def test_no_document_is_stored_beyond_the_number(live: Running, noun: str) -> None:
    for number, kind in enumerate(LISTS * 2):
        add(live, kind, f"name {number}")
    path, body = MORE[noun]
    refused = live.error("POST", path, body)
    limits = {"limit_documents": 6, "limit_mb": 1}
    assert refused == (507, "DOCUMENT_STORE_FULL", limits)
    first = live.data("GET", "/api/profiles")["profiles"][0]
    live.data("DELETE", f"/api/profiles/{first['id']}")
    assert live.http.post(path, json=body).json()["success"]


def test_a_bundle_for_which_there_is_no_room_leaves_nothing(live: Running) -> None:
    definitions = [CLUSTER | {"name": f"name {number}"} for number in range(7)]
    body = {"kind": "mistudio.cluster-bundle", "definitions": definitions}
    assert live.error("POST", "/api/clusters/import", body)[1] == "DOCUMENT_STORE_FULL"
    assert live.data("GET", "/api/clusters")["total"] == 0


@pytest.mark.parametrize("noun", ["clusters", "circuits"])
def test_no_document_is_stored_beyond_the_size(live: Running, noun: str) -> None:
    add(live, noun, "first", unknown="x" * 600_000)
    body = (CLUSTER if noun == "clusters" else document()) | {"name": "second"}
    large = body | {"unknown": "x" * 600_000}
    path = f"/api/{noun}/import"
    assert live.error("POST", path, large)[:2] == (507, "DOCUMENT_STORE_FULL")
    assert live.http.post(path, json=body).json()["success"]


def test_the_values_of_a_profile_count(live: Running) -> None:
    values = {str(10**17 + feature): 1.2345678901234567 for feature in range(1000)}
    add(live, "clusters", "first", unknown="x" * 1_030_000)
    add(live, "profiles", "small")
    (profile,) = [
        row for row in live.data("GET", "/api/profiles")["profiles"] if row["name"] == "small"
    ]
    change = {"steering": values}
    path = f"/api/profiles/{profile['id']}"
    assert live.error("PATCH", path, change)[:2] == (507, "DOCUMENT_STORE_FULL")
    assert live.data("GET", path)["steering"] == profile["steering"]


def test_an_import_leaves_the_reserve_of_the_disk_free(start: Start, tmp_path: Path) -> None:
    reserve = shutil.disk_usage(tmp_path).free // 2**20 + 100_000
    with start(disk_reserve_mb=reserve) as full:
        sae_id = add_sae(full, demo.saes()[0])
        labels = Sent(f"/api/saes/{sae_id}/labels", {"1": "rain"})
        for path, body in (*MORE.values(), labels):
            status, code, details = full.error("POST", path, body)
            assert (status, code, details["reserve_mb"]) == (507, "INSUFFICIENT_DISK", reserve)


BOUND = 2**20
"""A bound for answers of monitoring that few features reach."""


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "MONITORING_ANSWER_BYTES", BOUND)


@pytest.mark.usefixtures("bounded")
def test_the_history_of_monitoring_is_bounded_in_bytes(steered: Running) -> None:
    sae_id = steered.data("GET", "/api/saes/attachment")["sae_id"]
    kept = steered.data("GET", f"/api/saes/{sae_id}/labels?limit=1000")["labels"]
    long = {str(feature): f"{feature} " + "é" * 490 for feature in range(100)}
    steered.data("POST", f"/api/saes/{sae_id}/labels", long)
    steered.data("POST", "/api/monitoring/configure", {"history_size": 100})
    steered.data("DELETE", "/api/monitoring/history")
    for _ in range(2):
        steered.complete(["One day"] * 16, max_tokens=1, seed=1)
    asked = "/api/monitoring/history?limit=100&features=" + ",".join(map(str, range(100)))
    answer = steered.http.get(asked)
    history = json.loads(answer.content)["data"]
    assert len(answer.content) < BOUND + 10_000
    assert history["total"] == len(history["records"]) >= 1
    assert history["total"] + history["left_out"] == 32
    assert history["left_out"] > 0
    steered.data("DELETE", f"/api/saes/{sae_id}/labels")
    if kept:
        before = {str(one["feature_idx"]): one["label"] for one in kept}
        steered.data("POST", f"/api/saes/{sae_id}/labels", before)
    steered.data("POST", "/api/monitoring/enable", {"enabled": False})


@pytest.mark.usefixtures("bounded")
def test_the_statistics_of_monitoring_are_bounded_in_bytes(shared: Running, tmp_path: Path) -> None:
    # every feature is active at every token
    width, hidden = 900, 192
    rows = np.random.default_rng(0).normal(size=(width, hidden)).astype(np.float32)
    bias = np.full(width, 1e4, np.float32)
    wide = {"W_enc": rows.T, "b_enc": bias, "W_dec": rows, "b_dec": np.zeros(hidden, np.float32)}
    path = saelens(tmp_path, p=wide).path
    sae_id = add_sae(shared, path)
    long = {str(feature): "\U0001f40b" * 490 for feature in range(width)}
    body = json.dumps(long, ensure_ascii=False).encode()
    sent = shared.http.post(f"/api/saes/{sae_id}/labels", content=body, headers=JSON)
    assert sent.json()["success"]
    shared.data("POST", f"/api/saes/{sae_id}/attach", {"layer": 1})
    shared.data("POST", "/api/monitoring/configure", {})
    shared.complete("One day", max_tokens=1)
    answer = shared.http.get("/api/monitoring/statistics")
    found = json.loads(answer.content)["data"]
    taken = len(found["features"])
    assert len(answer.content) < BOUND + 10_000
    assert [one["feature_idx"] for one in found["features"]] == list(range(taken))
    assert taken + found["left_out"] == width
    assert found["left_out"] > 0
    rest = shared.data("GET", f"/api/monitoring/statistics?features={taken},{width - 1}")
    assert [one["feature_idx"] for one in rest["features"]] == [taken, width - 1]
    shared.data("POST", f"/api/saes/{sae_id}/detach")
    shared.data("DELETE", f"/api/saes/{sae_id}")
