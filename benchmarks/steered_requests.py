"""What steering in requests costs: 32 requests at once, each with its own `sae_steering`, over 32 unsteered ones."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from benchmarks import saes, service
from benchmarks.machine import Spread

REQUESTS = 32
TOKENS = 48
ROUNDS = 15
MODEL = "big"
STATE = "x-service-steering-state"

Steering = dict[str, Any]


async def measure(scratch: Path, big: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds of both kinds of requests on a model with random weights, in turn, and their ratio."""
    room = {"MAX_CONCURRENT_REQUESTS": str(REQUESTS)}
    async with service.running(scratch / "requests", **room) as client:
        await service.load(client, big, MODEL)
        await _attach(
            client, scratch / "steering-sae", json.loads((big / "config.json").read_text())
        )
        different = [_steering(number) for number in range(REQUESTS)]
        plain: list[float] = []
        steered: list[float] = []
        for turn in range(rounds + 1):
            pair = [(plain, [None] * REQUESTS), (steered, different)]
            for seconds, kind in pair if turn % 2 else reversed(pair):
                taken, states = await _round(client, kind)
                assert len(states) == (REQUESTS if kind is different else 1), states
                seconds += [taken] if turn else []
    return {
        "requests": REQUESTS,
        "tokens": TOKENS,
        "unsteered_seconds": asdict(Spread.of(plain)),
        "steered_seconds": asdict(Spread.of(steered)),
        "throughput_ratio": asdict(
            Spread.of([one / other for one, other in zip(plain, steered, strict=True)])
        ),
    }


def _steering(number: int) -> Steering:
    features = [{"index": 3 * number + i, "value": 1.0 + number / 8} for i in range(3)]
    return {"features": features}


async def _round(
    client: httpx.AsyncClient, kind: list[Steering | None] | list[Steering]
) -> tuple[float, set[str | None]]:
    """Seconds of requests at once, and the digests of their steering."""
    since = time.perf_counter()
    answers = await asyncio.gather(*(_ask(client, steering) for steering in kind))
    return time.perf_counter() - since, {answer.headers.get(STATE) for answer in answers}


async def _ask(client: httpx.AsyncClient, steering: Steering | None) -> httpx.Response:
    body = {
        "model": MODEL,
        "prompt": "a few words",
        "max_tokens": TOKENS,
        "temperature": 0.8,
        "sae_steering": steering,
    }
    answer = await client.post("/v1/completions", json=body)
    answer.raise_for_status()
    return answer


async def _attach(client: httpx.AsyncClient, folder: Path, config: dict[str, Any]) -> None:
    """Attach an SAE with random weights in the middle of the model."""
    layer = config["num_hidden_layers"] // 2
    source = saes.written(folder, config["hidden_size"], f"blocks.{layer}.hook_resid_post")
    added = await client.post("/api/saes/download", json={"local_path": source.path})
    added.raise_for_status()
    sae = added.json()["data"]["sae_id"]
    attached = await client.post(f"/api/saes/{sae}/attach", json={"layer": layer})
    attached.raise_for_status()
