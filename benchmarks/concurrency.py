"""Several requests at once: ours, ours with a seed in each request, and the peers, in turns."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks import loads, servers
from benchmarks.loads import Load
from benchmarks.plans import Plan
from benchmarks.servers import Server
from benchmarks.streams import Request, Unanswered, at_once, words

COUNTS = (1, 8, 32, 64)
CUT_SECONDS = 15.0
"""A client leaves after this time, and the figures are of the tokens that came until then."""
MOST_SECONDS = 720.0
PROMPT_TOKENS = 12
SEEDED, GREEDY = "steerserve, seeded", "steerserve, greedy"
OURS_Q8, OURS_Q4 = "steerserve Q8", "steerserve Q4"
PRECISIONS = {OURS_Q8: "Q8", OURS_Q4: "Q4"}
"""The service with its model in 8 and in 4 bits, for one request at once."""
PRECISIONS_OF = ("0.5b",)
"""The sizes that are measured at these precisions too."""
SEED = 1 << 20
RATIOS = (
    ("8 seeded", (SEEDED, 8), (servers.OURS, 8)),
    ("32 seeded", (SEEDED, 32), (servers.OURS, 32)),
    ("32 over 1", (servers.OURS, 32), (servers.OURS, 1)),
    ("64 over 32", (servers.OURS, 64), (servers.OURS, 32)),
    ("32 over transformers", (servers.OURS, 32), (servers.CONTINUOUS, 32)),
    ("32 greedy over transformers", (GREEDY, 32), (servers.CONTINUOUS, 32)),
    ("1 over llama.cpp", (servers.OURS, 1), (servers.BF16, 1)),
    ("1 greedy over llama.cpp", (GREEDY, 1), (servers.BF16, 1)),
    ("1 Q8 over llama.cpp", (OURS_Q8, 1), (servers.Q8_0, 1)),
    ("1 Q4 over Q8", (OURS_Q4, 1), (OURS_Q8, 1)),
    ("1 Q8 over bfloat16", (OURS_Q8, 1), (servers.OURS, 1)),
)
"""(name, above, below)"""


@dataclass(slots=True)
class Contender:
    """A server with one kind of requests.

    Attributes:
        fields: what the requests have besides the prompt; `seed` is one of its own in each request.
        counts: how many requests it gets at once.
        loads: what was measured, by count.
        failed: why it is measured no more.
    """

    name: str
    server: Server
    counts: tuple[int, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    loads: dict[int, list[Load]] = field(default_factory=dict)
    failed: str | None = None

    def requests(self, count: int, tokens: int, turn: int) -> list[Request]:
        made = partial(self.server.request, tokens=tokens)
        seeds = [{"seed": SEED + n} if "seed" in self.fields else {} for n in range(count)]
        return [
            made(words(PROMPT_TOKENS, (turn, n)), **{**self.fields, **seeds[n]})
            for n in range(count)
        ]


async def measure(plan: Plan, size: str) -> dict[str, Any]:
    """Figures of every contender at each number of requests, and ratios round by round."""
    async with AsyncExitStack() as opened:
        left_out: dict[str, str] = {}
        contenders = await _contenders(plan, size, opened, left_out)
        for turn in plan.turns(MOST_SECONDS):
            if turn == 0:
                await _all(plan, contenders, -1, 4)
            await _all(plan, contenders, turn, plan.tokens)
    return {
        "size": size,
        "tokens": plan.tokens,
        "cut_seconds": CUT_SECONDS,
        "cells": {
            c.name: {str(n): loads.cell(rounds) for n, rounds in c.loads.items()}
            for c in contenders
        },
        "ratios": loads.ratios(_pairs({c.name: c.loads for c in contenders})),
        "peers": {name: servers.described(name) for name in plan.peers if name not in left_out},
        "left_out": left_out | {c.name: c.failed for c in contenders if c.failed},
    }


async def _contenders(
    plan: Plan, size: str, opened: AsyncExitStack, left_out: dict[str, str]
) -> list[Contender]:
    """Start all servers. `left_out` gets the reason of each peer that cannot be had."""
    checkpoint = plan.checkpoint(size)
    ours = await opened.enter_async_context(servers.ours(plan.scratch / size, checkpoint))
    await ours.warm()
    contenders = [
        Contender(servers.OURS, ours, COUNTS),
        Contender(SEEDED, ours, (1, 8, 32), {"seed": None}),
    ]
    if size in PRECISIONS_OF:
        for name, precision in PRECISIONS.items():
            home = plan.scratch / f"{size}-{precision}"
            held = await opened.enter_async_context(servers.ours(home, checkpoint, precision))
            await held.warm()
            contenders.append(Contender(name, held, (1,)))
    if not plan.peers:
        return contenders
    contenders.append(Contender(GREEDY, ours, (1, 8, 32), {"temperature": 0, "top_p": 1}))
    peers = servers.Peers(plan.cache)
    plan.say("  installing the peers")
    try:
        python = peers.prepare()
    except (subprocess.CalledProcessError, OSError) as error:
        left_out |= dict.fromkeys(plan.peers, f"not installed: {error}")
        return contenders
    for name in plan.peers:
        plan.say(f"  starting {name}")
        try:
            starting = peers.start(name, python, size, plan.scratch / f"{name}.log")
            server = await opened.enter_async_context(starting)
            await server.warm()
        except (servers.NotStarted, Unanswered, OSError, ValueError) as error:
            left_out[name] = f"not started: {error}"
        else:
            # one at a time, so that more requests at once only wait longer
            most = 8 if name == servers.PLAIN else 64 if size == "91m" else 32
            contenders.append(Contender(name, server, tuple(n for n in COUNTS if n <= most)))
    return contenders


async def _all(plan: Plan, contenders: list[Contender], turn: int, tokens: int) -> None:
    """Measure every contender once at each number of requests. Turn -1 warms up and is not counted."""
    for count in COUNTS:
        taking_part = [c for c in contenders if count in c.counts and c.failed is None]
        for contender in taking_part if turn % 2 else reversed(taking_part):
            others = {c.server.port: c.server for c in contenders}
            others.pop(contender.server.port)
            try:
                load = await _one(contender, count, turn, tokens, list(others.values()))
            except (Unanswered, OSError) as error:
                contender.failed = f"{count} at once: {error or type(error).__name__}"
                plan.say(f"  {contender.name} failed, {contender.failed}")
                continue
            if turn >= 0:
                contender.loads.setdefault(count, []).append(load)
                plan.say(
                    f"  round {turn + 1}, {count:2d} at once, {contender.name}: "
                    f"{load.tokens_per_s:.1f} tokens/s{'' if load.is_whole else ', cut'}"
                )


async def _one(
    contender: Contender, count: int, turn: int, tokens: int, others: list[Server]
) -> Load:
    with ExitStack() as stack:
        for other in others:
            stack.enter_context(other.paused())
        requests = contender.requests(count, tokens, turn)
        load = await loads.measured(at_once(requests, CUT_SECONDS))
        if not load.is_whole:
            await contender.server.warm()
        return load


def _pairs(
    by_name: Mapping[str, Mapping[int, list[Load]]],
) -> dict[str, tuple[list[float], list[float]]]:
    """Tokens per second of both sides of each ratio. A contender that failed has fewer rounds, or none."""

    def speeds(side: tuple[str, int]) -> list[float]:
        name, count = side
        return loads.speeds(by_name.get(name, {}).get(count, []))

    return {name: (speeds(above), speeds(below)) for name, above, below in RATIOS}
