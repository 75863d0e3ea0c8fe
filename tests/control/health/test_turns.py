"""The longest turns are known with the name of what ran."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.routing import Route
from starlette.types import Scope

from steerserve.control.health.turns import LoopWatch
from steerserve.messages import TurnsChanged
from steerserve.rules import near_names
from steerserve.worker.process import turns
from steerserve.worker.process.turns import Turns

SECONDS = 0.15


def names_for(seconds: float) -> Iterator[str]:
    """Names to compare, for so much time of this thread; the last one is the nearest."""
    since = time.thread_time()
    while time.thread_time() - since < seconds:
        yield "another name"
    yield "steered"


@pytest.mark.parametrize(
    ("scope", "what"),
    [
        (
            {"method": "GET", "route": Route("/api/saes/{sae_id}", endpoint=print)},
            "GET /api/saes/{sae_id}",
        ),
        ({"method": "POST"}, "POST unknown"),
        (None, "test_a_long_turn_of_the_event_loop_has_the_name_of_what_ran.<locals>.work"),
    ],
    ids=["request", "no route yet", "task"],
)
async def test_a_long_turn_of_the_event_loop_has_the_name_of_what_ran(
    scope: Scope | None, what: str
) -> None:
    watch = LoopWatch()

    async def work() -> None:
        if scope is not None:
            watch.serves(scope)
        near_names.hint("steered", names_for(SECONDS))  # type: ignore[arg-type]

    watch.start_watch()
    try:
        await asyncio.create_task(work())
        while not watch.longest():
            await asyncio.sleep(0)
    finally:
        watch.close()
    turn = watch.longest()[0]
    assert turn.what == what
    assert turn.ms >= turn.cpu_ms > 1000 * SECONDS / 2


def test_a_watch_ends_with_the_thread_of_its_loop() -> None:
    async def begin() -> threading.Thread:
        LoopWatch().start_watch()
        return [one for one in threading.enumerate() if one.name == "loop-watch"][-1]

    with ThreadPoolExecutor() as pool:
        watching = pool.submit(asyncio.run, begin()).result()
    watching.join(5)
    assert not watching.is_alive()


def test_a_longer_turn_of_the_engine_is_told_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[TurnsChanged] = []
    times = iter([0.0, 1.0, 1.0, 3.0, 3.0, 4.05, 4.05, 4.051])
    monkeypatch.setattr(turns.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(turns.time, "thread_time", lambda: 0.0)
    watched = Turns(told.append)
    for name in ("Fit", "step", "Fit", "Cancel"):
        with watched.timed(name):
            pass
    # the second fit is hardly longer, and the last command is short
    assert [event.longest for event in told] == [
        {"Fit": (1.0, 0.0)},
        {"Fit": (1.0, 0.0), "step": (2.0, 0.0)},
    ]
