"""A service under stress, seen from outside: its processes, what they use, and the counters that it tells."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from steerserve.engines.checkpoint.process import ENGINE, NAMES
from tests.processes import Process, serving

SMALL: dict[str, Any] = {"kv_cache_mb": 1, "torch_threads": 1}
PATIENCE = 30.0
"""Seconds after which what never comes is given up."""
STOP_SECONDS = 10.0
"""An idle service has stopped by then; one that still counts a request waits far longer for it."""


def sizes(short: Any, full: Any, seconds: int) -> pytest.MarkDecorator:
    """Both forms of a test, as its argument `size`: one of seconds, and one of minutes for `make soak`.

    `make test` runs the form of seconds, except of tests that have the mark `soak` themselves: other tests of the suite
    make their checks one by one.
    """
    marks = [pytest.mark.soak, pytest.mark.timeout(seconds)]
    forms = [pytest.param(short, id="short"), pytest.param(full, id="full", marks=marks)]
    return pytest.mark.parametrize("size", forms)


@contextmanager
def stressed(home: Path, **settings: Any) -> Iterator[Process]:
    """A service as a process of its own, for tiny models unless the settings say otherwise."""
    with serving(home, **SMALL | settings) as served:
        assert served.process.poll() is None, served.lines
        try:
            yield served
        finally:
            end(served)


def _print_turns(served: Process) -> None:
    """Print the longest turns of the event loop and of the engine, where the service still answers."""
    with suppress(httpx2.HTTPError, ValueError, KeyError, TypeError):
        turns = served.http.get("/api/health/detailed").json()["data"]["turns"]
        for thread, longest in turns.items():
            told = (f"{one['what']} {one['ms']} ms ({one['cpu_ms']} ms)" for one in longest or ())
            print(f"longest turns of the {thread}: {'; '.join(told) or 'none'}")


def end(served: Process) -> None:
    """Print the longest turns of a service, end what is left of it, and read its log to the end: a pipe is not closed
    under its reader."""
    _print_turns(served)
    for process in members(served.process.pid):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    served.wait()
    served._reader.join(PATIENCE)


def register(http: httpx2.Client, folder: Path, name: str) -> int:
    body = {"source": "local", "local_path": str(folder), "custom_name": name}
    answer = http.post("/api/models", json=body)
    assert answer.status_code == 202, answer.text
    return int(answer.json()["data"]["id"])


def load(http: httpx2.Client, model_id: int) -> None:
    answer = http.post(f"/api/models/{model_id}/load?wait=true")
    assert answer.status_code == 200, answer.text


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> float:
    """Ask until the condition holds; the seconds that it took."""
    since = time.monotonic()
    while not condition():
        assert time.monotonic() - since < seconds, f"after {seconds} s still not: {what}"
    return time.monotonic() - since


# ---------------------------------------------------------------- counters


def counters(http: httpx2.Client) -> dict[str, Any]:
    """The queue block."""
    block = http.get("/api/health/detailed").json()["data"]["inference"]
    assert isinstance(block, dict)
    return block


def until_idle(http: httpx2.Client, seconds: float = PATIENCE) -> float:
    """Wait until no request is counted any more; the seconds that it took."""

    def is_idle() -> bool:
        block = counters(http)
        return not block["queue_pending"] and not block["in_flight"] and not block["queue_waiting"]

    return until(is_idle, "no request is counted", seconds)


# ---------------------------------------------------------------- processes


@dataclass(frozen=True, slots=True)
class Usage:
    """What a service uses. `rss_mb` (MiB), `files` and `threads` are those of its control plane."""

    rss_mb: float
    files: int
    threads: int
    processes: int
    files_of_all: int


def members(session: int) -> list[psutil.Process]:
    """Every process of a session, those included whose parents are gone."""
    found = []
    for process in psutil.process_iter():
        with suppress(OSError):
            if os.getsid(process.pid) == session:
                found.append(process)
    return found


def usage(served: Process) -> Usage:
    plane = psutil.Process(served.process.pid)
    family = [plane, *served.family()]
    files = [process.num_fds() for process in family]
    rss = plane.memory_info().rss / (1 << 20)
    return Usage(rss, files[0], plane.num_threads(), len(family), sum(files))


def engines(served: Process) -> list[psutil.Process]:
    """The engine processes, which the fork server has forked. One that has just ended is none."""
    found = []
    for child in psutil.Process(served.process.pid).children():
        with suppress(psutil.NoSuchProcess):
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                found += [one for one in child.children() if _name(one) == NAMES[ENGINE]]
    return found


def _name(process: psutil.Process) -> str | None:
    """The name of a process; None if it has ended."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return None


def zombies(served: Process) -> list[psutil.Process]:
    return [p for p in served.family() if p.status() == psutil.STATUS_ZOMBIE]


def complaints(served: Process) -> list[str]:
    """What the service logged as errors."""
    return [line for line in served.lines if '"level":"error"' in line.replace(" ", "")]


def until_ended(session: int) -> float:
    """Wait until no process of a session runs; the seconds that it took."""

    def has_ended() -> bool:
        running = []
        for process in members(session):
            with suppress(psutil.NoSuchProcess):
                running.append(process.status() != psutil.STATUS_ZOMBIE)
        return not any(running)

    return until(has_ended, "every process has ended")


def stop(served: Process) -> float:
    """End an idle service politely; it goes at once and leaves no process. The seconds that it took."""
    _print_turns(served)
    since = time.monotonic()
    served.process.send_signal(signal.SIGTERM)
    assert served.wait() == 0
    took = time.monotonic() - since
    assert took < STOP_SECONDS, "the service waited for requests that nobody made"
    until_ended(served.process.pid)
    return took


@contextmanager
def frozen(engine: psutil.Process) -> Iterator[None]:
    """While open, the engine does not run: what it has been given stays undone."""
    engine.suspend()
    try:
        yield
    finally:
        engine.resume()


# ---------------------------------------------------------------- figures


def slope(values: Sequence[float]) -> float:
    """Growth per step by least squares, over the last four fifths."""
    settled = values[len(values) // 5 :]
    return statistics.linear_regression(range(len(settled)), settled).slope


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def in_ms(values: Sequence[float]) -> str:
    """Median, 99th percentile and maximum of durations in seconds."""
    figures = (quantile(values, 0.5), quantile(values, 0.99), max(values))
    names = ("p50", "p99", "max")
    return ", ".join(f"{n} {f * 1000:.1f} ms" for n, f in zip(names, figures, strict=True))
