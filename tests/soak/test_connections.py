"""Hundreds of clients that send slowly, read nothing, or flood the live events: probes are answered all the time, and
nothing of these clients is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil
import pytest
import websockets.exceptions
from websockets.sync.client import connect as websocket

from steerserve.rules.bounds import RESERVED_CONNECTIONS
from tests.processes import Process
from tests.soak import watching
from tests.soak.clients import connect
from tests.soak.watching import in_ms, sizes, stressed

PROBE_SECONDS = 2.0
GROWTH_MB = 60.0
"""MiB that the control plane may keep of a flood."""
MOST = 300
LIMITS = {
    "max_connections": MOST,
    "max_live_clients": 50,
    "request_headers_timeout": 2,
    "request_body_timeout": 2,
    "answer_stall_timeout": 2,
}
HOST = b"Host: localhost\r\n"
LONG_BODY = b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
OPENINGS = {
    "nothing": (b"", b""),
    "headers": (b"GET / HTTP/1.1\r\nX: ", b"a"),
    "blank lines": (b"\r\n", b"\r\n"),
    "body": (b"POST /v1/completions HTTP/1.1\r\n" + HOST + LONG_BODY, b" "),
    "body that nobody reads": (b"GET /api/health HTTP/1.1\r\n" + HOST + LONG_BODY, b" "),
    "chunks": (
        b"POST /api/models HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n",
        b"1\r\n \r\n",
    ),
    "reading": ((b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n") * 16, b""),
}
"""What a slow client sends first, and then in every round."""
PACKETS = ("3", '42["system:join"]', "", '451-["x",{"_placeholder":true,"num":0}]', "42[" * 100)
"""What a client of live events repeats."""


@dataclass(frozen=True, slots=True)
class Slow:
    """How many clients there are at once, and how often each of the floods is repeated."""

    clients: int
    rounds: int


class Probes:
    """Asks for liveness again and again, each time on a new connection."""

    def __init__(self, served: Process) -> None:
        self._url = served.url
        self.seconds: list[float] = []

    def ask(self) -> None:
        since = time.monotonic()
        assert httpx2.get(f"{self._url}/api/health", timeout=10).status_code == 200
        self.seconds.append(time.monotonic() - since)


def slow_clients(probes: Probes, url: str, size: Slow, first: bytes, later: bytes) -> None:
    with ExitStack() as opened:
        links = []
        for _ in range(size.clients):
            links.append(opened.enter_context(connect(url, room=2048)))
            with suppress(OSError):
                links[-1].sendall(first)
        for _ in range(10 * size.rounds):
            probes.ask()
            for link in links:
                with suppress(OSError):
                    link.sendall(later)


def sessions_without_end(probes: Probes, url: str, size: Slow) -> None:
    """Sessions of live events whose clients never join."""
    with httpx2.Client(base_url=url) as http:
        for number in range(size.clients * size.rounds):
            assert http.get("/socket.io/?EIO=4&transport=polling").status_code == 200
            if number % 50 == 0:
                probes.ask()


def packets_without_end(probes: Probes, url: str, size: Slow) -> None:
    """WebSockets that send the same packet as fast as they can."""
    address = url.replace("http", "ws") + "/socket.io/?EIO=4&transport=websocket"
    for number in range(size.rounds * len(PACKETS) * 5):
        with suppress(websockets.exceptions.WebSocketException), websocket(address) as link:
            link.send("40")
            for _ in range(5000):
                link.send(PACKETS[number % len(PACKETS)])
        probes.ask()


def floods(size: Slow) -> Iterator[tuple[str, Callable[[Probes, str], None]]]:
    for name, (first, later) in OPENINGS.items():
        yield name, lambda p, u, f=first, n=later: slow_clients(p, u, size, f, n)  # type: ignore[misc]
    yield "sessions", lambda p, u: sessions_without_end(p, u, size)
    yield "packets", lambda p, u: packets_without_end(p, u, size)


@sizes(Slow(20, 1), Slow(MOST + RESERVED_CONNECTIONS + 100, 3), seconds=900)
@pytest.mark.soak
def test_floods_of_connections_leave_liveness_and_nothing_behind(
    tmp_path: Path, size: Slow
) -> None:
    with stressed(tmp_path, **LIMITS) as served:
        plane = psutil.Process(served.process.pid)
        probes = Probes(served)
        probes.ask()
        before = watching.usage(served)
        for name, flood in floods(size):
            probes.seconds.clear()
            flood(probes, served.url)
            watching.until(
                lambda: plane.num_fds() <= before.files + 5, f"connections of {name} are closed"
            )
            growth = watching.usage(served).rss_mb - before.rss_mb
            print(f"{name}: probes {in_ms(probes.seconds)}; {growth:.1f} MiB more")
            assert max(probes.seconds) < PROBE_SECONDS, name
            assert growth < GROWTH_MB, name
        assert not watching.complaints(served)
        watching.stop(served)
