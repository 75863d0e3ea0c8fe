"""A cluster whose nodes have cache folders of their own: they fetch models and SAEs, and nobody gets the token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from steerserve import demo
from steerserve.control.residency.events import LoadProgress
from steerserve.files.client_paths import ClientPaths, allow_all
from steerserve.rules.events import Event
from tests.engines.ray.nodes import Nodes, started
from tests.loopback_hub import LoopbackHub
from tests.nouns.replicas.test_replicated_model import Replicated
from tests.nouns.saes.test_downloads import PATH, WEIGHTS, files_of
from tests.service import Running, running

SAE = demo.saes()[0]
TOKEN = "hf_SentinelTokenOfTheseTests"
MODEL, SAES = "acme/stories", "acme/saes"
PATIENCE = 60.0
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The cache folders of the two nodes."""
    return [tmp_path_factory.mktemp(name) for name in ("east", "west")]


@pytest.fixture(scope="module")
def own_nodes(caches: list[Path]) -> Iterator[Nodes]:
    pytest.importorskip("ray")
    with started() as nodes:
        for cache in caches:
            named = {
                "MODEL_CACHE_DIR": str(cache / "models"),
                "SAE_CACHE_DIR": str(cache / "saes"),
            }
            nodes.add(num_cpus=1, env_vars=named)
        yield nodes


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as made:
        made.add(MODEL, files_of(demo.MODEL_DIR), tokens=(TOKEN,))
        made.add(SAES, files_of(SAE.path, f"{PATH}/"), tokens=(TOKEN,))
        yield made


@pytest.fixture
def live(
    own_nodes: Nodes, hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    settings: dict[str, Any] = {
        "engine_backend": "ray",
        "ray_address": own_nodes.address,
        "engine_replicas": 2,
        "engine_cards": 0,
        "hf_endpoint": hub.url,
        "hub_token": TOKEN,
        "disk_reserve_mb": 0,
        "download_attempts": 1,
    }
    with running(tmp_path_factory.mktemp("home"), **settings) as made:
        made.http.timeout = httpx2.Timeout(250)
        yield made
    assert not own_nodes.replica_processes()


def downloaded(live: Running, kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """The record of a finished download."""
    made = live.data("POST", f"/api/{kind}", body, 202)
    path = f"/api/models/{made['id']}" if kind == "models" else f"/api/saes/{made['sae_id']}"
    until = time.monotonic() + PATIENCE
    while (record := live.data("GET", path))["status"] not in ("ready", "cached"):
        assert record["status"] != "error", record
        assert time.monotonic() < until, record
        time.sleep(0.1)
    return record


def model(live: Running) -> int:
    body = {"source": "huggingface", "repo_id": MODEL, "custom_name": demo.MODEL_NAME}
    return int(downloaded(live, "models", body)["id"])


def _stage(event: Event) -> list[str]:
    return [event.stage] if isinstance(event, LoadProgress) else []


def fetched(cache: Path, kind: str) -> dict[str, bytes]:
    """The files of the finished fetches of a node."""
    found = [path for path in (cache / kind).rglob("*") if path.is_file()]
    named = {path.relative_to(cache / kind).as_posix(): path.read_bytes() for path in found}
    return {name: body for name, body in named.items() if not name.startswith(".")}


def ours(live: Running, kind: str) -> dict[str, bytes]:
    return fetched(live.home, kind)


def test_models_and_saes_are_fetched_on_each_node_and_no_process_or_log_has_the_token(
    live: Running, own_nodes: Nodes, hub: LoopbackHub, caches: list[Path]
) -> None:
    model_id = model(live)
    stages: list[str] = []
    live.service.owners.bus.subscribe(lambda event: stages.extend(_stage(event)))
    live.data("POST", f"/api/models/{model_id}/load?wait=true")
    assert "fetching_files" in stages
    replicated = Replicated(live, PATIENCE)
    replicated.whole(2)
    assert [fetched(cache, "models") for cache in caches] == [ours(live, "models")] * 2
    assert live.complete("One day", max_tokens=8, seed=7)["choices"][0]["text"]
    assert {seen.token for seen in hub.asked("/resolve/")} == {TOKEN}

    made = downloaded(
        live, "saes/download", {"repository_id": SAES, "file_path": f"{PATH}/{WEIGHTS}"}
    )
    live.data("POST", f"/api/saes/{made['id']}/attach", {"layer": SAE.layer})
    assert [fetched(cache, "saes") for cache in caches] == [ours(live, "saes")] * 2

    asked = len(hub.seen)
    live.data("POST", f"/api/models/{model_id}/unload")
    live.data("POST", f"/api/models/{model_id}/load?wait=true")
    assert len(hub.seen) == asked
    logs = [file for file in own_nodes.logs().rglob("*") if file.is_file()]
    assert not [file for file in logs if TOKEN.encode() in file.read_bytes()]


def test_an_sae_that_a_node_lacks_and_cannot_fetch_is_refused_and_all_replicas_serve_on(
    live: Running, own_nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is in a cache folder of the service, in the place of which the nodes have another folder."""
    model_id = model(live)
    live.data("POST", f"/api/models/{model_id}/load?wait=true")
    replicated = Replicated(live, PATIENCE)
    before = replicated.whole(2)
    # a record of before: requests may not name the folders of the service now
    monkeypatch.setattr(ClientPaths, "check_allowed", lambda _, named: allow_all(named))
    for name, body in files_of(SAE.path).items():
        file = live.home / "saes" / "own" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    sae_id = live.data(
        "POST", "/api/saes/download", {"local_path": str(live.home / "saes" / "own")}, 202
    )["sae_id"]
    status, code, details = live.error("POST", f"/api/saes/{sae_id}/attach", {"layer": SAE.layer})
    assert (status, code) == (400, "INVALID_LOCAL_PATH")
    assert details["node"] in {replica["node"] for replica in before["replicas"]}
    assert details["path"] == str(live.home / "saes" / "own")
    assert replicated.now()["replicas"] == before["replicas"]


def test_a_hub_that_nodes_cannot_reach_is_told_with_the_node_and_the_next_load_works(
    live: Running, hub: LoopbackHub, caches: list[Path]
) -> None:
    hub.add("acme/other", files_of(demo.MODEL_DIR), tokens=(TOKEN,))
    record = downloaded(live, "models", {"source": "huggingface", "repo_id": "acme/other"})
    hub.fault("", status=503)
    try:
        status, code, details = live.error("POST", f"/api/models/{record['id']}/load?wait=true")
    finally:
        hub.heal()
    assert (status, code) == (503, "HUB_UNAVAILABLE")
    assert details["node"]
    assert not any("acme--other" in name for cache in caches for name in fetched(cache, "models"))
    live.data("POST", f"/api/models/{record['id']}/load?wait=true")
    assert Replicated(live, PATIENCE).whole(2)
