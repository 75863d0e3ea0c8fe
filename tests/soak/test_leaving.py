"""Clients that go away at any moment: nothing of them is left, and the next one is served as ever."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.soak import watching
from tests.soak.clients import LONG, connections, leave, read_events, send, text_of
from tests.soak.inside import held, one_model, until_as_before, until_inactive
from tests.soak.watching import sizes, slope, stressed

SEED = 5
WAVE = 10
"""Requests under way at once; two of them have a slot."""
WAVES = 40
ROOM = {"max_concurrent_requests": 2, "max_pending_requests": WAVE}
CUTS = ("half a body", "at once", "after events", "blocking")
EVENTS = 3
IDLE_SECONDS = 2.0
"""Within this time of the last client's leaving none is counted; a wave that is not cancelled takes longer."""
GROWTH_MB = 1.0
"""MiB per wave that are too much."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """How many waves of requests are cut."""

    waves: int


def cut_wave(url: str, draw: random.Random) -> None:
    """Requests at once, each cut somewhere, in any order."""
    with connections(url, WAVE) as links:
        cuts = [(link, draw.choice(CUTS)) for link in links]
        for link, cut in cuts:
            body = LONG | {"stream": cut != "blocking"}
            send(link, body, 0.5 if cut == "half a body" else 1.0)
        draw.shuffle(cuts)
        for link, cut in cuts:
            if cut == "after events":
                read_events(link, EVENTS)
            leave(link, is_rude=draw.random() < 0.5)


@sizes(Leaving(2), Leaving(20), seconds=300)
@pytest.mark.soak
def test_clients_that_leave_anywhere_leave_nothing_behind(
    start: Start, folders: dict[str, Path], size: Leaving
) -> None:
    draw = random.Random(SEED)
    with one_model(start, folders["red"], **ROOM) as live:
        text = text_of(live.http)
        cut_wave(live.url, draw)
        until_inactive(live, IDLE_SECONDS)
        before = held(live)
        idle = []
        for _ in range(size.waves):
            cut_wave(live.url, draw)
            idle.append(watching.until_idle(live.http, IDLE_SECONDS))
        since = time.monotonic()
        assert text_of(live.http) == text, f"seed {SEED}"
        took = time.monotonic() - since
        until_inactive(live, IDLE_SECONDS)
        print(f"{size.waves * WAVE} cut: idle after at most {max(idle):.3f} s, next {took:.3f} s")
        until_as_before(live, before)
        print(f"held before {before}, after {held(live)}")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_clients_that_leave_do_not_make_the_service_grow(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    draw = random.Random(SEED + 1)
    with stressed(tmp_path, **ROOM) as served:
        watching.load(served.http, watching.register(served.http, folders["red"], "red"))
        measured = []
        for _ in range(WAVES):
            cut_wave(served.url, draw)
            watching.until_idle(served.http, IDLE_SECONDS)
            measured.append(watching.usage(served))
        growth = slope([one.rss_mb for one in measured])
        print(f"{WAVES * WAVE} cut: {growth:.3f} MiB per {WAVE}; {measured[0]} -> {measured[-1]}")
        assert growth < GROWTH_MB, f"seed {SEED + 1}"
        assert measured[-1].processes == measured[0].processes
        watching.stop(served)
