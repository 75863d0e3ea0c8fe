"""Writes the events of sensing into their record, and publishes the newest of them.

The engine tells the events of a choice before the choice ends. The writing goes on beside the requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from steerserve.control.metrics import SensingCounts
from steerserve.database.sensing import FiringStore
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.rules import throttle
from steerserve.rules.bounds import WAITING_CHOICES
from steerserve.rules.sensing import firings as rules
from steerserve.rules.sensing.firings import Firing, FiringRow

log = structlog.get_logger(__name__)

READ_SECONDS = 1.0
"""The most seconds that a read waits until earlier events are written. It then answers without them."""

SLOW_SECONDS = 60.0
"""The least seconds between two warnings that sensing the same cluster or circuit takes long."""


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """The events of one choice that wait to be written."""

    subject: str
    firings: Sequence[Firing]


class Recorder:
    """Owner of the events that wait to be written.

    Attributes:
        written: the events that were written since the start.
        throttled: the events that were written and not published.
        waiting: the choices whose events wait to be written.

    Args:
        counts: the metrics of this kind of sensing.
        slow_ms: the milliseconds of sensing in one choice above which a warning is logged.
        seconds: a clock that never goes back.
    """

    def __init__(
        self,
        store: FiringStore,
        counts: SensingCounts,
        slow_ms: float,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._counts = counts
        self._slow_ms = slow_ms
        self._seconds = seconds
        self._publish: Callable[[FiringRow], None] = lambda _: None
        # the choices that wait, and marks: a mark is done when all before it is written
        self._line: deque[_Choice | asyncio.Future[None]] = deque()
        self.waiting = 0
        self._writing: asyncio.Task[None] | None = None
        self._flushed: float | None = None
        self._warned: dict[str, float] = {}
        self.written = 0
        self.throttled = 0

    def publish(self, publish: Callable[[FiringRow], None]) -> None:
        """Call `publish` with the newest of the events that were written."""
        self._publish = publish

    def record_firings(
        self, subject: str, firings: Sequence[Firing], overhead_ms: float, request: str
    ) -> None:
        """Write the events of one choice of the request soon. Sensing took `overhead_ms` for the choice."""
        self._counts.overhead.observe(overhead_ms / 1000)
        if overhead_ms > self._slow_ms:
            self._warn(subject, overhead_ms, request)
        if not firings:
            return
        if self.waiting >= WAITING_CHOICES:
            self._counts.lost.inc(len(firings))
            return
        self._line.append(_Choice(subject, firings))
        self.waiting += 1
        if not self._is_writing:
            self._writing = background.start(self._write(), name="sensing-recorder")

    async def settled(self) -> None:
        """Wait until all events that `record_firings` got before this call are written."""
        await asyncio.shield(self._mark())

    async def caught_up(self) -> None:
        """As `settled`, but wait at most READ_SECONDS."""
        await asyncio.wait([self._mark()], timeout=READ_SECONDS)

    async def newest(
        self,
        limit: int,
        *,
        subject: str | None = None,
        edge_key: str | None = None,
        since: datetime | None = None,
    ) -> tuple[list[FiringRow], int]:
        """The newest events first, and how many events there are."""
        await self.caught_up()
        return await self._store.newest(limit, subject=subject, edge_key=edge_key, since=since)

    async def get(self, event_id: int) -> FiringRow | None:
        """One event; None where there is none."""
        await self.caught_up()
        return await self._store.get(event_id)

    async def clear(self, subject: str | None) -> int:
        """Delete all events, or only the events of one cluster or circuit, and return how many there were. An event
        that waits to be written is never written. A choice that is being written is written first, and then deleted."""
        gone, kept = [], deque[_Choice | asyncio.Future[None]]()
        for one in self._line:
            if isinstance(one, _Choice) and subject in (None, one.subject):
                gone.append(one)
            else:
                kept.append(one)
        self._line = kept
        self.waiting -= len(gone)
        if self._is_writing:
            written = asyncio.get_running_loop().create_future()
            self._line.appendleft(written)
            await asyncio.shield(written)
        return sum(len(one.firings) for one in gone) + await self._store.clear(subject)

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def _mark(self) -> asyncio.Future[None]:
        """A future that is done when all events told so far are written. Several readers may share one."""
        last = self._line[-1] if self._line else None
        if isinstance(last, asyncio.Future):
            return last
        mark = asyncio.get_running_loop().create_future()
        if self._is_writing:
            self._line.append(mark)
        else:
            mark.set_result(None)
        return mark

    def _warn(self, subject: str, overhead_ms: float, request: str) -> None:
        """Log that sensing took long, unless that was logged for the same cluster or circuit a moment ago."""
        now = self._seconds()
        self._warned = {one: at for one, at in self._warned.items() if now - at < SLOW_SECONDS}
        if subject not in self._warned:
            self._warned[subject] = now
            log.warning(
                "sensing_is_slow", subject=subject, request=request, overhead_ms=overhead_ms
            )

    async def _write(self) -> None:
        while self._line:
            first = self._line.popleft()
            if isinstance(first, _Choice):
                self.waiting -= 1
                await self._write_choice(first)
            elif not first.done():
                first.set_result(None)

    async def _write_choice(self, choice: _Choice) -> None:
        try:
            rows = await self._store.add(choice.subject, choice.firings)
        except Refusal as refusal:
            self._counts.lost.inc(len(choice.firings))
            log.warning("firings_not_recorded", subject=choice.subject, reason=refusal.message)
            return
        except Exception:
            # the events of other choices are still written
            self._counts.lost.inc(len(choice.firings))
            log.exception("firings_not_recorded", subject=choice.subject)
            return
        self.written += len(rows)
        self._counts.events.inc(len(rows))
        self._flush(rows)

    def _flush(self, rows: Sequence[FiringRow]) -> None:
        """Publish the newest events of one choice, unless other events were published a moment ago."""
        now = self._seconds()
        passes = throttle.may_pass(self._flushed, now, rules.FLUSH_SECONDS)
        sent = rows[-rules.FLUSH_EVENTS :] if passes else []
        self.throttled += len(rows) - len(sent)
        if sent:
            self._flushed = now
        for row in sent:
            self._publish(row)
