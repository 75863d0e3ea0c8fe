"""Paths of this machine that requests name, against a running service with LOCAL_PATHS and a secret in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steerserve import demo
from tests.conftest import Start
from tests.service import Running, load_demo, running

SECRET = "hf_thisIsNotARealToken0001"
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "models": ("/api/models", {"source": "local"}),
    "saes": ("/api/saes/download", {}),
    "vectors": ("/api/vectors", {"name": "x", "source": "local"}),
    "probes": ("/api/probes", {"name": "x", "source": "local"}),
    "corpora": ("/api/corpora", {"name": "x", "source": "local"}),
    "lenses": ("/api/lenses", {"name": "x", "source": "local"}),
    "lens": ("/api/lens", {"text": "One day"}),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An allowed folder with links that lead out of it, beside files that no request may read."""
    top = tmp_path_factory.mktemp("places")
    allowed, outside = top / "allowed", top / "outside"
    for folder in (allowed / "folder" / "inner", allowed / "secrets", outside):
        folder.mkdir(parents=True)
    (allowed / "secrets/token.txt").write_text(SECRET + "\n")
    (allowed / "secrets/token.txt").chmod(0o600)
    (outside / "notes.txt").write_text("somebody's notes\n")
    (allowed / "link.txt").symlink_to(outside / "notes.txt")
    (allowed / "way").symlink_to(outside)
    (allowed / "folder/inner/notes.txt").symlink_to(outside / "notes.txt")
    os.link(allowed / "secrets/token.txt", allowed / "other name.txt")
    (allowed / "link to token.txt").symlink_to(allowed / "secrets/token.txt")
    return top


@pytest.fixture(scope="module")
def live(places: Path) -> Iterator[Running]:
    with running(
        places / "allowed/home",
        local_paths=[places / "allowed", demo.DATA],
        hub_token_file=places / "allowed/secrets/token.txt",
    ) as made:
        load_demo(made)
        yield made


@pytest.mark.parametrize("kind", ROUTES)
def test_no_request_reads_a_path_that_the_operator_did_not_allow(
    live: Running, places: Path, kind: str
) -> None:
    route, fields = ROUTES[kind]
    allowed = places / "allowed"

    def refused(path: Path | str) -> tuple[str, dict[str, Any]]:
        named: dict[str, Any] = {"local_path": str(path)}
        body = fields | ({"kind": named} if kind == "lens" else named)
        answer = live.http.post(route, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "INVALID_LOCAL_PATH"), answer.text
        assert SECRET not in answer.text
        return error["message"], error["details"]

    for path in (
        places / "outside/notes.txt",
        places / "outside/missing.txt",
        places / "outside",
        allowed / "link.txt",
        allowed / "way/notes.txt",
        allowed / "folder/../../outside/notes.txt",
    ):
        message, details = refused(path)
        assert details["setting"] == "LOCAL_PATHS"
        # the answer tells nothing of what is there
        assert message.startswith("the path is outside of the folders that LOCAL_PATHS allows: ")
    message, _ = refused(allowed / "folder")
    assert "'notes.txt' at the path is a link that is outside" in message
    for path in (
        allowed / "secrets/token.txt",
        allowed / "secrets",
        allowed / "link to token.txt",
        allowed / "other name.txt",
        allowed / "home/steerserve.db",
        allowed / "home/models",
        allowed,
    ):
        message, _ = refused(path)
        assert "the service's own files" in message
    message, _ = refused(allowed / "missing.txt")
    assert "exist" in message


@pytest.mark.parametrize(
    ("settings", "is_read"),
    [
        ({}, True),
        ({"api_keys": "k"}, False),
        ({"api_keys": "k", "local_paths": "/"}, True),
        ({"local_paths": ""}, False),
    ],
)
def test_keys_close_the_paths_of_this_machine(
    start: Start, tmp_path: Path, settings: dict[str, Any], is_read: bool
) -> None:
    (tmp_path / "v.json").write_text("{}")
    with start(**settings) as live:
        live.http.headers["authorization"] = "Bearer k"
        body = {"name": "x", "source": "local", "local_path": str(tmp_path / "v.json")}
        _, code, details = live.error("POST", "/api/vectors", body)
    assert code == ("INVALID_VECTOR" if is_read else "INVALID_LOCAL_PATH")
    assert ("setting" in details) is not is_read


def test_a_record_of_before_is_loaded_with_a_warning(start: Start) -> None:
    with start() as live:
        load_demo(live)
        sae = demo.saes()[0]
        live.data("POST", "/api/saes/download", {"local_path": str(sae.path)}, 202)
    with start(local_paths="") as live:
        (model,) = live.data("GET", "/api/models")["models"]
        (sae_row,) = live.data("GET", "/api/saes")["saes"]
        live.data("POST", f"/api/models/{model['id']}/load?wait=true")
        loaded = live.data("GET", f"/api/models/{model['id']}")
        attached = live.data("POST", f"/api/saes/{sae_row['id']}/attach", {"layer": sae.layer})
        for warnings in (loaded["warnings"], attached["warnings"]):
            assert any("LOCAL_PATHS" in warning for warning in warnings)
