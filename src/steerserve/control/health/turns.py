"""Watches the event loop: how long one of its turns lasted, and which function ran meanwhile.

A thread looks 50 times a second whether the thread of the loop computes, which costs nothing while the loop is idle. A
loop that computes is asked for a sign. While no sign comes, the thread notes the innermost function of this service on
the stack of the loop. Where the loop itself does nothing, another thread holds the interpreter, so the functions of the
other threads are noted.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from types import FrameType

from steerserve.control.health.views import Turn
from steerserve.rules.bounds import TURNS_SHOWN

LOOK_SECONDS = 0.02
"""Time between two looks. A turn is known to this accuracy."""
_OURS = "steerserve."
_BELOW = frozenset({"asyncio.runners", "asyncio.base_events", "uvicorn.server", "threading"})
"""Modules that run a loop or a thread. The frames around theirs do not belong to a turn."""
_WAITING = frozenset({"selectors", "threading", "queue", "concurrent.futures.thread", "socket"})
"""Modules whose functions wait. A thread that is in one of them does nothing."""


class LoopWatch:
    """Owner of the longest turns of the event loop, by the name of what ran."""

    def __init__(self) -> None:
        self._longest: dict[str, tuple[float, float]] = {}
        self._ended = threading.Event()

    def begin(self) -> None:
        """Watch the event loop of this thread."""
        watch = threading.Thread(
            target=self._watch,
            args=(asyncio.get_running_loop(), threading.get_ident()),
            name="loop-watch",
            daemon=True,
        )
        watch.start()

    def close(self) -> None:
        self._ended.set()

    def longest(self) -> list[Turn]:
        """The longest turns so far, the longest first."""
        return shown(self._longest)

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        clock = getattr(time, "pthread_getcpuclockid", lambda _: None)(thread)
        since, computed = time.monotonic(), _seconds(clock)
        while not self._ended.wait(LOOK_SECONDS):
            now, before = time.monotonic(), computed
            computed = _seconds(clock)
            is_late = now - since > 2 * LOOK_SECONDS
            since = now
            if is_late or clock is None or computed - before > LOOK_SECONDS / 4:
                self._ask(loop, thread)
                since, computed = time.monotonic(), _seconds(clock)

    def _ask(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
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
            seen[_running(thread)] += 1
        took, computed = time.monotonic() - since, time.process_time() - computed
        if took > LOOK_SECONDS:
            # without a look, another thread held the interpreter all the time
            name = seen.most_common(1)[0][0] if seen else _running(None)
            self._longest[name] = max(self._longest.get(name, (0.0, 0.0)), (took, computed))


def shown(longest: Mapping[str, tuple[float, float]]) -> list[Turn]:
    """The longest of these turns, in milliseconds."""
    ordered = sorted(longest.items(), key=lambda turn: turn[1], reverse=True)
    return [
        Turn(name, round(1000 * took, 1), round(1000 * min(computed, took), 1))
        for name, (took, computed) in ordered[:TURNS_SHOWN]
    ]


def _seconds(clock: int | None) -> float:
    return 0.0 if clock is None else time.clock_gettime(clock)


def _running(thread: int | None) -> str:
    """The name of what a thread runs; for None, or where it runs nothing, of what the other threads run."""
    frames = sys._current_frames()
    found = _name(frames.pop(thread, None)) if thread is not None else None
    if found is not None:
        return found
    frames.pop(threading.get_ident(), None)
    names = (_name(frame) for frame in frames.values())
    return next((name for name in names if name is not None and name.startswith(_OURS)), "other")


def _name(frame: FrameType | None) -> str | None:
    """The innermost function of this service that a thread runs, else the innermost function of a library. None where
    the thread waits."""
    innermost = None
    if frame is not None and frame.f_globals.get("__name__") in _WAITING:
        return None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module in _BELOW:
            break
        name = f"{module}.{frame.f_code.co_qualname}"
        if name.startswith(_OURS):
            return name
        innermost = innermost or name
        frame = frame.f_back
    return innermost
