"""One run: the service, the phases, the figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.fuzz import report, watcher
from tests.fuzz.fuzzer import NICENESS, Fuzzer
from tests.fuzz.report import Chunk, Liveness
from tests.fuzz.world import World, opened

WARMING = 0.5
"""Share of the requests, of every kind, before memory is read for the first time: what is made once is then made."""
MIXED = 0.85
"""Share of the requests before the sequences and races."""
MEMORY_GROWTH = 1.10
MEMORY_SLACK = 0.5
"""MiB; the smallest process holds about ten."""
MEMORY_SECONDS = 30.0
_ADDRESS = re.compile("0x[0-9a-f]+")
P99_MS, MAXIMUM_MS = 50.0, 1000.0
TURN_MS = 250.0
"""The time that a processor may work on a turn of the event loop. The rule is 50 ms; other threads of the service count
here too."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `only` repeats one chunk."""

    requests: int
    seed: int
    only: Chunk | None = None
    kinds: tuple[str, ...] = ()
    """Send only chunks of these kinds; empty for all. Such a run is no proof."""
    log: Path | None = None
    """Where the log of the service is kept."""
    is_measured: bool = True
    """Whether liveness and memory are held to their bounds."""


def fuzz(plan: Plan) -> dict[str, Any]:
    """Run, and return what was found and measured. `problems` is empty when everything held."""
    started = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, opened(Path(folder)) as world:
        fuzzer = Fuzzer(world, plan.seed, plan.kinds)
        try:
            if plan.only is not None:
                fuzzer.run(plan.only)
                figures = {}
            else:
                figures = _figures(plan, started, fuzzer, world)
        finally:
            if plan.log is not None:
                plan.log.write_text("".join(world.served.lines))
        return _result(plan, started, fuzzer, world, figures)


def _figures(plan: Plan, started: datetime, fuzzer: Fuzzer, world: World) -> dict[str, Any]:
    """Run every phase, and measure what must be as it was before."""
    clean = world.clean()
    if not plan.is_measured:
        _both_phases(plan, started, fuzzer)
        world.restore()
        return {"is_clean_request_equal": world.clean() == clean}
    fuzzer.mixed(int(plan.requests * WARMING * MIXED), "warm")
    fuzzer.stateful(int(plan.requests * WARMING * (1 - MIXED)))
    world.restore()
    _say(started, fuzzer, "warmed")
    before = watcher.memory(world.served.process.pid)
    with _watched(world) as measured:
        _both_phases(plan, started, fuzzer)
        world.restore()
    return {
        "is_clean_request_equal": world.clean() == clean,
        "liveness_ms": asdict(Liveness.of(measured)),
        "turns": world.data("GET", "/api/health/detailed")["turns"],
        "memory_mib": _memory(world, before, measured["peak"]),
    }


def _both_phases(plan: Plan, started: datetime, fuzzer: Fuzzer) -> None:
    fuzzer.mixed(int(plan.requests * MIXED))
    _say(started, fuzzer, "mixed")
    fuzzer.stateful(int(plan.requests * (1 - MIXED)))
    _say(started, fuzzer, "sequences and races")


def _say(started: datetime, fuzzer: Fuzzer, phase: str) -> None:
    seconds = (datetime.now(UTC) - started).total_seconds()
    print(f"{phase}: {fuzzer.tally.total} requests after {seconds:.0f} s", flush=True)


@contextmanager
def _behind_service() -> Iterator[None]:
    """The service has the processor before this process, as it would if the clients were on other machines.

    Linux may share a processor between sessions first. The service has a session of its own, and the niceness of the
    threads here then counts only beside others of this session.
    """
    share = Path("/proc/self/autogroup")
    with suppress(OSError):
        share.write_text(str(NICENESS))
    try:
        yield
    finally:
        with suppress(OSError):
            share.write_text("0")


@contextmanager
def _watched(world: World) -> Iterator[dict[str, Any]]:
    """A process measures while the block runs; its figures are in the dictionary afterwards."""
    measured: dict[str, Any] = {}
    arguments = [str(world.served.port), str(world.served.process.pid)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.watcher", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with _behind_service():
            yield measured
    finally:
        told, _ = process.communicate()
    measured.update(json.loads(told))


def _memory(world: World, before: dict[str, float], peak: dict[str, float]) -> dict[str, Any]:
    """MiB of the largest process of each role: before, at most, and afterwards, once all are back or time is over.

    A helper that was not needed before the measurement has no `before`.
    """
    deadline = time.monotonic() + MEMORY_SECONDS
    while True:
        after = watcher.memory(world.served.process.pid)
        if (
            not any(_has_grown(mib, before.get(role)) for role, mib in after.items())
            or time.monotonic() > deadline
        ):
            break
        time.sleep(0.5)
    return {
        role: {
            "before": before.get(role),
            "peak": max(peak.get(role, 0.0), after[role]),
            "after": after[role],
        }
        for role in after
    }


def _has_grown(after: float, before: float | None) -> bool:
    return before is not None and after > before * MEMORY_GROWTH + MEMORY_SLACK


def _result(
    plan: Plan, started: datetime, fuzzer: Fuzzer, world: World, figures: dict[str, Any]
) -> dict[str, Any]:
    tally = fuzzer.tally
    seconds = (datetime.now(UTC) - started).total_seconds()
    counts = {route: dict(sorted(codes.items())) for route, codes in sorted(tally.counts.items())}
    return {
        "seed": plan.seed,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "requests": tally.total,
        "requests_by_kind": dict(sorted(tally.kinds.items())),
        **figures,
        "problems": _problems(plan, fuzzer, world, figures),
        "faults": [asdict(fault) for fault in tally.faults],
        "slowest": sorted(tally.slow, reverse=True)[:20],
        "routes": counts,
        "versions": report.versions(),
        "machine": report.machine(),
    }


def _problems(plan: Plan, fuzzer: Fuzzer, world: World, figures: dict[str, Any]) -> list[str]:
    """Each promise that did not hold, in one line."""
    tally = fuzzer.tally
    problems = [f"{count} x {what} [{route}]" for (what, route), count in tally.seen.most_common()]
    problems += sorted(logged(world))
    if plan.only is not None:
        return problems
    asked = set(tally.counts)
    missing = {f"{method} {path}" for method, path in fuzzer.routes} - asked
    problems += [f"never asked: {route}" for route in sorted(missing) if plan.is_measured]
    if not figures["is_clean_request_equal"]:
        problems.append("a clean request is not answered as before")
    if not plan.is_measured:
        return problems
    alive = figures["liveness_ms"]
    if alive["failed"] or alive["p99"] > P99_MS or alive["maximum"] > MAXIMUM_MS:
        problems.append(f"liveness: {alive}")
    problems += [
        f"a turn of the event loop: {turn}"
        for turn in figures["turns"]["event_loop"]
        if turn["cpu_ms"] > TURN_MS
    ]
    for role, mib in figures["memory_mib"].items():
        if _has_grown(mib["after"], mib["before"]):
            problems.append(f"memory of the {role}: {mib}")
    return problems


def logged(world: World) -> set[str]:
    """The events that the service logged with a traceback: a fault inside, whatever was answered."""
    found = set()
    for line in world.served.lines:
        if '"exception"' in line:
            try:
                entry = json.loads(line)
                name = str(entry.get("event")).strip()
                last = _ADDRESS.sub("0x", str(entry["exception"]).strip().splitlines()[-1])
                found.add(f"logged with a traceback: {name}: {last[:200]}")
            except (ValueError, KeyError, IndexError):
                found.add(f"logged: {line[:200]}")
        elif line.startswith("Traceback"):
            found.add("a traceback that is no log line")
    return found
