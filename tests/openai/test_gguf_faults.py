"""A GGUF model whose process or file is harmed while the service runs: typed answers, and the model comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import gguf
from tests.service import Running, running

pytestmark = pytest.mark.local("GGUF models are served by one engine of this machine")

MODEL = "harmed:F32"
ASKED = {"model": MODEL, "prompt": "one", "max_tokens": 3, "temperature": 0}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf.write(tmp_path_factory.mktemp("gguf") / "harmed-F32.gguf", "F32")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("home"), load_timeout=60) as started:
        started.data("POST", "/api/models", {"source": "local", "local_path": str(file)}, 202)
        yield started


def engine_of(live: Running) -> psutil.Process:
    resident = live.service.owners.conductor.resident
    assert resident is not None
    assert resident.engine is not None
    return psutil.Process(resident.engine.pid)


def text(live: Running) -> str:
    answer = live.post("/v1/completions", ASKED)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_a_model_whose_process_was_killed_is_loaded_by_the_next_request(live: Running) -> None:
    before = text(live)
    process = engine_of(live)
    ports = {c.laddr.port for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
    os.kill(process.pid, signal.SIGKILL)
    seen = {"200": 0, "engine_unavailable": 0, "model_busy": 0, "model_not_loaded": 0}
    while not seen["200"]:
        answer = live.http.post("/v1/completions", json=ASKED)
        # the status of the process is not waited for here, because the service waits for it
        seen["200" if answer.status_code == 200 else answer.json()["error"]["code"]] += 1
    assert text(live) == before
    assert live.http.get("/api/health/ready").status_code == 200
    assert engine_of(live).pid != process.pid
    assert not psutil.pid_exists(process.pid)
    assert not {c.laddr.port for c in psutil.net_connections() if c.pid == process.pid} & ports


def test_a_file_that_shrinks_under_its_model_is_a_typed_failure(live: Running, file: Path) -> None:
    """The engine reads weights that are no longer there, and ends. Nothing else does."""
    before, whole = text(live), file.read_bytes()
    process = engine_of(live)
    os.truncate(file, 4096)
    try:
        status, error = live.v1_error("/v1/completions", ASKED)
        assert (status, error["code"]) == (503, "engine_unavailable")
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        while (error := live.v1_error("/v1/completions", ASKED)[1])["code"] == "model_busy":
            pass  # the slot is cleared
        assert error["code"] == "invalid_local_path"
        assert "cut short" in error["message"]
        assert live.http.get("/api/health").status_code == 200
    finally:
        file.write_bytes(whole)
    (row,) = live.data("GET", "/api/models")["models"]
    live.data("POST", f"/api/models/{row['id']}/load?wait=true")
    assert text(live) == before
