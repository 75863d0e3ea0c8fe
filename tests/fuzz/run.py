"""One run: the service, the threads, the two phases, the figures."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import bodies, events, raw, report, watcher
from tests.fuzz.client import Answer, Client, Request
from tests.fuzz.described import Described
from tests.fuzz.races import Race
from tests.fuzz.report import Chunk, Liveness, Tally
from tests.fuzz.sequences import Caller, Sequence
from tests.fuzz.world import World, opened

THREADS = 6
NICENESS = 10
BESIDE = 2
"""Threads whose requests change nothing while sequences and races run."""
MIXED = 0.85
"""Share of the requests before the sequences and races."""
COUNT = 40
"""Requests of a chunk of bodies or of bytes."""
WEIGHTS = {"described": 3, "bodies": 7, "raw": 3, "events": 1}
"""How often chunks of each kind are drawn while everything is mixed."""
TIDY_EVERY = 2000
"""Requests after which one thread removes what was added."""
WARMING = 0.03
MEMORY_GROWTH = 1.10
MEMORY_SLACK = 0.5
"""MiB; the smallest process holds about ten."""
MEMORY_SECONDS = 30.0
P99_MS, MAXIMUM_MS = 50.0, 1000.0


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


class Fuzzer:
    """The threads of a run."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._seed = plan.seed
        self._weights = {k: w for k, w in WEIGHTS.items() if k in plan.kinds or not plan.kinds}
        self._described = Described(world.description())
        paths = [path for _, path in self._described.routes] + ["/", "/docs", "/openapi.json"]
        self.tally = Tally(world.url, report.patterns(paths))
        self.routes = self._described.routes
        self._tidying = threading.Lock()
        self._tidied = 0

    # ------------------------------------------------------------- phases

    def mixed(self, requests: int, name: str = "") -> None:
        """Everything at once, until so many requests were sent."""
        chunks = _drawn(Random(f"{self._seed}/{name}/mixed"), self._weights, name)
        self._drive([lambda: self._work(chunks, requests)] * THREADS)

    def stateful(self, requests: int) -> None:
        """Sequences and races in turn, beside requests that change nothing."""
        chunks = (Chunk(("sequences", "sequences", "races")[n % 3], n) for n in itertools.count())
        over = threading.Event()

        def lane() -> None:
            try:
                self._work(chunks, requests)
            finally:
                over.set()

        def beside(number: int) -> None:
            for turn in itertools.count():
                if over.is_set():
                    return
                self.run(Chunk("quiet", number + turn * BESIDE))

        requests += self.tally.total
        self._world.restore()
        self._drive([lane, *(lambda number=n: beside(number) for n in range(BESIDE))])

    def _work(self, chunks: Iterator[Chunk], requests: int) -> None:
        while self.tally.total < requests:
            with self._tidying:
                chunk = next(chunks)
                if chunk.kind not in ("sequences", "races") and self._is_untidy():
                    self._world.tidy()
            self.run(chunk)

    def _is_untidy(self) -> bool:
        is_untidy = self.tally.total - self._tidied > TIDY_EVERY
        if is_untidy:
            self._tidied = self.tally.total
        return is_untidy

    @staticmethod
    def _drive(work: list[Callable[[], None]]) -> None:
        """Run in threads; the first exception of one is raised here."""
        raised: list[BaseException] = []

        def guarded(one: Callable[[], None]) -> None:
            try:
                os.nice(
                    NICENESS
                )  # of this thread: clients are elsewhere, and take no time from the service
                one()
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]

    # ------------------------------------------------------------- chunks

    def run(self, chunk: Chunk) -> None:
        """Send the requests of one chunk."""
        seed = f"{self._seed}/{chunk.kind}/{chunk.number}"
        draw = Random(seed)
        client = Client(self._world.url)
        try:
            match chunk.kind.removeprefix("warm "):
                case "described":
                    self._send_all(
                        chunk, client, self._described.requests(chunk.number, seed, self._world)
                    )
                case "bodies":
                    made = (bodies.hostile(draw, self._world) for _ in range(COUNT))
                    self._send_all(chunk, client, made)
                case "raw":
                    for _ in range(COUNT):
                        sent = raw.hostile(draw)
                        self.tally.take(chunk, sent, client.send_bytes(sent))
                case "events":
                    self._talk(chunk, client, draw)
                case "quiet":
                    self._send_all(chunk, client, (_quiet(draw) for _ in range(COUNT)))
                case "sequences":
                    Sequence(self._world, Caller(client, self.tally, chunk), draw).run()
                case "races":
                    Race(self._world, self.tally, chunk, draw).run()
        except Exception as error:  # the other chunks still tell something
            trace = traceback.format_exc().strip().splitlines()[-3:-1]
            self.tally.note(chunk, f"{type(error).__name__}: {error} {' '.join(trace)}")
        finally:
            client.close()

    def _send_all(self, chunk: Chunk, client: Client, requests: Any) -> None:
        for request in requests:
            self.tally.take(chunk, request, client.send(request))

    def _talk(self, chunk: Chunk, client: Client, draw: Random) -> None:
        for _ in range(3):
            self._send_all(chunk, client, events.polled(draw, client))
            sent, wrong = events.spoken(draw, client)
            self.tally.take(chunk, sent, Answer())
            if wrong:
                self.tally.note(chunk, wrong, "/socket.io", sent)


def _drawn(draw: Random, weights: dict[str, int], name: str) -> Iterator[Chunk]:
    kinds = list(weights)
    numbers = {kind: itertools.count() for kind in kinds}
    while True:
        kind = draw.choices(kinds, list(weights.values()))[0]
        yield Chunk(f"{name} {kind}".strip(), next(numbers[kind]))


READ = [path for _, method, path, _ in bodies.ROUTES if method == "GET" and "{" not in path]


def _quiet(draw: Random) -> Request:
    """A request that changes nothing."""
    if draw.random() < 0.5:
        return Request("GET", draw.choice(READ))
    body = {
        "model": "steerserve-demo",
        "prompt": "One day",
        "max_tokens": 2,
        "stream": draw.random() < 0.5,
    }
    headers = (("Content-Type", bodies.JSON), ("X-Service-Load-Policy", "refuse"))
    return Request("POST", "/v1/completions", json.dumps(body).encode(), headers)


# ------------------------------------------------------------------ a run


def fuzz(plan: Plan) -> dict[str, Any]:
    """Run, and return what was found and measured. `problems` is empty when everything held."""
    started = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, opened(Path(folder)) as world:
        fuzzer = Fuzzer(world, plan)
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
    fuzzer.mixed(int(plan.requests * WARMING), "warm")
    world.restore()
    _say(started, fuzzer, "warmed")
    before = watcher.memory(world.served.process.pid)
    with _watched(world) as measured:
        fuzzer.mixed(int(plan.requests * MIXED))
        _say(started, fuzzer, "mixed")
        fuzzer.stateful(int(plan.requests * (1 - MIXED)))
        _say(started, fuzzer, "sequences and races")
        world.restore()
    return {
        "liveness_ms": asdict(Liveness.of(measured)),
        "memory_mib": _memory(world, before, measured["peak"]),
        "is_clean_request_equal": world.clean() == clean,
    }


def _say(started: datetime, fuzzer: Fuzzer, phase: str) -> None:
    seconds = (datetime.now(UTC) - started).total_seconds()
    print(f"{phase}: {fuzzer.tally.total} requests after {seconds:.0f} s", flush=True)


@contextmanager
def _watched(world: World) -> Iterator[dict[str, Any]]:
    """A process measures while the block runs; its figures are in the dictionary afterwards."""
    measured: dict[str, Any] = {}
    arguments = [str(world.served.port), str(world.served.process.pid)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.watcher", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
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
                last = str(entry["exception"]).strip().splitlines()[-1]
                found.add(f"logged with a traceback: {entry.get('event')}: {last[:200]}")
            except (ValueError, KeyError, IndexError):
                found.add(f"logged: {line[:200]}")
        elif line.startswith("Traceback"):
            found.add("a traceback that is no log line")
    return found
