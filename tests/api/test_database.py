"""Faults of the database while the service runs, seen by its clients: real files, one service for the faults that end
without a restart."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from steerserve import demo
from steerserve.database import db, watch
from tests.conftest import Start
from tests.service import Running, add_demo, add_sae, load_demo, running

NUMBERS = count()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with the demo model loaded, which waits only briefly for a locked file and checks a fault at once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(db, "BUSY_SECONDS", 0.05)
        patched.setattr(db, "EXAMINE_SECONDS", 0.05)
        patched.setattr(watch, "CHECK_SECONDS", 0.0)
        with running(tmp_path_factory.mktemp("home")) as live:
            load_demo(live)
            yield live


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(db, "SETTLE_SECONDS", 0.02)


def file_of(live: Running) -> Path:
    return live.home / "steerserve.db"


def profile(**changes: Any) -> dict[str, Any]:
    return {"name": f"profile {next(NUMBERS)}", "steering": {"1": 1.0}, **changes}


def saved(file: Path) -> set[str]:
    """The names of the profiles in the file, as another program finds them."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM profiles")}


def check_refused(live: Running, *words: str, needs_restart: bool = False) -> None:
    """A write is refused in the form of its surface, and readiness says why."""
    body = profile()
    answer = live.http.post("/api/profiles", json=body)
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "10"
    error = answer.json()["error"]
    assert error["code"] == "DATABASE_UNAVAILABLE"
    assert error["details"]["needs_restart"] is needs_restart
    status, code, details = live.error("GET", "/api/health/ready")
    assert (status, code) == (503, "NOT_READY")
    (component,) = (c for c in details["components"] if c["name"] == "database")
    for word in words:
        assert word in error["message"]
        assert word in component["message"]
    assert live.http.get("/api/health").status_code == 200


def check_inference(live: Running) -> None:
    """Everything that needs the loaded model only is served."""
    assert live.chat("fish", max_tokens=1)["choices"]
    assert live.complete("fish", max_tokens=1)["choices"]
    assert live.http.get("/v1/models").json()["data"][0]["id"] == demo.MODEL_NAME
    named = {"model": demo.MODEL_NAME, "input": "fish"}
    assert live.http.post("/v1/embeddings", json=named).status_code == 200
    assert live.v1_error("/v1/completions", {"model": "nobody", "prompt": "x"})[0] == 404
    assert live.data("GET", "/api/models")["models"][0]["status"] == "loaded"
    assert live.data("GET", "/api/health/detailed")["model_name"] == demo.MODEL_NAME


def check_usable(live: Running) -> None:
    body = profile()
    assert live.http.get("/api/health/ready").status_code == 200
    live.data("POST", "/api/profiles", body, 201)
    assert body["name"] in saved(file_of(live))


@contextmanager
def gone(live: Running) -> Iterator[None]:
    away = live.home / "away.db"
    file_of(live).rename(away)
    try:
        yield
        assert not file_of(live).exists()
    finally:
        away.rename(file_of(live))


@contextmanager
def locked(live: Running) -> Iterator[None]:
    with closing(sqlite3.connect(file_of(live))) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def status_of(live: Running) -> str:
    with closing(sqlite3.connect(file_of(live))) as other:
        return str(other.execute("SELECT status FROM models").fetchone()[0])


@contextmanager
def limited(live: Running, limit: str, lift: str) -> Iterator[None]:
    """Every connection of the service has the pragma `limit` while the block runs."""
    database = live.service.owners.around.database
    pools = [database._engine.sync_engine, database._fresh.sync_engine]
    pragmas = [limit]

    def ask(connection: Any, *_: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA {pragmas[-1]}")
        cursor.close()

    for pool in pools:
        event.listen(pool, "checkout", ask)
    try:
        yield
    finally:
        pragmas.append(lift)


@contextmanager
def read_only(live: Running) -> Iterator[None]:
    with limited(live, "query_only=ON", "query_only=OFF"):
        yield


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (gone, ["its file is gone"]),
        (locked, ["another program has locked it"]),
        (read_only, ["it is read-only"]),
    ],
)
def test_a_fault_that_passes_is_a_typed_503_inference_goes_on_and_then_all_works_again(
    serving: Running, fault: Callable[[Running], Any], words: list[str]
) -> None:
    calm = profile()
    serving.data("POST", "/api/profiles", calm, 201)
    serving.chat("fish", profile=calm["name"], max_tokens=1)
    with fault(serving):
        check_refused(serving, *words)
        check_inference(serving)
        serving.chat("fish", profile=calm["name"], max_tokens=1)
        check_refused(serving, *words)
    check_usable(serving)
    assert calm["name"] in saved(file_of(serving))


def test_a_full_disk_is_a_typed_503_until_there_is_room_again(serving: Running) -> None:
    large = profile(steering={str(i): 1.0 for i in range(1000)})
    with limited(serving, "max_page_count=1", "max_page_count=1000000"):
        status, code, details = serving.error("POST", "/api/profiles", large)
        assert (status, code, details["reason"]) == (
            503,
            "DATABASE_UNAVAILABLE",
            "its disk is full",
        )
        check_inference(serving)
    assert large["name"] not in saved(file_of(serving))
    serving.data("POST", "/api/profiles", large, 201)
    check_usable(serving)


@pytest.mark.parametrize("endings", [("-wal",), ("-shm",), ("-wal", "-shm")])
def test_the_loss_of_the_log_of_sqlite_loses_no_acknowledged_write(
    serving: Running, endings: tuple[str, ...]
) -> None:
    before = profile()
    serving.data("POST", "/api/profiles", before, 201)
    settle(serving)  # otherwise this work may see the loss first, and the next request mends it
    for ending in endings:
        Path(f"{file_of(serving)}{ending}").unlink()
    refused = profile()
    status, code, details = serving.error("POST", "/api/profiles", refused)
    assert (status, code, details["needs_restart"]) == (503, "DATABASE_UNAVAILABLE", False)
    check_inference(serving)
    while serving.http.get("/api/health/ready").status_code != 200:
        pass
    check_usable(serving)
    assert before["name"] in saved(file_of(serving))
    assert refused["name"] not in saved(file_of(serving))


@pytest.mark.local("a replica that ends is started again while its model stays loaded")
def test_an_engine_that_ends_is_replaced_with_its_saes_while_the_database_is_gone(
    serving: Running,
) -> None:
    sae = demo.saes()[0]
    sae_id = add_sae(serving, sae)
    serving.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
    with gone(serving):
        resident = serving.service.owners.conductor.resident
        assert resident is not None
        os.kill(resident.held().pid or 0, 9)
        while serving.service.owners.conductor.resident is not None:
            pass
        assert serving.chat("fish", max_tokens=1)["choices"]
        assert serving.data("GET", "/api/saes/attachment")["sae_id"] == sae_id
        serving.data("POST", f"/api/saes/{sae_id}/detach")
    check_usable(serving)


def test_a_status_is_recorded_once_the_database_takes_writes_again(serving: Running) -> None:
    row = serving.data("GET", "/api/models")["models"][0]
    with locked(serving):
        serving.data("POST", f"/api/models/{row['id']}/unload")
        while serving.service.owners.conductor.resident is not None:
            pass
        assert status_of(serving) == "loaded"
    while status_of(serving) != "ready":
        pass
    assert serving.chat("fish", max_tokens=1)["choices"]
    assert status_of(serving) == "loaded"


def test_activations_come_without_labels_while_the_labels_cannot_be_read(serving: Running) -> None:
    sae = demo.saes()[0]
    sae_id = add_sae(serving, sae)
    serving.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
    serving.service.owners.labels._known.clear()
    with gone(serving):
        answer = serving.chat("fish", max_tokens=1, return_sae_activations={"top_k": 1})
        assert answer["service"]["sae_activations"]["positions"]
        status, code, _ = serving.error("GET", f"/api/saes/{sae_id}/labels")
        assert (status, code) == (503, "DATABASE_UNAVAILABLE")
    serving.data("POST", f"/api/saes/{sae_id}/detach")


def test_a_request_that_names_an_unknown_profile_is_told_that_the_database_is_away(
    serving: Running,
) -> None:
    messages = [{"role": "user", "content": "fish"}]
    body = {"model": demo.MODEL_NAME, "messages": messages, "profile": "never used"}
    with gone(serving):
        status, error = serving.v1_error("/v1/chat/completions", body)
    assert (status, error["code"]) == (503, "database_unavailable")
    assert error["type"] == "server_error"


def test_a_fault_is_logged_once_and_its_end_once(
    serving: Running, caplog: pytest.LogCaptureFixture
) -> None:
    check_usable(serving)
    caplog.clear()
    with gone(serving):
        for _ in range(5):
            serving.error("POST", "/api/profiles", profile())
            serving.error("GET", "/api/health/ready")
    check_usable(serving)
    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    events = [line["event"] for line in lines if line["event"].startswith("database_")]
    assert events == ["database_fault", "database_fault_over"]


# ---------------------------------------------------------------------- faults that only a restart ends


def another_database(live: Running) -> None:
    """Move an older copy into the place of the file."""
    os.replace(live.home / "copy.db", file_of(live))


def copied_over(live: Running) -> None:
    """Write an older copy into the file itself."""
    shutil.copyfile(live.home / "copy.db", file_of(live))


@pytest.mark.parametrize(
    ("replace", "words"),
    [
        (another_database, "another file has taken the place"),
        (copied_over, "another program has overwritten"),
    ],
)
def test_a_replaced_file_is_never_written_and_a_restart_serves_what_is_there(
    start: Start, replace: Callable[[Running], None], words: str
) -> None:
    with start() as live:
        kept, lost = profile(), profile()
        live.data("POST", "/api/profiles", kept, 201)
        settle(live)
        shutil.copyfile(file_of(live), live.home / "copy.db")
        live.data("POST", "/api/profiles", lost, 201)
        model_id = add_demo(live)
        settle(live)
        replace(live)
        content = file_of(live).read_bytes()
        for _ in range(2):
            check_refused(live, words, "start the service again", needs_restart=True)
        assert live.error("GET", "/api/profiles")[:2] == (503, "DATABASE_UNAVAILABLE")
        assert live.error("DELETE", f"/api/models/{model_id}")[:2] == (503, "DATABASE_UNAVAILABLE")
        assert live.http.get("/v1/models").json()["data"][0]["id"] == demo.MODEL_NAME
    assert file_of(live).read_bytes() == content
    with start() as live:
        names = {one["name"] for one in live.data("GET", "/api/profiles")["profiles"]}
        assert names == {kept["name"]}
        check_usable(live)


def settle(live: Running) -> None:
    """Wait until the last writes are in the file itself."""
    settling = live.service.owners.around.database._settling
    while settling is not None and not settling.done():
        pass
