"""The line before the processes: costly questions delay no other client, and a question that had to yield is answered
in the end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from steerserve.engines.sandbox.pool import LaneCounts, Lanes, LineFull
from steerserve.rules.inference import fairness

PROGRAM = """
import time
from steerserve.engines.sandbox.pool_process import serve

def answer(body):
    time.sleep(float(body))
    return body

serve(answer, 600)
"""
ENDLESS, SLOW, QUICK = b"500", b"0.2", b"0.0"
SECONDS = 600.0

Make = Callable[..., Lanes]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Lanes] = []

    def lanes(count: int, waiting_maximum: int = 0) -> Lanes:
        made.append(Lanes("a sleeper", [sys.executable, "-c", PROGRAM], count, waiting_maximum))
        return made[-1]

    yield lanes
    for one in made:
        await one.close()


def begun(lanes: Lanes, body: bytes, client: str, count: int = 1) -> list[asyncio.Task[bytes]]:
    return [asyncio.create_task(lanes.ask(body, SECONDS, client)) for _ in range(count)]


async def ended(tasks: list[asyncio.Task[bytes]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_endless_questions_of_one_client_hold_up_neither_others_nor_its_own_quick_ones(
    make: Make,
) -> None:
    lanes = make(4)
    costly = begun(lanes, ENDLESS, "a", 6)
    async with asyncio.timeout(60):
        assert await lanes.ask(QUICK, SECONDS, "b") == QUICK
        assert await lanes.ask(QUICK, SECONDS, "a") == QUICK
    assert not any(task.done() for task in costly)
    await ended(costly)
    assert lanes.counts().waiting == 0


async def test_endless_questions_of_many_clients_leave_a_lane(make: Make) -> None:
    lanes = make(4)
    costly = [task for client in "abcdef" for task in begun(lanes, ENDLESS, client)]
    async with asyncio.timeout(60):
        assert await lanes.ask(QUICK, SECONDS, "g") == QUICK
    await ended(costly)


async def test_a_question_that_had_to_yield_is_answered_in_the_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness, "QUICK_SECONDS", 0.01)
    lanes = make(2)
    async with asyncio.timeout(60):
        assert await asyncio.gather(*begun(lanes, SLOW, "a", 2), *begun(lanes, SLOW, "b")) == (
            [SLOW] * 3
        )


async def test_the_client_that_used_less_is_answered_first(make: Make) -> None:
    lanes, order = make(1), []

    async def ask(client: str) -> None:
        await lanes.ask(QUICK, SECONDS, client)
        order.append(client)

    await lanes.ask(SLOW, SECONDS, "a")
    first = begun(lanes, SLOW, "c")
    while lanes.counts().running == 0:
        await asyncio.sleep(0)
    await asyncio.gather(*first, ask("a"), ask("a"), ask("b"))
    assert order == ["b", "a", "a"]


async def test_questions_beyond_the_bound_are_refused_from_the_longest_line(make: Make) -> None:
    lanes = make(1, waiting_maximum=2)
    held = begun(lanes, ENDLESS, "z")
    while lanes.counts() != LaneCounts(waiting=0, running=1):
        await asyncio.sleep(0)

    def bounded(client: str) -> asyncio.Task[bytes]:
        return asyncio.create_task(lanes.ask(QUICK, SECONDS, client, may_drop=True))

    first, second = bounded("a"), bounded("a")
    certain = begun(lanes, QUICK, "a")
    third = bounded("b")
    with pytest.raises(LineFull):
        await second
    assert lanes.counts() == LaneCounts(waiting=3, running=1)
    await ended(held)
    assert await asyncio.gather(first, third, *certain) == [QUICK] * 3


async def test_a_client_that_leaves_takes_its_waiting_question_with_it(make: Make) -> None:
    lanes = make(1)
    held = begun(lanes, ENDLESS, "a")
    waiting = begun(lanes, QUICK, "b", 3)
    while lanes.counts() != LaneCounts(waiting=3, running=1):
        await asyncio.sleep(0)
    await ended(waiting)
    assert lanes.counts() == LaneCounts(waiting=0, running=1)
    await ended(held)
    assert await lanes.ask(QUICK, SECONDS, "b") == QUICK
