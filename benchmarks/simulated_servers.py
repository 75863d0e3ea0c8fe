"""Starts simulated engines with the real service before them, and asks the service for streams."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil

from benchmarks import servers, service
from benchmarks.simulated import Facts
from benchmarks.streams import Request
from steerserve import demo
from steerserve import messages as m
from steerserve.engines.checkpoint.client import Launcher

HOSTS = 2
"""The most processes that simulated engines live in."""
PROMPT = "One day"
START_SECONDS = 120.0
STEERING_PATH = "/api/saes/steering"
ROOM = {
    "MAX_CONCURRENT_REQUESTS": "1024",
    "MAX_PENDING_REQUESTS": "1024",
    "MAX_CONNECTIONS": "12000",
    "MAX_LIVE_CLIENTS": "2000",
}


@dataclass(frozen=True, slots=True)
class Steps:
    """How simulated engines step, and how many rows each may have."""

    milliseconds: float
    rows: int


@dataclass(frozen=True, slots=True)
class Served:
    """The service over simulated engines. With 0 replicas it has one engine and no fleet."""

    replicas: int
    steps: Steps
    client: httpx2.AsyncClient
    process: psutil.Process
    profile: Path

    @property
    def engines(self) -> int:
        return max(1, self.replicas)

    @property
    def port(self) -> int:
        port = self.client.base_url.port
        assert port is not None
        return port

    def memory(self) -> int:
        """The resident memory of the service in bytes."""
        resident: int = self.process.memory_info().rss
        return resident

    def request(self, tokens: int) -> Request:
        body = {"model": demo.MODEL_NAME, "prompt": PROMPT, "max_tokens": tokens}
        return Request(self.port, servers.COMPLETIONS, body | servers.COUNTED)

    def numbered(self, number: int, tokens: int) -> Request:
        """Request `number` of many. The first answers have different lengths, so that not all end at once."""
        is_first = number < self.engines * self.steps.rows
        return self.request(random.Random(number).randint(1, tokens) if is_first else tokens)

    async def steer(self, mark: int, marks: int) -> None:
        """Set the steering so that tokens have this mark."""
        change = {"feature_idx": 0, "value": mark / marks}
        (await self.client.post(STEERING_PATH, json=change)).raise_for_status()

    def processor_seconds(self) -> tuple[float, float]:
        """What the service has taken so far: by itself, and in the system."""
        times = self.process.cpu_times()
        return times.user, times.system

    def sample(self) -> None:
        """Begin or end the sampling of the service."""
        self.process.send_signal(signal.SIGUSR2)

    async def sampled(self) -> dict[str, float]:
        """The shares that were sampled."""
        await _there(self.profile)
        shares: dict[str, float] = json.loads(self.profile.read_text())
        return shares


async def recorded() -> Facts:
    """The facts that a real engine tells about the demo model and its first SAE."""
    engine = await Launcher("WARNING", "console").launch()
    try:
        loaded = await engine.load(
            lambda _: None,
            path=str(demo.MODEL_DIR),
            quantization="FP16",
            trust_remote_code=False,
            threads=0,
            kv_cache_mb=64,
            min_context=256,
        )
        sae = demo.saes()[0]
        source = m.SaeSource(str(sae.path), sae.name)
        claims = (await engine.ask(m.Inspect(source=source))).claims
        placed = m.PlacedSae("sae", source, sae.layer)
        made = await engine.change(lambda state: state.attached(placed))
        facts = Facts(loaded, claims, made["sae"])
    finally:
        await engine.stop()
    return facts


@asynccontextmanager
async def serving(
    folder: Path, facts: Path, replicas: int, steps: Steps, open_files: int | None = None
) -> AsyncIterator[Served]:
    """The service over so many replicas, with the demo model and an SAE. It may open `open_files` files, by default as
    many as this process."""
    async with AsyncExitStack() as stack:
        count = min(HOSTS, max(1, replicas))
        sockets = [
            await stack.enter_async_context(_host(folder / f"{number}.sock", facts, steps))
            for number in range(count)
        ]
        profile = folder / "profile.json"
        program = ["-m", "benchmarks.simulated_service", *sockets]
        options = ["--replicas", str(replicas), "--profile", str(profile)]
        if open_files is not None:
            options += ["--open-files", str(open_files)]
        running = service.running(folder / "home", [*program, *options], **ROOM)
        client = await stack.enter_async_context(running)
        process = servers.child_at(client.base_url.port or 0)
        served = Served(replicas, steps, client, process, profile)
        await _prepare(served)
        yield served


@asynccontextmanager
async def _host(path: Path, facts: Path, steps: Steps) -> AsyncIterator[str]:
    arguments = ["-m", "benchmarks.simulated", str(path), str(facts)]
    options = ["--step-ms", str(steps.milliseconds), "--rows", str(steps.rows)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, *options)
    try:
        await _there(path)
        yield str(path)
    finally:
        await servers.ended(process, process.send_signal)


async def _there(path: Path) -> None:
    """Wait for a file that another process makes."""
    async with asyncio.timeout(START_SECONDS):
        while not await asyncio.to_thread(path.exists):
            await asyncio.sleep(0.05)


async def _prepare(served: Served) -> None:
    """Load the model, attach the SAE, and wait until every replica serves."""
    client = served.client
    await service.load(client, demo.MODEL_DIR, demo.MODEL_NAME)
    sae = demo.saes()[0]
    added = await _post(client, "/api/saes/download", {"local_path": str(sae.path)})
    await _post(client, f"/api/saes/{added['sae_id']}/attach", {"layer": sae.layer})


async def _post(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    answer = await client.post(path, json=body)
    assert answer.is_success, answer.text
    return answer.json()["data"]
