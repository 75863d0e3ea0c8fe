"""What a polite client waits beside a greedy one: `python -m benchmarks.fairness`.

The polite client sends one short chat after the other. The greedy client is a process of its own at another address,
which keeps so many requests in flight, and sends a refused request again after a pause. Both use the demo model.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from benchmarks import service
from benchmarks.kept import Kept
from benchmarks.machine import quantile
from steerserve import demo

POLITE_ADDRESS, GREEDY_ADDRESS = "127.0.0.1", "127.0.0.2"
"""Without API keys, the service tells clients apart by their addresses."""

CHAT = {
    "model": demo.MODEL_NAME,
    "messages": [{"role": "user", "content": "Tell me a story."}],
}
POLITE: dict[str, Any] = {**CHAT, "max_tokens": 8}
SIDES = 16
PROMPTS = 128
GREEDY_PAUSE = 0.5
"""Seconds after which a refused request of the greedy client comes again."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """A load of `in_flight` equal requests at once."""

    path: str
    body: dict[str, Any]
    in_flight: int


def loads() -> dict[str, Greedy]:
    proof = demo.proof()
    compare = {
        "prompt": "One day",
        "steering": {str(proof["feature_idx"]): proof["strength"]},
        "intensities": [i / 10 for i in range(SIDES)],
    }
    return {
        "50 compares of 16 sides": Greedy("/api/compare", compare, 50),
        "20 completions of 128 prompts": Greedy(
            "/v1/completions",
            {"model": demo.MODEL_NAME, "prompt": ["One day"] * PROMPTS, "max_tokens": 64},
            20,
        ),
        "150 chats": Greedy("/v1/chat/completions", {**CHAT, "max_tokens": 64}, 150),
    }


def client(url: str, address: str) -> httpx2.AsyncClient:
    transport = httpx2.AsyncHTTPTransport(
        local_address=address, limits=httpx2.Limits(max_connections=None)
    )
    return httpx2.AsyncClient(base_url=url, transport=transport, timeout=300)


# ---------------------------------------------------------------------- the greedy client


async def be_greedy(url: str, load: Greedy) -> None:
    async with client(url, GREEDY_ADDRESS) as http:
        await asyncio.gather(*(_again_and_again(http, load) for _ in range(load.in_flight)))


async def _again_and_again(http: httpx2.AsyncClient, load: Greedy) -> None:
    while True:
        answer = await http.post(load.path, json=load.body)
        if answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE:
            await asyncio.sleep(GREEDY_PAUSE)
        else:
            answer.raise_for_status()


@asynccontextmanager
async def beside(url: str, name: str) -> AsyncIterator[None]:
    """A process that is greedy while the block runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.fairness", "--greedy", name, "--url", url
    )
    try:
        await _until_waiting(url)
        yield
        assert process.returncode is None, "the greedy client ended"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _until_waiting(url: str) -> None:
    """Return once requests wait for a slot."""
    async with client(url, POLITE_ADDRESS) as http:
        while not (await _queue(http))["queue_waiting"]:
            await asyncio.sleep(0.1)


async def _until_idle(http: httpx2.AsyncClient) -> None:
    while (await _queue(http))["queue_pending"]:
        await asyncio.sleep(0.1)


async def _queue(http: httpx2.AsyncClient) -> dict[str, Any]:
    answer = await http.get("/api/health/detailed")
    block: dict[str, Any] = answer.raise_for_status().json()["data"]["inference"]
    return block


# ---------------------------------------------------------------------- the polite client


async def be_polite(http: httpx2.AsyncClient, requests: int) -> dict[str, Any]:
    """Seconds of so many requests, one after the other, and the statuses of their answers."""
    seconds: list[float] = []
    statuses: Counter[int] = Counter()
    for _ in range(requests):
        since = time.perf_counter()
        answer = await http.post("/v1/chat/completions", json=POLITE)
        seconds.append(time.perf_counter() - since)
        statuses[answer.status_code] += 1
    return {
        "p50": quantile(seconds, 0.5),
        "p90": quantile(seconds, 0.9),
        "greatest": max(seconds),
        "statuses": {str(status): count for status, count in statuses.items()},
    }


async def measure(home: Path, requests: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with service.running(home) as operator:
        await service.load(operator, demo.MODEL_DIR, demo.MODEL_NAME)
        sae = demo.saes()[-1]
        body = {"local_path": str(sae.path)}
        added = (await operator.post("/api/saes/download", json=body)).json()["data"]
        attach = f"/api/saes/{added['sae_id']}/attach"
        (await operator.post(attach, json={"layer": sae.layer})).raise_for_status()
        url = str(operator.base_url)
        async with client(url, POLITE_ADDRESS) as http:
            await be_polite(http, 3)
            found["alone"] = await be_polite(http, requests)
            for name in loads():
                async with beside(url, name):
                    found[name] = await be_polite(http, requests)
                await _until_idle(http)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--greedy", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.greedy:
        asyncio.run(be_greedy(given.url, loads()[given.greedy]))
        return
    kept = Kept("fairness", given.out, polite=POLITE, requests=given.requests)
    with tempfile.TemporaryDirectory() as scratch:
        found = asyncio.run(measure(Path(scratch) / "home", given.requests))
    for name, figures in found.items():
        print(
            f"{name}: p50 {figures['p50']:.2f} s, p90 {figures['p90']:.2f} s, "
            f"greatest {figures['greatest']:.2f} s, answers {figures['statuses']}",
            flush=True,
        )
    kept.end({"seconds": found})


if __name__ == "__main__":
    main()
