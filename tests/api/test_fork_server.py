"""The server that forks the engines is killed: the service starts another one, and loads go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest

from steerserve import demo
from tests.conftest import Start
from tests.service import Running, add_model, load_demo

pytestmark = pytest.mark.local("engines of a cluster are forked on its nodes")


def fork_server(live: Running) -> psutil.Process:
    """The parent of the engine, which is the one process that forks."""
    resident = live.service.owners.conductor.resident
    assert resident is not None
    assert resident.engine is not None
    parent = psutil.Process(resident.engine.pid).parent()
    assert parent is not None
    assert "forkserver" in " ".join(parent.cmdline())
    return parent


@pytest.mark.parametrize("is_loaded", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_killed_fork_server_is_started_anew_by_the_next_load(
    start: Start, tmp_path: Path, is_loaded: bool
) -> None:
    with start() as live:
        first = load_demo(live)
        server = fork_server(live)
        second = add_model(live, shutil.copytree(demo.MODEL_DIR, tmp_path / "second"))
        if not is_loaded:
            live.data("POST", f"/api/models/{first}/unload")
        server.kill()
        # to wait for it here would take its end from the one who looks for it
        while server.status() != psutil.STATUS_ZOMBIE:
            pass
        if is_loaded:  # the engine is a process of its own and serves on
            assert live.complete("One day", max_tokens=1)["choices"]
        live.data("POST", f"/api/models/{second}/load?wait=true")
        assert fork_server(live).pid != server.pid
        answer = live.http.post("/v1/completions", json={"model": "second", "prompt": "x"})
        assert answer.status_code == 200
        assert live.http.get("/api/health/ready").status_code == 200
