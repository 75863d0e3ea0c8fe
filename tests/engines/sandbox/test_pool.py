"""The line before the processes: costly questions delay no other client, and a question that had to yield is answered
in the end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from steerserve.engines.sandbox.pool import LineFull, PoolCounts, ProcessPool
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

Make = Callable[..., ProcessPool]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[ProcessPool] = []

    def pool(count: int, waiting_maximum: int = 0) -> ProcessPool:
        made.append(
            ProcessPool("a sleeper", [sys.executable, "-c", PROGRAM], count, waiting_maximum)
        )
        return made[-1]

    yield pool
    for one in made:
        await one.close()


def begun(pool: ProcessPool, body: bytes, client: str, count: int = 1) -> list[asyncio.Task[bytes]]:
    return [asyncio.create_task(pool.ask(body, SECONDS, client)) for _ in range(count)]


async def ended(tasks: list[asyncio.Task[bytes]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_endless_questions_of_one_client_hold_up_neither_others_nor_its_own_quick_ones(
    make: Make,
) -> None:
    pool = make(4)
    costly = begun(pool, ENDLESS, "a", 6)
    async with asyncio.timeout(60):
        assert await pool.ask(QUICK, SECONDS, "b") == QUICK
        assert await pool.ask(QUICK, SECONDS, "a") == QUICK
    assert not any(task.done() for task in costly)
    await ended(costly)
    assert pool.counts().waiting == 0


async def test_endless_questions_of_many_clients_leave_a_process(make: Make) -> None:
    pool = make(4)
    costly = [task for client in "abcdef" for task in begun(pool, ENDLESS, client)]
    async with asyncio.timeout(60):
        assert await pool.ask(QUICK, SECONDS, "g") == QUICK
    await ended(costly)


async def test_a_question_that_had_to_yield_is_answered_in_the_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness, "QUICK_SECONDS", 0.01)
    pool = make(2)
    async with asyncio.timeout(60):
        assert await asyncio.gather(*begun(pool, SLOW, "a", 2), *begun(pool, SLOW, "b")) == (
            [SLOW] * 3
        )


async def test_the_client_that_used_less_is_answered_first(make: Make) -> None:
    pool, order = make(1), []

    async def ask(client: str) -> None:
        await pool.ask(QUICK, SECONDS, client)
        order.append(client)

    await pool.ask(SLOW, SECONDS, "a")
    first = begun(pool, SLOW, "c")
    while pool.counts().running == 0:
        await asyncio.sleep(0)
    await asyncio.gather(*first, ask("a"), ask("a"), ask("b"))
    assert order == ["b", "a", "a"]


async def test_questions_beyond_the_bound_are_refused_from_the_longest_line(make: Make) -> None:
    pool = make(1, waiting_maximum=2)
    held = begun(pool, ENDLESS, "z")
    while pool.counts() != PoolCounts(waiting=0, running=1):
        await asyncio.sleep(0)

    def bounded(client: str) -> asyncio.Task[bytes]:
        return asyncio.create_task(pool.ask(QUICK, SECONDS, client, may_drop=True))

    first, second = bounded("a"), bounded("a")
    certain = begun(pool, QUICK, "a")
    third = bounded("b")
    with pytest.raises(LineFull):
        await second
    assert pool.counts() == PoolCounts(waiting=3, running=1)
    await ended(held)
    assert await asyncio.gather(first, third, *certain) == [QUICK] * 3


async def test_a_client_that_leaves_takes_its_waiting_question_with_it(make: Make) -> None:
    pool = make(1)
    held = begun(pool, ENDLESS, "a")
    waiting = begun(pool, QUICK, "b", 3)
    while pool.counts() != PoolCounts(waiting=3, running=1):
        await asyncio.sleep(0)
    await ended(waiting)
    assert pool.counts() == PoolCounts(waiting=0, running=1)
    await ended(held)
    assert await pool.ask(QUICK, SECONDS, "b") == QUICK
