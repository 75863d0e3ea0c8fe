"""The longest turns of the engine's main thread, by what ran: the commands, the steps, and what readers do after a
step. While a turn lasts, no request gets a token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from steerserve.messages import TurnsChanged

LEAST_SECONDS = 0.01
"""Shorter turns are not noted."""
GROWTH = 1.1
"""A turn is told where it is so many times as long as the longest one of its name that was told."""


class Turns:
    """Owner of the longest turns. `send` sends them to the control plane."""

    def __init__(self, send: Callable[[TurnsChanged], None]) -> None:
        self._send = send
        self._longest: dict[str, tuple[float, float]] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """The time of this block is a turn."""
        since, computed = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            took = time.perf_counter() - since
            if took > max(LEAST_SECONDS, GROWTH * self._longest.get(name, (0.0, 0.0))[0]):
                self._longest[name] = took, time.thread_time() - computed
                self._send(TurnsChanged(dict(self._longest)))
