"""Measures what a card does: `python -m benchmarks.cards [--sizes SIZES] [--only PARTS] [--rounds N]`.

One command measures everything that needs a card, with models of random weights: decode passes called and replayed;
requests through HTTP with and without recorded passes, with seeds, with quantized weights, and steered beside plain,
also with an SAE of real size; memory predicted and taken; two models that are swapped; live streams beside a corpus.
Without a card the parts run on the processor, which shows that they work and nothing else.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import torch

from benchmarks import (
    card_loads,
    card_steps,
    engine,
    graphs,
    loads,
    machine,
    memory,
    models,
    runs,
    servers,
    service,
    steered,
    tables,
)
from benchmarks.loads import Load
from benchmarks.machine import Spread
from benchmarks.plans import Plan
from benchmarks.streams import at_once, words
from steerserve.engines import gpus

COUNTS = (1, 8, 32, 64)
CUT_SECONDS = 60.0
STEERED_SECONDS, WIDE_SECONDS = 60.0, 25.0
WIDE = {"7b": 16_384, "none": 16_384}
"""Features of an SAE of real size, where they are not 65,536."""
WIDE_KINDS = ("32 sae_steering", "32 clamps", "a sensed cluster", "monitoring")
SWAPS, SWAPS_SECONDS = 20, 60.0
"""How often models are swapped, and after how long no more."""
SETTINGS = {"called": {"CUDA_GRAPHS": "off"}, "recorded": {"CUDA_GRAPHS": "on"}}
"""How decode passes are run."""


def device() -> torch.device:
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def bandwidth(plan: Plan, size: str) -> dict[str, Any]:
    """What the memory allows for one row, which reads all weights for each token."""
    read = machine.read_bandwidth(device())
    weights = sum(file.stat().st_size for file in plan.checkpoint(size).glob("*.safetensors"))
    return {
        "read_bytes_per_s": asdict(read),
        "weights_bytes": weights,
        "limit_tokens_per_s": read.median / weights,
    }


async def through_http(plan: Plan, size: str) -> dict[str, Any]:
    """Tokens per second at each number of requests, with called and with recorded passes."""
    cells: dict[str, dict[str, Any]] = {}
    speeds: dict[tuple[str, int], list[float]] = {}
    states = {}
    for name, settings in SETTINGS.items():
        async with servers.ours(
            plan.scratch / f"{size}-{name}", plan.checkpoint(size), **settings
        ) as ours:
            measured: dict[int, list[Load]] = {count: [] for count in COUNTS}
            for turn in range(-1, plan.rounds):
                for count in COUNTS:
                    tokens = plan.tokens if turn >= 0 else 8
                    requests = [
                        ours.request(words(12, (turn, number)), tokens) for number in range(count)
                    ]
                    load = await loads.measured(at_once(requests, CUT_SECONDS))
                    if turn >= 0:
                        measured[count].append(load)
                        plan.say(f"  {name}, {count} at once: {load.tokens_per_s:.0f} tokens/s")
            async with httpx2.AsyncClient(base_url=ours.url, timeout=60) as client:
                states[name] = await card_loads.decoding(client)
        cells[name] = {str(count): loads.cell(made) for count, made in measured.items()}
        speeds |= {(name, count): loads.speeds(made) for count, made in measured.items()}
    ratios = {
        f"{count} recorded over called": (speeds["recorded", count], speeds["called", count])
        for count in COUNTS
    } | {f"64 over 1, {name}": (speeds[name, 64], speeds[name, 1]) for name in SETTINGS}
    return {
        "tokens": plan.tokens,
        "cells": cells,
        "ratios": loads.ratios(ratios),
        "decoding": states,
    }


async def steered_pairs(plan: Plan, size: str) -> dict[str, Any]:
    """32 requests with steering of each kind beside plain ones."""
    return await steered.measure(plan, size, most_seconds=STEERED_SECONDS)


async def wide_sae(plan: Plan, size: str) -> dict[str, Any]:
    """The same with an SAE of the size of published ones, and the memory of the card before and after."""
    before = _used_mib()
    found = await steered.measure(
        plan, size, most_seconds=WIDE_SECONDS, d_sae=WIDE.get(size, 65_536), only=WIDE_KINDS
    )
    return found | {"used_mib": [before, _used_mib()]}


def _used_mib() -> int:
    return sum(card.used_mb for card in gpus.read()[0])


def usage(plan: Plan, size: str) -> dict[str, Any]:
    """Memory predicted and taken at each precision."""
    folder = plan.checkpoint(size)
    vocabulary = models.SIZES[size]["vocab_size"]
    nothing = models.sized("none", plan.scratch / f"none-{size}", vocabulary)
    found = asyncio.run(memory.measure(folder, nothing, memory.PRECISIONS))
    return {
        "context_tokens": memory.CONTEXT,
        "mib": {name: asdict(one) for name, one in found.items()},
    }


async def swaps(plan: Plan, size: str, times: int) -> dict[str, Any]:
    """Two models that take each other's place, one request after each load, and the memory of the card."""
    seconds, used = [], []
    other = models.sized(size, plan.cache / f"{size}-other")
    async with service.running(plan.scratch / f"swaps-{size}") as client:
        numbers = []
        for folder in (plan.checkpoint(size), other):
            body = {"source": "local", "local_path": str(folder), "custom_name": folder.name}
            numbers.append((await client.post("/api/models", json=body)).json()["data"]["id"])
        began = time.perf_counter()
        for turn in range(times):
            since = time.perf_counter()
            if turn and since - began > SWAPS_SECONDS:
                plan.say(f"  the time of this part is over after {turn} swaps")
                break
            number = numbers[turn % 2]
            (await client.post(f"/api/models/{number}/load?wait=true")).raise_for_status()
            seconds.append(time.perf_counter() - since)
            plan.say(f"  a load in {seconds[-1]:.1f} s")
            name = (plan.checkpoint(size), other)[turn % 2].name
            body = {"model": name, "prompt": "word", "max_tokens": 8}
            (await client.post("/v1/completions", json=body)).raise_for_status()
            used.append(_used_mib())
    return {"swaps": len(seconds), "load_s": asdict(Spread.of(seconds)), "used_mib": used}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "bandwidth": bandwidth,
    "engine": lambda plan, size: engine.measure(plan.checkpoint(size)),
    "graphs": lambda plan, size: graphs.measure(plan.checkpoint(size)),
    "steps": lambda plan, size: card_steps.measure(plan.checkpoint(size), plan.say),
    "http": lambda plan, size: asyncio.run(through_http(plan, size)),
    "steered": lambda plan, size: asyncio.run(steered_pairs(plan, size)),
    "wide-sae": lambda plan, size: asyncio.run(wide_sae(plan, size)),
    "seeds": lambda plan, size: asyncio.run(card_loads.seeds(plan, size)),
    "precisions": lambda plan, size: asyncio.run(card_loads.precisions(plan, size)),
    "memory": usage,
    "swaps": lambda plan, size: asyncio.run(swaps(plan, size, SWAPS)),
}
UNSIZED: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "corpus": lambda plan: asyncio.run(card_loads.corpus(plan)),
}
"""Parts that have a model of their own."""


def main() -> None:
    parser = runs.options(__doc__, [*PARTS, *UNSIZED])
    parser.add_argument("--sizes", nargs="+", choices=tables.CARD_SIZES, default=["0.5b", "7b"])
    parser.add_argument("--rounds", type=int, default=3, help="how often; 3 by default")
    parser.add_argument("--quick", action="store_true", help="shorter answers")
    parser.add_argument("--cache", type=Path, help="folder of models that is kept")
    given = parser.parse_args()
    works: dict[str, Callable[[Plan], dict[str, Any]]] = {
        f"card-{part}-{size}": partial(PARTS[part], size=size)
        for size in given.sizes
        for part in given.only
        if part in PARTS
    } | {f"card-{part}": UNSIZED[part] for part in given.only if part in UNSIZED}
    run = runs.Run("cards", works, given.out, rounds=given.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        plan = Plan(
            is_quick=given.quick,
            rounds=given.rounds,
            peers=(),
            cache=given.cache or Path(scratch) / "models",
            scratch=Path(scratch),
            say=run.say,
        )
        for name, work in works.items():
            run.measure(name, partial(work, plan))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    sys.exit(run.end())


if __name__ == "__main__":
    main()
