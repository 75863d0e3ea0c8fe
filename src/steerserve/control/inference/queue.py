"""Slots of the running batch, the waiting room before them, and the estimate of the wait."""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules.inference import queue as rules

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


class _Revocable:
    """What a task holds, and what another may get in its place.

    Attributes:
        refusal: set when another got it.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.refusal: Refusal | None = None
        self._task = task
        self._cancelling = task.cancelling()

    def refuse(self, refusal: Refusal) -> None:
        """End what the task does with it."""
        self.refusal = refusal
        self._task.cancel()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Raise the refusal where the block was cancelled by it alone, and not by its client too."""
        try:
            yield
        except asyncio.CancelledError:
            if self.refusal is not None and self._task.uncancel() <= self._cancelling:
                raise self.refusal from None
            raise


class _Place(_Revocable):
    """A request in the waiting room, with the task that runs it.

    Attributes:
        turn: done when the request has a slot; None while it does not wait for one.
        had_slot: whether it has or had a slot. It then keeps its place.
    """

    def __init__(self, request: rules.Request) -> None:
        super().__init__()
        self.request = request
        self.turn: asyncio.Future[None] | None = None
        self.had_slot = False


class _Part(_Revocable):
    """A part of a job, or a request that yields, which waits for a slot that nobody else wants.

    Attributes:
        turn: done when it runs.
        yields: whether a request that waits gets its slot.
        is_beside: whether it runs without a slot, beside all slots.
    """

    def __init__(self, *, yields: bool) -> None:
        super().__init__()
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.yields = yields
        self.is_beside = False


class Queue:
    """Serves the requests of each client in the order of their arrival, and clients in turns
    (`rules/inference/queue.py`). A request enters the waiting room, waits there for the check of its schema and for its
    model, then takes a slot.

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
        self._places: set[_Place] = set()
        self._running: set[_Place] = set()
        # when a client with places last gave a slot back, in the count of arrivals and ended requests
        self._ended: dict[str, int] = {}
        # when the last requests of clients ended, the latest last
        self._recent: dict[str, float] = {}
        # the parts that wait for a slot, and those that have one, the oldest first
        self._parts: list[_Part] = []
        self._parts_running: list[_Part] = []
        self._count = itertools.count(1)
        self._durations: deque[float] = deque(maxlen=window)
        self._clock = clock

    def counts(self) -> QueueCounts:
        return QueueCounts(
            len(self._places),
            len(self._running),
            self._max_concurrent,
            self._max_pending,
            self._estimate(),
        )

    def scale(self, replicas: int) -> None:
        """Offer the slots of so many replicas. Without a replica that serves, the slots of one replica remain."""
        self._max_concurrent = self._of_one_replica * max(1, replicas)
        self._hand_out()

    def full(self) -> Refusal:
        """The refusal of a request for which there is no place to wait, with the estimate of the wait."""
        estimate = self._estimate()
        pending = len(self._places)
        return Refusal(
            "QUEUE_FULL",
            f"{pending} requests are running or waiting; try again later",
            queue_pending=pending,
            estimated_wait_seconds=None if estimate is None else math.ceil(estimate),
        )

    @asynccontextmanager
    async def room(self, client: str = "", rows: int = 1) -> AsyncIterator[_Place]:
        """A place in the waiting room for a request of a client, which takes so many rows of the running batch. Until
        the request has a slot, a client that holds fewer places may get the place; the task in the block is then
        cancelled.

        Raises:
            Refusal: QUEUE_FULL with the estimate of the wait.
        """
        if len(self._places) >= self._max_concurrent + self._max_pending:
            self._make_room(client)
        place = _Place(rules.Request(client, next(self._count), rows))
        self._places.add(place)
        try:
            with place.refusing():
                yield place
        finally:
            self._leave(place)

    @asynccontextmanager
    async def slot(self, place: _Place) -> AsyncIterator[None]:
        """A slot, for a request that has a place in the room; waits until one is free."""
        await self._take(place)
        since = self._clock()
        try:
            yield
        finally:
            self._durations.append(self._clock() - since)
            self._give_back(place)

    @asynccontextmanager
    async def spare(self, *, yields: bool = False) -> AsyncIterator[_Part]:
        """A slot for a part of a job, or for a request that yields. It is given once a slot is free and no request
        waits for one, to the part that has waited longest. A part of a job does not wait for that if no other part runs
        beside the slots: then it does (`rules/inference/pacing.py`). Where the part yields and all slots are in use,
        the next request gets its slot; the task in the block is then cancelled.

        Raises:
            Refusal: QUEUE_FULL where a request got the slot, and where `revoke` was called.
        """
        part = _Part(yields=yields)
        self._parts.append(part)
        self._hand_out()
        try:
            with part.refusing():
                await part.turn
                yield part
        finally:
            (self._parts if part in self._parts else self._parts_running).remove(part)
            self._hand_out()

    def revoke(self) -> None:
        """End every part that yields, because the model changes."""
        for part in (*self._parts, *self._parts_running):
            if part.yields and part.refusal is None:
                part.refuse(self.full())

    # ------------------------------------------------------------- inside

    def _make_room(self, client: str) -> None:
        """Give up the place of a request of another client.

        Raises:
            Refusal: QUEUE_FULL where no client has more places than the arriving one.
        """
        refusal = self.full()
        waiting = {place.request: place for place in self._places if not place.had_slot}
        others = (place.request for place in self._places if place.had_slot)
        request = rules.displaced(client, waiting, others)
        if request is None:
            raise refusal
        self._leave(waiting[request])
        waiting[request].refuse(refusal)

    def _leave(self, place: _Place) -> None:
        self._places.discard(place)
        client = place.request.client
        if all(other.request.client != client for other in self._places):
            self._ended.pop(client, None)

    async def _take(self, place: _Place) -> None:
        """Take a slot once it is the turn of the request."""
        place.turn = asyncio.get_running_loop().create_future()
        self._hand_out()
        try:
            await place.turn
        except asyncio.CancelledError:
            if place.had_slot:  # the slot came at the same moment
                self._give_back(place)
            raise

    def _give_back(self, place: _Place) -> None:
        self._running.discard(place)
        self._ended[place.request.client] = next(self._count)
        self._note_recent(place.request.client)
        self._hand_out()

    def _note_recent(self, client: str) -> None:
        """Remember that a request of a client ends now. No more clients are remembered than there are slots: fewer than
        that run while a slot is free, so one of the remembered clients does not run."""
        self._recent.pop(client, None)
        self._recent[client] = self._clock()
        while len(self._recent) > self._max_concurrent:
            del self._recent[next(iter(self._recent))]

    def _hand_out(self) -> None:
        """Give the free slots to those whose turn it is, and those that are left to parts."""
        self._hand_out_to_requests()
        waiting = sum(place.turn is not None and not place.turn.done() for place in self._places)
        if waiting:
            self._take_back(waiting)
        for part in [part for part in self._parts if not part.turn.done()]:
            if waiting or self._free <= 0:
                if part.yields or any(other.is_beside for other in self._parts_running):
                    continue
                part.is_beside = True
            self._parts.remove(part)
            self._parts_running.append(part)
            part.turn.set_result(None)

    def _take_back(self, waiting: int) -> None:
        """Let the newest parts that yield give up their slots for so many requests that wait, where no slot is free."""
        yielding = [part for part in self._parts_running if part.yields]
        leaving = sum(part.refusal is not None for part in yielding)
        for part in reversed(yielding):
            if self._free > 0 or leaving >= waiting:
                return
            if part.refusal is None:
                part.refuse(self.full())
                leaving += 1

    @property
    def _free(self) -> int:
        in_slots = sum(not part.is_beside for part in self._parts_running)
        return self._max_concurrent - len(self._running) - in_slots

    def _hand_out_to_requests(self) -> None:
        while self._free > 0:
            # a request that was cancelled is still in the room for a moment
            line = {
                place.request: place
                for place in self._places
                if place.turn is not None and not place.turn.done()
            }
            if not line:
                return
            running, slots = self._running_rows(), self._max_concurrent
            since = self._clock() - rules.RECENT_SECONDS
            recent = (client for client, ended in self._recent.items() if ended > since)
            limit = rules.rows_limit(self._free, slots, running, recent)
            request = rules.next_request(line, running, self._ended, rows_limit=limit)
            if request is None:
                return
            place = line[request]
            place.had_slot = True
            self._running.add(place)
            assert place.turn is not None
            place.turn.set_result(None)

    def _running_rows(self) -> Counter[str]:
        """The number of running rows of each client that has any."""
        rows: Counter[str] = Counter()
        for place in self._running:
            rows[place.request.client] += place.request.rows
        return rows

    def _estimate(self) -> float | None:
        """The median of the last durations, times the requests before a new one, divided by the slots. None while too
        few durations are known."""
        if len(self._durations) < LEAST_MEASURED:
            return None
        return statistics.median(self._durations) * len(self._places) / self._max_concurrent
