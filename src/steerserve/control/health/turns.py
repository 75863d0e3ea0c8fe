"""Watches the event loop: how long one of its turns lasted, and which request or task ran meanwhile.

A thread looks 50 times a second whether the thread of the loop computes, which costs nothing while the loop is idle. A
loop that computes is asked for a sign. While no sign comes, the thread notes what the loop runs: a request by its
route, another task by its function. The stack of the loop is not read, because reading the frames of another thread can
end the interpreter (https://github.com/python/cpython/issues/111363).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from starlette.types import Scope

from steerserve.control.health.views import Turn
from steerserve.rules.bounds import TURNS_SHOWN

LOOK_SECONDS = 0.02
"""Time between two looks. A turn is known to this accuracy."""
UNKNOWN_ROUTE = "unknown"
"""The route of a request that no route answers, or that has not reached its route yet."""
_CALLBACK = "callback"
"""What the loop runs outside of tasks: it reads the bytes of connections, for instance."""
_OTHER_THREAD = "other thread"
"""What ran where the loop gave its sign late without a look at it: another thread held the interpreter."""


class LoopWatch:
    """Owner of the longest turns of the event loop, by the name of what ran."""

    def __init__(self) -> None:
        self._longest: dict[str, tuple[float, float]] = {}
        self._requests: WeakKeyDictionary[asyncio.Task[Any], Scope] = WeakKeyDictionary()
        self._ended = threading.Event()

    def start_watch(self) -> None:
        """Watch the event loop of this thread."""
        watch = threading.Thread(
            target=self._watch,
            args=(asyncio.get_running_loop(), _clock_of_this_thread()),
            name="loop-watch",
            daemon=True,
        )
        watch.start()

    def serves(self, scope: Scope) -> None:
        """Let the task that runs now have the name of this request. The request has its route later."""
        task = asyncio.current_task()
        if task is not None:
            self._requests[task] = scope

    def close(self) -> None:
        self._ended.set()

    def longest(self) -> list[Turn]:
        """The longest turns so far, the longest first."""
        return shown(self._longest)

    def _watch(self, loop: asyncio.AbstractEventLoop, clock: int | None) -> None:
        since, computed = time.monotonic(), _seconds(clock)
        while not self._ended.wait(LOOK_SECONDS) and not loop.is_closed():
            now, before = time.monotonic(), computed
            computed = _seconds(clock)
            is_late = now - since > 2 * LOOK_SECONDS
            since = now
            if is_late or clock is None or computed - before > LOOK_SECONDS / 4:
                self._ask(loop)
                since, computed = time.monotonic(), _seconds(clock)

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the loop for a sign, and note how long it took and what ran meanwhile."""
        answered, since, computed = threading.Event(), time.monotonic(), time.process_time()
        try:
            loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop is closed
            self._ended.set()
            return
        seen: Counter[str] = Counter()
        while not answered.wait(LOOK_SECONDS):
            if self._ended.is_set():
                return
            seen[self._running(loop)] += 1
        took, computed = time.monotonic() - since, time.process_time() - computed
        if took > LOOK_SECONDS:
            name = seen.most_common(1)[0][0] if seen else _OTHER_THREAD
            self._longest[name] = max(self._longest.get(name, (0.0, 0.0)), (took, computed))

    def _running(self, loop: asyncio.AbstractEventLoop) -> str:
        """The name of what the loop runs."""
        task = asyncio.current_task(loop)
        if task is None:
            return _CALLBACK
        scope = self._requests.get(task)
        if scope is None:
            return getattr(task.get_coro(), "__qualname__", _CALLBACK)
        return f"{scope['method']} {getattr(scope.get('route'), 'path', UNKNOWN_ROUTE)}"


def shown(longest: Mapping[str, tuple[float, float]]) -> list[Turn]:
    """The longest of these turns, in milliseconds."""
    ordered = sorted(longest.items(), key=lambda turn: turn[1], reverse=True)
    return [
        Turn(name, round(1000 * took, 1), round(1000 * min(computed, took), 1))
        for name, (took, computed) in ordered[:TURNS_SHOWN]
    ]


def _clock_of_this_thread() -> int | None:
    """The clock of the processor's time of this thread; None on systems without such clocks."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return None
    return time.pthread_getcpuclockid(threading.get_ident())


def _seconds(clock: int | None) -> float:
    """The time of a clock; 0 without a clock, and when its thread has ended."""
    if clock is None:
        return 0.0
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0
