"""Slots of the running batch, the waiting room before them, and the estimate of the wait."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from steerserve.errors import Refusal

LEAST_MEASURED = 3
"""The number of durations that must be known before a wait is estimated."""


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The queue at one moment. `pending` counts the requests that wait and those that hold a slot."""

    pending: int
    holding: int
    max_concurrent: int
    max_pending: int
    estimated_wait_seconds: float | None

    @property
    def waiting(self) -> int:
        return self.pending - self.holding


class Queue:
    """Serves requests in the order of their arrival. A request enters the waiting room, waits there for the
    check of its schema and for its model, then takes a slot.

    `max_concurrent` is the number of slots of one replica of the model. `scale` says how many replicas serve. A request
    that holds a slot keeps the slot when there are fewer slots than before.
    """

    def __init__(
        self,
        max_concurrent: int,
        max_pending: int,
        window: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._of_one_replica = max_concurrent
        self._max_concurrent = max_concurrent
        self._max_pending = max_pending
        # the requests that wait for a slot, each with the future that is done when it has one
        self._line: deque[asyncio.Future[None]] = deque()
        self._durations: deque[float] = deque(maxlen=window)
        self._pending = 0
        self._holding = 0
        self._clock = clock

    def counts(self) -> QueueCounts:
        return QueueCounts(
            self._pending, self._holding, self._max_concurrent, self._max_pending, self._estimate()
        )

    def scale(self, replicas: int) -> None:
        """Offer the slots of so many replicas. Without a replica that serves, the slots of one replica remain."""
        self._max_concurrent = self._of_one_replica * max(1, replicas)
        self._hand_out()

    def full(self) -> Refusal:
        """The refusal of a request for which there is no place to wait, with the estimate of the wait."""
        estimate = self._estimate()
        return Refusal(
            "QUEUE_FULL",
            f"{self._pending} requests are running or waiting; try again later",
            queue_pending=self._pending,
            estimated_wait_seconds=None if estimate is None else math.ceil(estimate),
        )

    @asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        """A place in the waiting room.

        Raises:
            Refusal: QUEUE_FULL with the estimate of the wait.
        """
        if self._pending >= self._max_concurrent + self._max_pending:
            raise self.full()
        self._pending += 1
        try:
            yield
        finally:
            self._pending -= 1

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A slot, for a request that has a place in the room; waits until one is free."""
        await self._take()
        since = self._clock()
        try:
            yield
        finally:
            self._durations.append(self._clock() - since)
            self._give_back()

    # ------------------------------------------------------------- inside

    async def _take(self) -> None:
        """Take a slot, behind everybody who waits for one."""
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._line = deque(other for other in self._line if other is not turn)
            else:  # the slot came at the same moment
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._holding -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        """Give the free slots to those who have waited longest."""
        while self._line and self._holding < self._max_concurrent:
            turn = self._line.popleft()
            if not turn.done():  # a request that was cancelled is still in the line for a moment
                self._holding += 1
                turn.set_result(None)

    def _estimate(self) -> float | None:
        """The median of the last durations, times the requests before a new one, divided by the slots. None while too
        few durations are known."""
        if len(self._durations) < LEAST_MEASURED:
            return None
        waiting = self._pending - self._holding
        before = waiting + self._holding
        return statistics.median(self._durations) * before / self._max_concurrent
