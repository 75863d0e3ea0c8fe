"""The database on a PostgreSQL server, which is cut off, stopped and stalled. TEST_POSTGRES_URL names an empty database
that these tests may change, where the programs of PostgreSQL are not installed; then some of them are left out."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from steerserve.database import db, engines, holding, sessions
from steerserve.database.catalog import Catalog
from steerserve.database.db import Database
from steerserve.database.holding import AdvisoryHold
from steerserve.errors import CannotStart, Refusal
from steerserve.settings.checks import database_url
from tests.database.postgres import HERE, Server, programs, serving
from tests.engines.remote.proxy import Proxy, proxied

CUT_SECONDS = 1.0
BACK_SECONDS = 10.0
"""Seconds in which the database must be of use again."""
IN_ANOTHER_PROCESS = """
import asyncio, sys
from steerserve.database.db import Database

async def hold():
    await Database(sys.argv[1]).open()
    print("open", flush=True)
    await asyncio.sleep(600)

asyncio.run(hold())
"""


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server | None]:
    installed = programs()
    if installed is None:
        yield None
        return
    with serving(installed) as server:
        yield server


@pytest.fixture
def server(own_server: Server | None) -> Server:
    if own_server is None:
        pytest.skip("the programs of PostgreSQL are not installed")
    return own_server


@pytest.fixture
def url(own_server: Server | None) -> str:
    named = own_server.url() if own_server else os.environ.get("TEST_POSTGRES_URL")
    if not named:
        pytest.skip("there is no PostgreSQL server")
    return database_url(named)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(db, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(holding, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(holding, "POLL_SECONDS", 0.1)


async def test_rows_are_kept_and_a_second_service_is_refused(url: str) -> None:
    first = Database(url)
    await first.open()
    made = await Catalog(first).add_model(
        name="m", source="local", quantization="FP16", local_path="/models/m", status="loading"
    )
    second = Database(url)
    with pytest.raises(CannotStart, match="another steerserve uses it") as refused:
        await second.open()
    assert f"process {os.getpid()} on host" in str(refused.value)
    assert "pg_terminate_backend" in str(refused.value)
    assert (await Catalog(first).model(made.id)).status == "loading"
    await first.close()
    await second.open()
    assert (await Catalog(second).model(made.id)).status == "ready"
    await Catalog(second).remove_model(made.id)
    await second.close()


async def test_a_server_that_forgot_the_hold_is_asked_for_it_again(url: str) -> None:
    now = 0.0
    database = Database(url, clock=lambda: now)
    await database.open()
    assert await database.fault() is None
    async with database.read() as connection:
        others = "pid <> pg_backend_pid() AND datname = current_database()"
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
        await connection.execute(text(ended))
    now = 1.0
    assert await database.fault() is None
    second = Database(url)
    with pytest.raises(CannotStart, match="another steerserve uses it"):
        await second.open()
    now = 2.0
    await database._hold.release()
    await second.open()
    fault = await database.fault()
    assert fault is not None
    assert (fault.reason, fault.needs_restart) == ("another steerserve has taken it", True)
    assert f"process {os.getpid()} on host" in str(fault.driver_text)
    await second.close()
    await database.close()


async def test_a_wrong_password_is_not_repeated(url: str) -> None:
    scheme, _, rest = url.partition("://")
    where = rest.rpartition("@")[2]
    database = Database(f"{scheme}://nobody:sentinel@{where}")
    with pytest.raises(CannotStart, match="check DATABASE_URL") as refused:
        await database.open()
    assert "sentinel" not in str(refused.value)


@pytest.fixture
async def road(server: Server) -> AsyncIterator[tuple[str, Proxy]]:
    """The URL of the database behind a network, and the network."""
    async with proxied(HERE, server.port) as (port, proxy):
        yield database_url(server.url(port)), proxy


async def until_usable(database: Database) -> None:
    since = time.monotonic()
    while (fault := await database.fault()) is not None:
        assert not fault.needs_restart, fault
        assert time.monotonic() - since < BACK_SECONDS, fault
        await asyncio.sleep(0.1)


async def write(database: Database, name: str) -> int:
    made = await Catalog(database).add_model(
        name=name, source="local", quantization="FP16", status="ready"
    )
    return made.id


async def refused_for(database: Database, seconds: float) -> None:
    """Every write is refused, also after some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with pytest.raises(Refusal) as refused:
            await write(database, "lost")
        assert refused.value.code == "DATABASE_UNAVAILABLE"
        assert not refused.value.details["needs_restart"]
        await asyncio.sleep(0.2)


Fault = Callable[[Server, Proxy], None]


def split(_: Server, proxy: Proxy) -> None:
    # the server hears nothing of the end of a connection whose bytes vanish
    proxy.is_split = True


def join(_: Server, proxy: Proxy) -> None:
    proxy.is_split = False


FAULTS: dict[str, tuple[Fault, Fault]] = {
    "cut": (split, join),
    "stalled": (lambda server, _: server.stall(), lambda server, _: server.go_on()),
    "stopped": (lambda server, _: server.stop(), lambda server, _: server.start()),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[pytest.mark.slow] * (name != "cut")) for name in FAULTS]
)
async def test_the_database_is_of_use_after_a_fault_of_its_server_or_its_network(
    server: Server, road: tuple[str, Proxy], fault: str
) -> None:
    url, proxy = road
    begin, end = FAULTS[fault]
    database = Database(url)
    await database.open()
    kept = await write(database, "before")
    await asyncio.to_thread(begin, server, proxy)
    await refused_for(database, CUT_SECONDS)
    await asyncio.to_thread(end, server, proxy)
    await until_usable(database)
    made = await write(database, "after")
    assert {row.id for row in await Catalog(database).models()} >= {kept, made}
    for model_id in (kept, made):
        await Catalog(database).remove_model(model_id)
    await database.close()


async def test_a_service_that_died_behind_a_cut_is_followed_at_once(
    road: tuple[str, Proxy],
) -> None:
    url, proxy = road
    program = [sys.executable, "-c", IN_ANOTHER_PROCESS, url]
    dead = await asyncio.create_subprocess_exec(*program, stdout=subprocess.PIPE)
    assert dead.stdout is not None
    assert await dead.stdout.readline() == b"open\n"
    proxy.is_split = True
    dead.kill()
    await dead.wait()
    proxy.is_split = False
    database = Database(url)
    await database.open()
    await database.close()


async def test_a_session_that_may_live_is_waited_for_and_not_ended(
    road: tuple[str, Proxy], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a service on another machine, nobody knows here whether it lives."""
    far, proxy = road
    with monkeypatch.context() as patched:
        patched.setattr(sessions, "own_name", lambda: "steerserve on far pid 7 0badcafe.1")
        patched.setattr(holding, "HEARTBEAT_SECONDS", 600.0)
        cut_off = Database(far)
        await cut_off.open()
    proxy.is_split = True
    second = Database(url)
    with monkeypatch.context() as patched:
        patched.setattr(holding, "START_SECONDS", 0.5)
        with pytest.raises(CannotStart, match="process 7 on host 'far'"):
            await second.open()
    opening = asyncio.create_task(second.open())
    server = create_async_engine(url)
    async with server.connect() as connection:
        far_ones = "SELECT pid FROM pg_stat_activity WHERE application_name ~ ' far '"
        await connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM ({far_ones}) AS far"))
    await opening
    await server.dispose()
    assert await write(second, "after")
    await second.close()
    await cut_off.close()


async def test_the_server_ends_sessions_that_it_cannot_reach(url: str) -> None:
    database = Database(url)
    await database.open()
    hold = database._hold
    assert isinstance(hold, AdvisoryHold)
    assert hold._connection is not None
    asked = text("SELECT name, setting FROM pg_settings WHERE name ~ '^tcp_'")
    rows = (await hold._connection.execute(asked)).all()
    assert dict(rows) == sessions.KEEPALIVES  # type: ignore[arg-type]
    await database.close()


def test_no_process_that_runs_counts_as_dead() -> None:
    def session(name: str | None) -> sessions.Session:
        return sessions.Session(1, None, name, None, None)

    own = sessions.own_name()
    assert not session(own).has_dead_process
    head, _, _ = own.rpartition(".")
    assert session(f"{head}.1").has_dead_process
    for other in (None, "psql", own.replace(head[-8:], "0badcafe")):
        assert not session(other).has_dead_process
