"""Clients that stop reading their stream: they hold no slot, nobody else is slower, and a stop does not wait for them."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Start
from tests.soak import watching
from tests.soak.clients import SHORT, connections, leave, read_events, send, text_of
from tests.soak.inside import held, one_model, until_as_before, until_inactive
from tests.soak.watching import in_ms, sizes, stressed

NAME = "r" * 100
"""The model's name is in every event: with a long one an answer has more bytes than the system keeps for a reader."""
FLOWING: dict[str, Any] = SHORT | {
    "model": NAME,
    "prompt": ["the boats"] * 128,
    "max_tokens": 240,
    "stream": True,
}
TAKEN = 2048
"""Bytes that a slow reader's side takes without being read."""
ROOM = {"max_concurrent_requests": 2}
GRACE_SECONDS = 1.0
LEAVE_SECONDS = 3.0
WAIT_SECONDS = 200.0
"""How long another client waits at most, because the model writes the long answers of all readers before its own."""


@dataclass(frozen=True, slots=True)
class Slow:
    """How many clients never read, and how many requests somebody else makes meanwhile."""

    readers: int
    requests: int


@sizes(Slow(2, 10), Slow(12, 300), seconds=300)
@pytest.mark.soak
def test_readers_that_stop_hold_no_slot_and_slow_nobody(
    start: Start, folders: dict[str, Path], size: Slow
) -> None:
    with one_model(start, folders["red"], NAME, **ROOM) as live:
        live.http.timeout = WAIT_SECONDS
        text = text_of(live.http, model=NAME)
        before = held(live)
        with connections(live.url, size.readers, room=TAKEN) as links:
            for link in links:
                send(link, FLOWING)
            durations = []
            for _ in range(size.requests):
                since = time.monotonic()
                assert text_of(live.http, model=NAME) == text
                durations.append(time.monotonic() - since)
            watching.until_idle(live.http, 10.0 * size.readers)
            assert live.service.owners.generation.active == size.readers, (
                "their answers were not stuck"
            )
            since = time.monotonic()
            assert text_of(live.http, model=NAME) == text
            alone = time.monotonic() - since
            for link in links:
                leave(link, is_rude=True)
        print(f"beside {size.readers} slow readers: {in_ms(durations)}; when stuck {alone:.3f} s")
        until_inactive(live, LEAVE_SECONDS)
        until_as_before(live, before)


@pytest.mark.soak
def test_a_stop_does_not_wait_for_readers_that_stopped(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    with stressed(tmp_path, graceful_shutdown_timeout=GRACE_SECONDS) as served:
        watching.load(served.http, watching.register(served.http, folders["red"], NAME))
        with connections(served.url, 1, room=TAKEN) as links:
            send(links[0], FLOWING)
            read_events(links[0], 1)
            watching.until_idle(served.http)
            since = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            assert served.wait() == 0
            watching.until_ended(served.process.pid)
            took = time.monotonic() - since
        print(f"stopped after {took:.2f} s, of which {GRACE_SECONDS} s were for the reader")
        assert took < GRACE_SECONDS + watching.STOP_SECONDS
