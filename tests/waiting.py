"""How a test waits for something, and how it sees a value."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

Answer = TypeVar("Answer")


PATIENCE = 60.0
"""Seconds after which a test that still waits for an event fails."""


LOOK = 0.01
"""Seconds between two looks at what another process does."""


async def soon(waited: Awaitable[Answer]) -> Answer:
    """The result of `waited`. The test fails if the result takes longer than PATIENCE."""
    return await asyncio.wait_for(waited, PATIENCE)


async def until(condition: Callable[[], object], every: float = 0.0) -> None:
    """Let other tasks run until the condition holds, which is asked `every` so many seconds. What another process does is
    asked less often, so that it has the processor."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(every)


async def turns(count: int = 5) -> None:
    """Let other tasks run for so many turns of the event loop, where nothing tells that one of them waits."""
    for _ in range(count):
        await asyncio.sleep(0)


def plain(view: object) -> Any:
    """A value in the form in which the HTTP routes write it as JSON."""
    return msgspec.json.decode(msgspec.json.encode(view))


class Clock:
    """A time that a test sets."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Gate:
    """Holds one step of the engine. `reached` is set when the engine comes to the step, and the step goes on when
    `open` is set."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
