"""What a run counts and keeps: requests by route and status, faults with the requests that repeat them, figures."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from steerserve import __version__
from tests.described import Description
from tests.fuzz.checks import faults, path_of, undescribed
from tests.fuzz.client import Answer, Bytes, Request

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
KEPT_OF_EACH = 3
"""Requests that are kept for each kind of fault."""
SLOW_SECONDS = 5.0
LIBRARIES = (
    "schemathesis",
    "hypothesis",
    "uvicorn",
    "fastapi",
    "httptools",
    "python-socketio",
    "torch",
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the run that can be repeated alone."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that the service did wrong. `curl` repeats the request."""

    what: str
    route: str
    chunk: str
    status: int
    body: str
    curl: str


@dataclass(slots=True)
class Tally:
    """The counts of a run, shared by its threads."""

    url: str
    routes: list[tuple[str, re.Pattern[str]]]
    description: Description
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    kinds: Counter[str] = field(default_factory=Counter)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kind of fault and route -> how often it was seen."""
    faults: list[Fault] = field(default_factory=list)
    slow: list[tuple[float, str]] = field(default_factory=list)
    total: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, chunk: Chunk, sent: Request | Bytes, answer: Answer) -> None:
        """Count a request and check its answer."""
        route = self._route(sent)
        with self._lock:
            self.total += 1
            self.kinds[chunk.kind] += 1
            self.counts[route][str(answer.status or "closed")] += 1
            if answer.seconds > SLOW_SECONDS:
                self.slow.append((round(answer.seconds, 2), f"{chunk} {route}"))
        for what in (*faults(sent, answer), *undescribed(self.description, sent, answer)):
            self.note(chunk, what, route, sent, answer)

    def note(
        self,
        chunk: Chunk,
        what: str,
        route: str = "",
        sent: Request | Bytes | None = None,
        answer: Answer | None = None,
    ) -> None:
        """Keep a fault."""
        with self._lock:
            self.seen[what, route] += 1
            if self.seen[what, route] > KEPT_OF_EACH:
                return
            answer = answer or Answer()
            curl = sent.as_curl(self.url) if sent is not None else ""
            body = answer.body[:600].decode("utf-8", "replace")
            self.faults.append(Fault(what, route, str(chunk), answer.status, body, curl))

    def _route(self, sent: Request | Bytes) -> str:
        if isinstance(sent, Bytes):
            return f"bytes: {sent.note}"
        path = path_of(sent.target)
        if path.startswith("/socket.io"):
            return "/socket.io"
        known = next(
            (name for name, pattern in self.routes if pattern.fullmatch(path)), "another path"
        )
        return f"{sent.method} {known}" if known != "another path" else known


def patterns(paths: Iterable[str]) -> list[tuple[str, re.Pattern[str]]]:
    """Paths of the description, those with fewer parameters first, as patterns."""
    ordered = sorted(set(paths), key=lambda path: (path.count("{"), path))
    return [
        (path, re.compile(re.sub(r"\\\{\w+\\\}", r"[^/]+", re.escape(path)))) for path in ordered
    ]


@dataclass(frozen=True, slots=True)
class Liveness:
    """Durations of the questions for liveness during the run, in milliseconds."""

    count: int
    failed: int
    p50: float
    p99: float
    maximum: float

    @classmethod
    def of(cls, measured: dict[str, Any]) -> Liveness:
        ranked = sorted(1000 * seconds for seconds in measured["durations"]) or [0.0]
        middle, high = ranked[len(ranked) // 2], ranked[int(len(ranked) * 0.99)]
        figures = (round(figure, 2) for figure in (middle, high, ranked[-1]))
        return cls(len(ranked), measured["failed"], *figures)


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": round(psutil.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    named = {name: version(name) for name in LIBRARIES}
    return {"steerserve": __version__, "commit": commit.stdout.strip(), **named}


def written(result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Keep a result as a file; its path."""
    target = folder / f"{datetime.now(UTC):%Y-%m-%dT%H%M}-fuzz.json"
    target.write_text(json.dumps(result, indent=1, sort_keys=False) + "\n")
    return target
