"""32 clients at once whose prompts and answers differ in length."""

from __future__ import annotations

import math
import random
from typing import Any

from benchmarks import loads, servers
from benchmarks.loads import Load
from benchmarks.plans import Plan
from benchmarks.streams import at_once, words

CLIENTS = 32
PROMPTS, ANSWERS = (20, 2000), (16, 256)
"""Tokens, from the shortest to the longest; every factor of length is equally likely."""
CUT_SECONDS, MOST_SECONDS = 120.0, 300.0


async def measure(plan: Plan, size: str) -> dict[str, Any]:
    rounds: list[Load] = []
    draw = random.Random(0)
    lengths = [(_drawn(draw, PROMPTS), _drawn(draw, ANSWERS)) for _ in range(CLIENTS)]
    async with servers.ours(plan.scratch / "mixed", plan.checkpoint(size)) as server:
        await server.warm()
        for turn in plan.turns(MOST_SECONDS):
            requests = [
                server.request(words(prompt, (turn, n)), answer)
                for n, (prompt, answer) in enumerate(lengths)
            ]
            load = await loads.measured(at_once(requests, CUT_SECONDS))
            rounds.append(load)
            plan.say(f"  round {turn + 1}: {load.tokens_per_s:.1f} tokens/s")
    return {
        "size": size,
        "clients": CLIENTS,
        "prompt_tokens": sum(prompt for prompt, _ in lengths),
        "answer_tokens": sum(answer for _, answer in lengths),
        "cell": loads.cell(rounds),
    }


def _drawn(draw: random.Random, bounds: tuple[int, int]) -> int:
    return round(math.exp(draw.uniform(*map(math.log, bounds))))
