"""Requests beside another process that keeps one core busy, and alone, in turns."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks import loads, servers
from benchmarks.loads import Load
from benchmarks.plans import Plan
from benchmarks.servers import Server
from benchmarks.streams import Answer, repeated_for, words
from steerserve import demo

SECONDS = 6.0
"""Clients ask again and again for this time; in a quick run for half of it."""
MOST_SECONDS = 300.0
COUNTS = {"demo": (1, 8), "91m": (1, 8, 32)}
SPIN = "while True: pass"


async def measure(plan: Plan) -> dict[str, Any]:
    """Tokens per second of the demo model and of the small shape, alone and beside, and their ratios."""
    alone: dict[str, list[Load]] = {}
    beside: dict[str, list[Load]] = {}
    async with AsyncExitStack() as opened:
        running = {}
        for name in COUNTS:
            folder = demo.MODEL_DIR if name == "demo" else plan.checkpoint(name)
            server = await opened.enter_async_context(
                servers.ours(plan.scratch / f"beside-{name}", folder)
            )
            await server.warm()
            running[name] = server
        for turn in plan.turns(MOST_SECONDS):
            for name, counts in COUNTS.items():
                for count in counts:
                    key = f"{name}, {count} at once"
                    for is_beside in (False, True) if turn % 2 else (True, False):
                        seconds = plan.seconds(SECONDS)
                        load = await _load(running[name], count, turn, seconds, is_beside)
                        (beside if is_beside else alone).setdefault(key, []).append(load)
                        where = "beside a busy process" if is_beside else "alone"
                        plan.say(
                            f"  round {turn + 1}, {key}, {where}: {load.tokens_per_s:.0f} tokens/s"
                        )
    return {
        "alone": {key: loads.cell(rounds) for key, rounds in alone.items()},
        "beside": {key: loads.cell(rounds) for key, rounds in beside.items()},
        "ratios": loads.ratios(
            {key: (loads.speeds(beside[key]), loads.speeds(alone[key])) for key in alone}
        ),
    }


async def _load(server: Server, count: int, turn: int, seconds: float, is_beside: bool) -> Load:
    async with AsyncExitStack() as opened:
        if is_beside:
            await opened.enter_async_context(_busy())
        return await loads.measured(_asked(server, count, turn, seconds))


async def _asked(server: Server, count: int, turn: int, seconds: float) -> list[Answer]:
    return await repeated_for(
        lambda n: server.request(words(12, (turn, count, n)), 96), count, seconds
    )


@asynccontextmanager
async def _busy() -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SPIN)
    try:
        yield
    finally:
        process.kill()
        await process.wait()
