"""The time to the first token of a long prompt: read anew, and where a plain request has left its beginning."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks import loads, servers
from benchmarks.machine import Spread
from benchmarks.plans import Plan
from benchmarks.servers import Server
from benchmarks.streams import Request, ask, words

PROMPT_TOKENS = 2000
MOST_SECONDS = 180.0
TIMES = 2
READ = "plain, read anew"
KINDS = {
    "plain": None,
    "an ablation at the generated positions": "generated",
    "an ablation at all positions": "all",
}
"""The requests whose prompt a plain request has read before, with the positions of their edit."""


async def measure(plan: Plan, size: str) -> dict[str, Any]:
    """Seconds to the first token of each kind, and what they are over those of a prompt that is read anew."""
    folder = plan.checkpoint(size)
    config = json.loads((folder / "config.json").read_text())
    seconds: dict[str, list[float]] = {name: [] for name in (READ, *KINDS)}
    async with servers.ours(plan.scratch / "kept", folder) as server:
        await server.warm()
        for turn in plan.turns(MOST_SECONDS, TIMES):
            for name, positions in KINDS.items():
                prompt = words(PROMPT_TOKENS, (turn, name))
                read = await _first_token(server, prompt, {})
                edited = {} if positions is None else _ablation(config, positions)
                again = await _first_token(server, prompt, edited)
                seconds[READ].append(read)
                seconds[name].append(again)
                plan.say(f"  round {turn + 1}, {name}: {again:.3f} s, read anew {read:.3f} s")
    rounds = len(seconds["plain"])
    anew = [seconds[READ][len(KINDS) * turn : len(KINDS) * (turn + 1)] for turn in range(rounds)]
    return {
        "size": size,
        "prompt_tokens": PROMPT_TOKENS,
        "first_token_s": {name: asdict(Spread.of(values)) for name, values in seconds.items()},
        "ratios": loads.ratios(
            {
                name: (seconds[name], [values[place] for values in anew])
                for place, name in enumerate(KINDS)
            }
        ),
    }


async def _first_token(server: Server, prompt: str, fields: dict[str, Any]) -> float:
    body = {"prompt": prompt, "max_tokens": 2, **server.fields, **fields}
    answer = await ask(Request(server.port, "/v1/completions", body))
    return answer.texts[0] - answer.began


def _ablation(config: dict[str, Any], positions: str) -> dict[str, Any]:
    """An edit that takes away a direction in the middle of the model."""
    numbers = np.random.default_rng(0).normal(size=config["hidden_size"]).astype("<f4")
    vector = {
        "layer": config["num_hidden_layers"] // 2,
        "data": base64.b64encode(numbers.tobytes()).decode(),
    }
    return {
        "interventions": {"edits": [{"op": "ablate", "vector": vector, "positions": positions}]}
    }
