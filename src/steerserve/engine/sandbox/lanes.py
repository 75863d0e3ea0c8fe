"""Several processes with one queue of questions.

A free process takes the shortest question that waits. A long question therefore delays a short one by one answer at
most, however many long questions wait.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from steerserve.engine.sandbox.lane import Lane

Turn = tuple[int, int, asyncio.Future[Lane]]


class Lanes:
    """Owns `count` lanes. A lane that was used last is used next, so that most services never start a second one."""

    def __init__(self, make: Callable[[], Lane], count: int) -> None:
        self._lanes = [make() for _ in range(count)]
        self._free = list(self._lanes)
        self._waiting: list[Turn] = []
        self._numbers = itertools.count()

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        return [lane.pid for lane in self._lanes if lane.pid is not None]

    @property
    def waiting(self) -> int:
        """The number of questions that wait for a process."""
        return sum(not turn.done() for _, _, turn in self._waiting)

    async def close(self) -> None:
        """End the processes. Questions that wait for a process are refused."""
        for lane in self._lanes:
            await lane.close()

    async def ask(self, body: bytes, seconds: float) -> bytes:
        """The answer of one of the processes.

        Raises:
            TimeoutError: the answer takes longer than `seconds`; the wait for a process is not counted.
            Died: the process did not survive the question.
            Refusal: SHUTTING_DOWN, or INTERNAL_ERROR when no process starts.
        """
        lane = await self._enter(len(body))
        try:
            return await lane.ask(body, seconds)
        finally:
            self._leave(lane)

    async def _enter(self, size: int) -> Lane:
        if self._free:
            return self._free.pop()
        turn: asyncio.Future[Lane] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size, next(self._numbers), turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(turn.result())
            raise

    def _leave(self, lane: Lane) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(lane)
                return
        self._free.append(lane)
