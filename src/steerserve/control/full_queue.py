"""Refusals of a full queue: one line of the log a minute with their number, instead of one line each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

import structlog

log = structlog.get_logger(__name__)

SECONDS = 60.0
Later = Callable[[float, Callable[[], None]], object]
"""Calls a function after some seconds."""


def on_loop(seconds: float, call: Callable[[], None]) -> object:
    # without the id and the client of the refused request
    return asyncio.get_running_loop().call_later(seconds, call, context=Context())


class FullQueue:
    """The first refusal is logged at once. After that, each minute with refusals has one line, until a minute has
    none."""

    def __init__(self, later: Later = on_loop) -> None:
        self._later = later
        self._unsaid = 0
        self._this_minute = 0
        self._last_minute = 0
        self.is_refusing = False
        """Whether a request was refused in this minute or the last one."""

    @property
    def refused(self) -> int:
        """How many requests were refused in this minute and the last one."""
        return self._last_minute + self._this_minute

    def note(self) -> None:
        """A request was refused."""
        self._unsaid += 1
        self._this_minute += 1
        if not self.is_refusing:
            self.is_refusing = True
            self._say()
            self._later(SECONDS, self._end_minute)

    def _say(self) -> None:
        log.warning("queue_full", refused=self._unsaid)
        self._unsaid = 0

    def _end_minute(self) -> None:
        if self._unsaid:
            self._say()
        self._last_minute, self._this_minute = self._this_minute, 0
        if self._last_minute:
            self._later(SECONDS, self._end_minute)
        else:
            self.is_refusing = False
            log.info("queue_has_room")
