"""Where the processor time of a process goes: a sampler that runs in the process, and the shares of its parts."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

EVERY_SECONDS = 0.002
"""Processor time between two samples."""

PARTS = {
    "uvicorn": "the web server",
    "starlette": "the web framework",
    "fastapi": "the web framework",
    "engineio": "the web framework",
    "anyio": "the web framework",
    "steerserve/openai": "making chunks and answers",
    "steerserve/http/event_stream.py": "making chunks and answers",
    "steerserve/http/guards.py": "checks and counts before the routes",
    "steerserve/app/meter.py": "checks and counts before the routes",
    "steerserve/events/packets.py": "checks and counts before the routes",
    "steerserve/http/protocol.py": "the web server",
    "steerserve/control/metrics.py": "metrics",
    "prometheus_client": "metrics",
    "steerserve/control": "the road of a request",
    "steerserve/engines/fleet": "the fleet",
    "steerserve/messages": "mailboxes and messages",
    "steerserve/engines": "the client of an engine",
    "asyncio": "tasks and the event loop",
}
"""The parts, by the paths of their files; the first that fits counts. Time in the system and in C counts for the Python
code that is run next."""


class Sampler:
    """Counts the running line each EVERY_SECONDS of processor time, between two signals SIGUSR2. After the second
    signal the shares are in the file."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._seen: Counter[str] = Counter()
        self._is_on = False
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR2, self._toggle)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        if frame is not None:
            self._seen[frame.f_code.co_filename] += 1

    def _toggle(self, _: int, __: FrameType | None) -> None:
        self._is_on = not self._is_on
        signal.setitimer(signal.ITIMER_PROF, *([EVERY_SECONDS] * 2 if self._is_on else [0.0]))
        if not self._is_on:
            written = self._target.with_suffix(".partial")
            written.write_text(json.dumps(shares(self._seen)))
            written.replace(self._target)


def shares(seen: Counter[str]) -> dict[str, float]:
    """The share of each part, the largest first."""
    parts: Counter[str] = Counter()
    for file, count in seen.items():
        parts[next((name for path, name in PARTS.items() if path in file), "other")] += count
    return {name: round(count / seen.total(), 4) for name, count in parts.most_common()}
