"""Measures the control plane over simulated replicas: `python -m benchmarks.replicas [--quick] [--only PARTS]`.

The engines wait instead of computing (`simulated.py`), so one machine can stand for many. The fleet, the service and
the requests are real. A whole run takes about ten minutes on 2 cores, `--quick` less than two.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import loads, runs, streams
from benchmarks.machine import Spread, quantile
from benchmarks.plans import Plan
from benchmarks.simulated import MARKS, Mark
from benchmarks.simulated_servers import Served, Steps, recorded, serving
from benchmarks.streams import Answer

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

    def _serving(self, replicas: int, steps: Steps) -> AbstractAsyncContextManager[Served]:
        self._folders += 1
        folder = self._plan.scratch / f"service-{self._folders}"
        folder.mkdir()
        return serving(folder, self._facts, replicas, steps)

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
