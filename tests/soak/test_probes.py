"""Probes and model lists answer at once, also while models load and while the queue is full."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.conftest import Start
from tests.service import Running
from tests.soak import watching
from tests.soak.clients import LONG, SHORT, connections, send, text_of
from tests.soak.inside import engine, one_model, until_inactive
from tests.soak.watching import PATIENCE, Process, frozen, in_ms, sizes, stressed

PROBES = ("/api/health", "/api/health/ready", "/api/health/detailed", "/api/models", "/v1/models")
ANSWER_SECONDS = 2.0
"""No probe takes longer. What is typical is printed."""
CONCURRENT, PENDING = 2, 4


@dataclass(frozen=True, slots=True)
class Probing:
    """How often each probe asks in each situation, and the loads that it asks amid."""

    rounds: int
    loads: int


def probe(
    http: httpx2.Client, durations: dict[str, list[float]], *, is_frozen: bool = False
) -> None:
    """Ask every probe once. Readiness turns to 503 a second after the engine was frozen."""
    for path in PROBES:
        since = time.monotonic()
        answer = http.get(path)
        durations[path].append(time.monotonic() - since)
        turns = is_frozen and path == "/api/health/ready"
        assert answer.status_code in ({200, 503} if turns else {200}), answer.text


def check(situation: str, durations: dict[str, list[float]]) -> None:
    for path, measured in durations.items():
        print(f"{situation}: {path} x {len(measured)}: {in_ms(measured)}")
        assert max(measured) < ANSWER_SECONDS, (situation, path)


def swap_in_turn(served: Process, ids: list[int], count: int, over: threading.Event) -> None:
    try:
        with httpx2.Client(base_url=served.url, timeout=PATIENCE) as http:
            for number in range(count):
                watching.load(http, ids[number % len(ids)])
    finally:
        over.set()


@sizes(Probing(20, 6), Probing(500, 60), seconds=300)
@pytest.mark.soak
def test_probes_answer_amid_loads(tmp_path: Path, folders: dict[str, Path], size: Probing) -> None:
    durations: dict[str, list[float]] = {path: [] for path in PROBES}
    over = threading.Event()
    with stressed(tmp_path) as served, ThreadPoolExecutor(1) as pool:
        ids = [watching.register(served.http, folder, n) for n, folder in folders.items()]
        loading = pool.submit(swap_in_turn, served, ids, size.loads, over)
        while not over.is_set():
            probe(served.http, durations)
        loading.result()
        check(f"amid {size.loads} loads", durations)


@contextmanager
def full_queue(live: Running) -> Iterator[None]:
    """While open, every place is taken by requests of which none comes to its end."""
    with connections(live.url, CONCURRENT + PENDING) as links, frozen(engine(live)):
        for link in links:
            send(link, LONG)
        watching.until(
            lambda: watching.counters(live.http)["queue_pending"] == len(links), "a full queue"
        )
        yield


@sizes(Probing(20, 0), Probing(500, 0), seconds=120)
def test_probes_answer_beside_a_full_queue(
    start: Start, folders: dict[str, Path], size: Probing
) -> None:
    durations: dict[str, list[float]] = {path: [] for path in PROBES}
    room = {"max_concurrent_requests": CONCURRENT, "max_pending_requests": PENDING}
    with one_model(start, folders["red"], **room) as live:
        text = text_of(live.http)
        with full_queue(live):
            assert live.http.post("/v1/completions", json=SHORT).status_code == 503
            for _ in range(size.rounds):
                probe(live.http, durations, is_frozen=True)
        check("beside a full queue", durations)
        until_inactive(live, PATIENCE)
        assert text_of(live.http) == text
