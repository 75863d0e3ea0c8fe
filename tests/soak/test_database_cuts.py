"""Cuts of the network to a PostgreSQL server, and a server that is stalled or stopped: the service answers from memory
meanwhile, uses the database again afterwards, and starts again after it was killed behind a cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.database.postgres import HERE, Server, programs, serving
from tests.engines.remote.proxy import Proxy, proxied
from tests.soak.watching import stressed, until

BACK_SECONDS = 30.0
CUTS = (10, 30, 60, 90)
STALLS = (10, 30)
STOPS = (10, 30)


@contextmanager
def road(port: int) -> Iterator[tuple[int, Proxy]]:
    """A port that reaches the server, and its network."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    between = proxied(HERE, port)
    try:
        yield asyncio.run_coroutine_threadsafe(between.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(between.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def make_profile(http: httpx2.Client, name: str) -> httpx2.Response:
    return http.post("/api/profiles", json={"name": name, "steering": {"1": 1.0}})


def is_ready(http: httpx2.Client) -> bool:
    return http.get("/api/health/ready").status_code == 200


def hold_out(http: httpx2.Client, seconds: float) -> None:
    """What needs the database is refused for so long, and the rest is answered."""
    ends = threading.Event()
    timer = threading.Timer(seconds, ends.set)
    timer.start()
    while not ends.wait(1.0):
        refused = make_profile(http, "lost")
        assert refused.status_code == 503, refused.text
        details = refused.json()["error"]["details"]
        assert details["needs_restart"] is False
        assert http.get("/api/health").status_code == 200
        assert http.get("/v1/models").status_code == 200


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_service_outlasts_faults_of_the_server_and_of_the_network(tmp_path: Path) -> None:
    installed = programs()
    if installed is None:
        pytest.skip("the programs of PostgreSQL are not installed")
    with serving(installed) as server, road(server.port) as (port, proxy):
        settings = {"database_url": server.url(port)}
        with stressed(tmp_path / "home", **settings) as served:
            for begin, end, seconds in faults(server, proxy):
                begin()
                hold_out(served.http, seconds)
                end()
                took = until(lambda: is_ready(served.http), "the service is ready", BACK_SECONDS)
                print(f"{begin.__name__} for {seconds} s: ready after {took:.1f} s")
                made = make_profile(served.http, f"{begin.__name__} {seconds}")
                assert made.status_code == 201, made.text
            proxy.is_split = True
            served.process.kill()
            served.wait()
        proxy.is_split = False
        with stressed(tmp_path / "home", **settings) as served:
            assert len(served.http.get("/api/profiles").json()["data"]["profiles"]) == 8


def faults(
    server: Server, proxy: Proxy
) -> Iterator[tuple[Callable[[], None], Callable[[], None], int]]:
    def cut() -> None:
        proxy.is_split = True

    def join() -> None:
        proxy.is_split = False

    for begin, end, lengths in (
        (cut, join, CUTS),
        (server.stall, server.go_on, STALLS),
        (server.stop, server.start, STOPS),
    ):
        for seconds in lengths:
            yield begin, end, seconds
