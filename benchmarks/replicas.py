"""Measures the control plane over simulated replicas: `python -m benchmarks.replicas [--quick] [--only PARTS]`.

The engines wait instead of computing (`simulated.py`), so one machine can stand for many. The fleet, the service and
the requests are real. A whole run takes about 16 minutes on 2 cores, `--quick` less than five.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import live_clients, loads, runs, servers, streams
from benchmarks.live_clients import LiveClient
from benchmarks.machine import Spread, quantile
from benchmarks.plans import Plan
from benchmarks.service import Wire
from benchmarks.simulated import MARKS, Mark
from benchmarks.simulated_servers import STEERING_PATH, Served, Steps, recorded, serving
from benchmarks.streams import Answer, Unanswered

LOCAL = 0
"""The number of replicas of a service without a fleet."""
COUNTS = (LOCAL, 1, 2, 4, 8, 64)
SCALING = Steps(milliseconds=40.0, rows=8)
LATENCY = Steps(milliseconds=5.0, rows=8)
STEERING = Steps(milliseconds=10.0, rows=8)
LIMIT = Steps(milliseconds=10.0, rows=512)
TOKENS = 256
RAMP_SECONDS, WINDOW_SECONDS = 4.0, 8.0
PAIRS, PAIR_TOKENS = 120, 32
EDITS, EDIT_TOKENS = 60, 24
LIMIT_REPLICAS = 8
BUSY = 512
"""The requests at once by which the limit of the control plane is measured."""
MANY_COUNTS = (64, 256)
MANY = Steps(milliseconds=160.0, rows=8)
BEGIN_SECONDS = 0.01
"""The time that each of many streams has to begin, before the window."""
OPEN, QUICK_OPEN, OPENING = 10_000, 2000, 1000
"""The streams that are open at once, those of a quick run, and the most that are being opened at once."""
OPEN_STEPS = Steps(milliseconds=2000.0, rows=40)
OPEN_TOKENS = 256
OWN_FILES, FILES, FILES_STREAMS = 500, 512, 1000
"""Files that a client needs besides its streams; the open files of a service that may have few; streams to it."""
PACE_SECONDS = 0.002
"""The time between two of these streams."""
SHORT = Steps(milliseconds=1.0, rows=64)
SHORT_CLIENTS = 64
LIVE_COUNTS, EVENTS_PER_SECOND = (0, 100, 300, 1000), 10
EPOCH_COUNTS, EPOCH_CLIENTS = (LOCAL, 8, 64, 256), 16
ANSWER_SECONDS = 30.0
"""The time after which a request without an answer counts as hung."""


@dataclass(frozen=True, slots=True)
class Window:
    """What clients saw between two moments, and what the service took meanwhile.

    Attributes:
        way: the seconds from the engine to the client, of each token.
        first: the seconds to the first token, of each request that began in the window.
        service_us: processor time of the service for each token, in microseconds; `system_us` is the part of it that
            the system took.
        service_share: how much of one core the service took, and `client_share` the client.
    """

    tokens_per_s: float
    way: list[float]
    first: list[float]
    service_us: float
    system_us: float
    service_share: float
    client_share: float


def _ways(answer: Answer) -> list[tuple[float, float]]:
    """(arrival, seconds on the way) of each token."""
    marks = Mark.of(answer.text)
    return [(at, at - mark.sent_us / 1e6) for at, mark in zip(answer.texts, marks, strict=False)]


async def _window(served: Served, clients: int, seconds: float, ramp: float) -> Window:
    leaving = asyncio.Event()
    asking = asyncio.ensure_future(
        streams.repeated(lambda number: served.numbered(number, TOKENS), clients, leaving)
    )
    try:
        await asyncio.sleep(ramp)
        before, client, since = served.processor_seconds(), time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        until = time.perf_counter()
        client = time.process_time() - client
        own, system = (b - a for a, b in zip(before, served.processor_seconds(), strict=True))
    finally:
        leaving.set()
        answers = await asking
    ways = [way for answer in answers for at, way in _ways(answer) if since <= at < until]
    first = [a.texts[0] - a.began for a in answers if a.texts and since <= a.began < until]
    count = max(1, len(ways))
    took = until - since
    return Window(
        len(ways) / took,
        ways,
        first,
        (own + system) / count * 1e6,
        system / count * 1e6,
        (own + system) / took,
        client / took,
    )


def _cell(windows: Sequence[Window]) -> dict[str, Any]:
    return {
        "tokens_per_s": asdict(Spread.of([one.tokens_per_s for one in windows])),
        "way_s": loads.quantiles([one.way for one in windows]),
        "first_token_s": loads.quantiles([one.first for one in windows]),
        "service_us_per_token": asdict(Spread.of([one.service_us for one in windows])),
        "system_us_per_token": asdict(Spread.of([one.system_us for one in windows])),
        "service_share_of_a_core": round(max(one.service_share for one in windows), 3),
        "client_share_of_a_core": round(max(one.client_share for one in windows), 3),
    }


class Measurement:
    """The parts of a run."""

    def __init__(self, plan: Plan, facts: Path, counts: Sequence[int] = COUNTS) -> None:
        self._plan = plan
        self._facts = facts
        self._counts = counts
        self._folders = 0
        self._mark = 0

    def _serving(
        self, replicas: int, steps: Steps, open_files: int | None = None
    ) -> AbstractAsyncContextManager[Served]:
        self._folders += 1
        folder = self._plan.scratch / f"service-{self._folders}"
        folder.mkdir()
        return serving(folder, self._facts, replicas, steps, open_files)

    async def scaling(self) -> dict[str, Any]:
        """Tokens per second of so many replicas, each with as many requests as it has rows."""
        windows: dict[int, list[Window]] = {count: [] for count in self._counts}
        seconds, ramp = self._plan.seconds(WINDOW_SECONDS), self._plan.seconds(RAMP_SECONDS)
        for turn in range(self._plan.rounds):
            for count in self._counts if turn % 2 else reversed(self._counts):
                async with self._serving(count, SCALING) as served:
                    clients = served.engines * SCALING.rows
                    window = await _window(served, clients, seconds, ramp)
                windows[count].append(window)
                self._plan.say(f"  {_named(count)}: {window.tokens_per_s:.0f} tokens/s")
        one = [window.tokens_per_s for window in windows[1]]
        linear = {
            str(count): ([w.tokens_per_s / count for w in windows[count]], one)
            for count in self._counts
            if count > 1
        }
        return {
            "step_ms": SCALING.milliseconds,
            "rows": SCALING.rows,
            "tokens": TOKENS,
            "cells": {_named(count): _cell(windows[count]) for count in self._counts},
            "over_linear": loads.ratios(linear),
        }

    async def latency(self) -> dict[str, Any]:
        """What a fleet adds to the first token and to each token: one request at a time, at services in turns."""
        counts = (LOCAL, 1, 8)
        first: dict[int, list[float]] = {count: [] for count in counts}
        ways: dict[int, list[float]] = {count: [] for count in counts}
        async with AsyncExitStack() as stack:
            services = {
                count: await stack.enter_async_context(self._serving(count, LATENCY))
                for count in counts
            }
            for turn in range(-5, PAIRS // (4 if self._plan.is_quick else 1)):
                for count in counts if turn % 2 else reversed(counts):
                    answer = await streams.ask(services[count].request(PAIR_TOKENS))
                    if turn >= 0:
                        first[count].append(answer.texts[0] - answer.began)
                        ways[count].append(statistics.median(w for _, w in _ways(answer)))
        return {
            "step_ms": LATENCY.milliseconds,
            "tokens": PAIR_TOKENS,
            "first_token_s": {_named(count): asdict(Spread.of(first[count])) for count in counts},
            "way_s": {_named(count): asdict(Spread.of(ways[count])) for count in counts},
            "added_first_token_s": _added(first),
            "added_way_s": _added(ways),
        }

    async def steering(self) -> dict[str, Any]:
        """The time of a change of the steering, without requests and beside them."""
        cells: dict[str, Any] = {}
        mixed = checked = 0
        for count in self._counts:
            async with self._serving(count, STEERING) as served:
                alone, _ = await self._edits(served)
                leaving = asyncio.Event()
                asking = asyncio.ensure_future(
                    streams.repeated(
                        lambda number, to=served: to.numbered(number, EDIT_TOKENS),
                        served.engines * 2,
                        leaving,
                    )
                )
                try:
                    beside, made = await self._edits(served)
                finally:
                    leaving.set()
                    answers = await asking
            whole = [answer for answer in answers if answer.texts]
            checked += len(whole)
            mixed += sum(not _is_steered_in_order(answer, made) for answer in whole)
            cells[_named(count)] = {
                "alone_s": _quantiles(alone),
                "beside_requests_s": _quantiles(beside),
            }
            p50 = cells[_named(count)]["beside_requests_s"]["p50"]
            self._plan.say(f"  {_named(count)}: {p50 * 1e3:.1f} ms beside requests")
        return {
            "step_ms": STEERING.milliseconds,
            "changes": EDITS,
            "cells": cells,
            "answers_checked": checked,
            "answers_out_of_order": mixed,
        }

    async def _edits(self, served: Served) -> tuple[list[float], list[tuple[float, int]]]:
        """The seconds of changes one after the other, and (when, mark) of each that was made."""
        seconds, made = [], []
        for _ in range(EDITS // (3 if self._plan.is_quick else 1)):
            self._mark = mark = self._mark + 1
            since = time.perf_counter()
            await served.steer(mark, MARKS)
            made.append((time.perf_counter(), mark))
            seconds.append(made[-1][0] - since)
        return seconds, made

    async def limit(self) -> dict[str, Any]:
        """The tokens per second that the control plane passes on when engines make more."""
        cells: dict[str, Any] = {}
        shares: dict[str, Any] = {}
        seconds, ramp = self._plan.seconds(WINDOW_SECONDS), self._plan.seconds(RAMP_SECONDS)
        for count in (LOCAL, LIMIT_REPLICAS):
            steps = Steps(LIMIT.milliseconds, BUSY // max(1, count))
            windows = []
            for _ in range(self._plan.rounds):
                async with self._serving(count, steps) as served:
                    windows.append(await _window(served, BUSY, seconds, ramp))
                self._plan.say(f"  {_named(count)}: {windows[-1].tokens_per_s:.0f} tokens/s")
            async with self._serving(count, steps) as served:
                served.sample()
                await _window(served, BUSY, seconds, ramp)
                served.sample()
                shares[_named(count)] = await served.sampled()
            cells[_named(count)] = _cell(windows)
        return {
            "step_ms": LIMIT.milliseconds,
            "requests": BUSY,
            "tokens": TOKENS,
            "demanded_tokens_per_s": BUSY / LIMIT.milliseconds * 1e3,
            "cells": cells,
            "profile": shares,
        }

    # ------------------------------------------------------------- where one control plane ends

    async def many(self) -> dict[str, Any]:
        """Many replicas whose requests make as many tokens per second as the control plane passes on with ease."""
        cells = {}
        seconds, ramp = self._plan.seconds(WINDOW_SECONDS), self._plan.seconds(RAMP_SECONDS)
        for count in MANY_COUNTS:
            steps = Steps(MANY.milliseconds * count / max(MANY_COUNTS), MANY.rows)
            since = time.perf_counter()
            async with self._serving(count, steps) as served:
                start = time.perf_counter() - since
                alone, _ = await self._edits(served)
                begun = count * steps.rows
                window = await _window(served, begun, seconds, ramp + begun * BEGIN_SECONDS)
                if not window.way:
                    raise RuntimeError(f"no token of {begun} streams arrived in the window")
                memory = served.memory()
            cells[_named(count)] = {
                "start_s": start,
                "step_ms": steps.milliseconds,
                "streams": count * steps.rows,
                "change_alone_s": _quantiles(alone),
                "memory_bytes": memory,
                **_cell([window]),
            }
            self._plan.say(f"  {_named(count)}: {window.tokens_per_s:.0f} tokens/s")
        return {"rows": MANY.rows, "cells": cells}

    async def streams(self) -> dict[str, Any]:
        """Streams that are open at once, and how the service is beside them."""
        count = QUICK_OPEN if self._plan.is_quick else OPEN
        _allow_open_files(count + OWN_FILES)
        async with self._serving(max(MANY_COUNTS), OPEN_STEPS) as served:
            before, files = served.memory(), served.process.num_fds()
            leaving, gate = asyncio.Event(), asyncio.Semaphore(OPENING)
            begun: list[asyncio.Event] = [asyncio.Event() for _ in range(count)]

            async def one(first: asyncio.Event) -> Answer:
                async with gate:
                    task = asyncio.ensure_future(
                        streams.ask(served.request(OPEN_TOKENS), leaving, first)
                    )
                    opened = asyncio.ensure_future(first.wait())
                    await asyncio.wait([task, opened], return_when="FIRST_COMPLETED")
                    opened.cancel()
                return await task

            since = time.perf_counter()
            asking = asyncio.ensure_future(streams.gathered(*(one(first) for first in begun)))
            try:
                everything = asyncio.gather(*(first.wait() for first in begun))
                await asyncio.wait([asking, everything], return_when="FIRST_COMPLETED")
                everything.cancel()
                opened_at = time.perf_counter()
                took = served.processor_seconds()
                liveness = await _liveness(served, self._plan.seconds(WINDOW_SECONDS))
                until = time.perf_counter()
                share = sum(served.processor_seconds()) - sum(took)
                memory, open_files = served.memory(), served.process.num_fds()
            finally:
                leaving.set()
                answers = await asking
            left_at = time.perf_counter()
            async with asyncio.timeout(ANSWER_SECONDS):
                while served.process.num_fds() > files + 1:
                    await asyncio.sleep(0.01)
            idle = time.perf_counter() - left_at
        ways = [w for answer in answers for at, w in _ways(answer) if opened_at <= at < until]
        return {
            "streams": count,
            "replicas": max(MANY_COUNTS),
            "opening_s": opened_at - since,
            "tokens_per_s": len(ways) / (until - opened_at),
            "way_s": _quantiles(ways),
            "liveness_s": _quantiles(liveness),
            "service_share_of_a_core": share / (until - opened_at),
            "bytes_per_stream": (memory - before) / count,
            "open_files": open_files - files,
            "idle_after_s": idle,
        }

    async def files(self) -> dict[str, Any]:
        """How a service that may open few files answers more streams than it can have."""
        _allow_open_files(FILES_STREAMS + OWN_FILES)
        ends: Counter[str] = Counter()
        async with self._serving(LIMIT_REPLICAS, LATENCY, FILES) as served:
            leaving = asyncio.Event()

            async def one(number: int) -> None:
                # of connections that come at one moment, the service closes those whose request is not read
                await asyncio.sleep(number * PACE_SECONDS)
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await streams.ask(served.request(TOKENS), leaving)
                    ends["answered"] += 1
                except Unanswered as refusal:
                    is_typed = "too_many_connections" in str(refusal).lower()
                    is_cut = str(refusal).endswith("has no end: ")
                    ends["refused" if is_typed else "cut" if is_cut else "other"] += 1
                except OSError:
                    ends["cut"] += 1
                except TimeoutError:
                    ends["hung"] += 1

            asking = asyncio.gather(*(one(number) for number in range(FILES_STREAMS)))
            liveness = await _liveness(served, self._plan.seconds(2.0), until=asking)
            await asking
            after = await streams.ask(served.request(1))
        return {
            "open_files": FILES,
            "streams": FILES_STREAMS,
            **{name: ends[name] for name in ("answered", "refused", "cut", "hung", "other")},
            "answered_after": after.tokens,
            "liveness_s": _quantiles(liveness),
        }

    async def requests(self) -> dict[str, Any]:
        """Requests of one token per second, over connections that are kept."""
        cells = {}
        seconds = self._plan.seconds(WINDOW_SECONDS)
        async with self._serving(LIMIT_REPLICAS, SHORT) as served:
            for name, extra in (("whole", {}), ("streamed", {"stream": True})):
                body = served.request(1).body | extra
                if not extra:
                    body.pop("stream_options", None)
                cells[name] = await _rate(
                    served, servers.COMPLETIONS, lambda _, body=body: body, SHORT_CLIENTS, seconds
                )
                self._plan.say(f"  {name}: {cells[name]['per_s']:.0f} requests/s")
        return {"clients": SHORT_CLIENTS, "replicas": LIMIT_REPLICAS, "cells": cells}

    async def live(self) -> dict[str, Any]:
        """Changes of the steering as live events to many clients."""
        _allow_open_files(max(LIVE_COUNTS) + OWN_FILES)
        cells = {}
        seconds = self._plan.seconds(WINDOW_SECONDS)
        async with self._serving(LIMIT_REPLICAS, STEERING) as served, _wire(served) as wire:
            for count in LIVE_COUNTS:
                async with live_clients.connected(served.port, count) as clients:
                    cell = await self._live(served, wire, clients, seconds)
                if cells and cell["received"]:
                    beyond = cell["service_s"] - cells[str(min(LIVE_COUNTS))]["service_s"]
                    cell["service_us_per_event"] = beyond / cell["received"] * 1e6
                cells[str(count)] = cell
                self._plan.say(f"  {count}: {cells[str(count)]['service_share_of_a_core']:.2f}")
        return {"events_per_s": EVENTS_PER_SECOND, "cells": cells}

    async def _live(
        self, served: Served, wire: Wire, clients: Sequence[LiveClient], seconds: float
    ) -> dict[str, Any]:
        sent: dict[float, float] = {}
        liveness = asyncio.ensure_future(_liveness(served, seconds))
        before, began = sum(served.processor_seconds()), time.perf_counter()
        for turn in range(int(seconds * EVENTS_PER_SECOND)):
            await asyncio.sleep(began + turn / EVENTS_PER_SECOND - time.perf_counter())
            self._mark += 1
            sent[self._mark / MARKS] = time.perf_counter()
            await wire.post(STEERING_PATH, _change(self._mark))
        probes = await liveness
        wanted = len(sent) * len(clients)
        late = time.perf_counter() + ANSWER_SECONDS
        while sum(len(c.seen) for c in clients) < wanted and time.perf_counter() < late:
            await asyncio.sleep(0.05)
        took = sum(served.processor_seconds()) - before
        share = took / (time.perf_counter() - began)
        delays = [at - sent[value] for client in clients for at, value in client.seen]
        return {
            "sent": wanted,
            "received": len(delays),
            "delay_s": _quantiles(delays) if delays else None,
            "liveness_s": _quantiles(probes),
            "service_s": took,
            "service_share_of_a_core": share,
        }

    async def epochs(self) -> dict[str, Any]:
        """Changes of the steering per second: from one client, and from several at once."""
        cells: dict[str, Any] = {}
        seconds = self._plan.seconds(WINDOW_SECONDS / 2)
        for count in EPOCH_COUNTS:
            async with self._serving(count, STEERING) as served:
                cells[_named(count)] = {
                    str(clients): await _rate(
                        served,
                        STEERING_PATH,
                        lambda number: _change(number % (100 * MARKS)),
                        clients,
                        seconds,
                    )
                    for clients in (1, EPOCH_CLIENTS)
                }
            said = {key: round(cell["per_s"]) for key, cell in cells[_named(count)].items()}
            self._plan.say(f"  {_named(count)}: changes/s by clients: {said}")
        return {"cells": cells}


def _change(mark: int) -> dict[str, Any]:
    """The body of a change of the steering after which tokens have this mark."""
    return {"feature_idx": 0, "value": mark / MARKS}


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files of this process to `count`.

    Raises:
        ValueError: the system does not allow so many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


@asynccontextmanager
async def _wire(served: Served) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


async def _liveness(
    served: Served, seconds: float, until: asyncio.Future[Any] | None = None
) -> list[float]:
    """The seconds of probes of the liveness, for so long, or until the future is done if that is longer. Each has a
    connection of its own: the service may close a connection that waits for its next request."""
    found, began = [], time.perf_counter()
    while time.perf_counter() - began < seconds or (until is not None and not until.done()):
        since = time.perf_counter()
        answer = await served.client.get("/api/health", headers={"connection": "close"})
        answer.raise_for_status()
        found.append(time.perf_counter() - since)
        await asyncio.sleep(0.05)
    return found


async def _rate(
    served: Served,
    path: str,
    made: Callable[[int], dict[str, Any]],
    clients: int,
    seconds: float,
) -> dict[str, Any]:
    """The requests per second of clients that each send the next request when the last one is answered."""
    times: list[float] = []
    numbers = iter(range(1, 1 << 30))

    async def client(until: float) -> None:
        async with _wire(served) as wire:
            while (since := time.perf_counter()) < until:
                await wire.post(path, made(next(numbers)))
                times.append(time.perf_counter() - since)

    before, own = sum(served.processor_seconds()), time.process_time()
    began = time.perf_counter()
    await streams.gathered(*(client(began + seconds) for _ in range(clients)))
    took = time.perf_counter() - began
    service = sum(served.processor_seconds()) - before
    return {
        "per_s": len(times) / took,
        "time_s": _quantiles(times),
        "service_us": service / len(times) * 1e6,
        "service_share_of_a_core": service / took,
        "client_share_of_a_core": (time.process_time() - own) / took,
    }


def _named(count: int) -> str:
    return "one local engine" if count == LOCAL else f"{count} replica{'s' * (count > 1)}"


def _added(values: Mapping[int, list[float]]) -> dict[str, Any]:
    """What each service takes beyond the one without a fleet, turn by turn."""
    return {
        _named(count): asdict(
            Spread.of([a - b for a, b in zip(values[count], values[LOCAL], strict=True)])
        )
        for count in values
        if count != LOCAL
    }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    return {name: quantile(seconds, share) for name, share in loads.SHARES.items()}


def _is_steered_in_order(answer: Answer, made: Sequence[tuple[float, int]]) -> bool:
    """Whether the tokens have the steering that was set before the request or a later one, and never an earlier one
    after a later one."""
    marks = [mark.steering for mark in Mark.of(answer.text)]
    before = max((mark for at, mark in made if at <= answer.began), default=0)
    return marks[0] >= before and marks == sorted(marks)


PARTS: dict[str, Callable[[Measurement], Awaitable[dict[str, Any]]]] = {
    "replicas-latency": Measurement.latency,
    "replicas-steering": Measurement.steering,
    "replicas-scaling": Measurement.scaling,
    "replicas-limit": Measurement.limit,
    "replicas-many": Measurement.many,
    "replicas-streams": Measurement.streams,
    "replicas-files": Measurement.files,
    "replicas-requests": Measurement.requests,
    "replicas-live": Measurement.live,
    "replicas-epochs": Measurement.epochs,
}


def main() -> None:
    parser = runs.options(__doc__, PARTS)
    parser.add_argument("--quick", action="store_true", help="one round of half the time")
    parser.add_argument("--rounds", type=int, default=3, help="how often; 3 by default")
    given = parser.parse_args()
    rounds = 1 if given.quick else given.rounds
    run = runs.Run("replicas", given.only, given.out, quick=given.quick, rounds=rounds)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        plan = Plan(given.quick, rounds, (), scratch, scratch, run.say)
        facts = scratch / "facts"
        facts.write_bytes(msgspec.msgpack.encode(asyncio.run(recorded())))
        measurement = Measurement(plan, facts)
        for part in given.only:
            run.measure(part, partial(_run, PARTS[part], measurement))
    sys.exit(run.end())


def _run(
    part: Callable[[Measurement], Awaitable[dict[str, Any]]], measurement: Measurement
) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        return await part(measurement)

    return asyncio.run(work())


if __name__ == "__main__":
    main()
