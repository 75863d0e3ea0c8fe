"""The longest turns are known with the name of what ran."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

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


async def test_a_long_turn_of_the_event_loop_has_the_name_of_the_function_that_ran() -> None:
    watch = LoopWatch()
    watch.begin()
    try:
        near_names.hint("steered", names_for(SECONDS))  # type: ignore[arg-type]
        while not watch.longest():
            await asyncio.sleep(0)
    finally:
        watch.close()
    turn = watch.longest()[0]
    assert turn.what == "steerserve.rules.near_names.hint"
    assert turn.ms >= turn.cpu_ms > 1000 * SECONDS / 2


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
