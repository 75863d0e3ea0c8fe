"""What the service adds to the engine: per request, per streamed token; and liveness while a model loads."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.machine import Spread, quantile
from steerserve import demo
from steerserve import messages as m
from steerserve.engines.checkpoint.client import CheckpointEngine, Launcher

REQUESTS = 300
STREAMS = 30
TOKENS = 200
PROBE_EVERY = 0.01
PROGRAM = ("-m", "steerserve", "serve")
STOP_SECONDS = 60.0
"""More than the service waits for requests in flight."""


class Wire:
    """One kept connection that sends requests and reads answers as bytes, so that no client library is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        """The body of the answer, chunked or not."""
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        headers = await self._reader.readuntil(b"\r\n\r\n")
        assert headers.startswith(b"HTTP/1.1 200"), headers
        found = re.search(rb"content-length: (\d+)", headers)
        if found:
            return await self._reader.readexactly(int(found[1]))
        whole = b""
        while not whole.endswith(b"0\r\n\r\n"):
            whole += await self._reader.read(1 << 16)
        return whole


async def measure(scratch: Path, big: Path) -> dict[str, Any]:
    """Times through the service and through the bare engine, in turn, on the demo model."""
    async with running(scratch / "home") as client:
        await load(client, demo.MODEL_DIR, demo.MODEL_NAME)
        engine = await Launcher("WARNING", "console").launch()
        try:
            await engine.load(
                lambda _: None,
                path=str(demo.MODEL_DIR),
                quantization="FP16",
                trust_remote_code=False,
                threads=0,
                kv_cache_mb=256,
                min_context=1024,
            )
            wire = Wire(*await asyncio.open_connection("127.0.0.1", client.base_url.port))
            added_request = await _per_request(wire, engine)
            added_token = await _per_token(wire, engine)
        finally:
            await engine.stop()
        liveness = await _liveness(client, big)
    return {
        "model": demo.MODEL_NAME,
        "added_seconds_per_request": added_request,
        "added_seconds_per_streamed_token": added_token,
        "liveness_seconds_while_loading": liveness,
    }


async def _per_request(wire: Wire, engine: CheckpointEngine) -> dict[str, Any]:
    body = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1}
    through, bare = [], []
    for turn in range(REQUESTS + 20):
        since = time.perf_counter()
        await wire.post("/v1/completions", body)
        middle = time.perf_counter()
        await _generate(engine, 1)
        if turn >= 20:
            through.append(middle - since)
            bare.append(time.perf_counter() - middle)
    return _difference(through, bare, 1)


async def _per_token(wire: Wire, engine: CheckpointEngine) -> dict[str, Any]:
    body = {
        "model": demo.MODEL_NAME,
        "prompt": "One day",
        "max_tokens": TOKENS,
        "temperature": 2.0,
        "stream": True,
    }
    through, bare = [], []
    for turn in range(STREAMS + 2):
        since = time.perf_counter()
        pieces = (await wire.post("/v1/completions", body)).count(b'"text":"')
        middle = time.perf_counter()
        tokens = await _generate(engine, TOKENS)
        if turn >= 2:
            through.append((middle - since) / max(1, pieces - 1))
            bare.append((time.perf_counter() - middle) / tokens)
    return _difference(through, bare, 1)


async def _generate(engine: CheckpointEngine, tokens: int) -> int:
    """The same request at the bare engine; its tokens."""
    sampling = m.Sampling(temperature=2.0 if tokens > 1 else 1.0, max_tokens=tokens)
    count = 0
    goal, prompts = m.Generate(sampling=sampling), [m.Text("One day")]
    async for event in engine.run(m.Request(goal=goal, prompts=prompts, plan=m.Follow())):
        count = event.tokens if isinstance(event, m.Piece) else count
    return count


async def _liveness(client: httpx2.AsyncClient, big: Path) -> dict[str, Any]:
    """Times of the liveness probe while a 0.5B-shaped model loads over the demo model."""
    body = {"source": "local", "local_path": str(big), "custom_name": "big"}
    added = (await client.post("/api/models", json=body)).json()["data"]
    loading = asyncio.create_task(client.post(f"/api/models/{added['id']}/load?wait=true"))
    found = []
    while not loading.done():
        since = time.perf_counter()
        (await client.get("/api/health")).raise_for_status()
        found.append(time.perf_counter() - since)
        await asyncio.sleep(PROBE_EVERY)
    (await loading).raise_for_status()
    return asdict(Spread.of(found)) | {"p99": quantile(found, 0.99)}


def _difference(through: list[float], bare: list[float], per: int) -> dict[str, Any]:
    """Medians of both and of their difference, pair by pair."""
    added = [(a - b) / per for a, b in zip(through, bare, strict=True)]
    return {
        "service": asdict(Spread.of(through)),
        "engine": asdict(Spread.of(bare)),
        "added_median_of_pairs": statistics.median(added),
        "added_of_medians": statistics.median(through) - statistics.median(bare),
    }


async def load(client: httpx2.AsyncClient, folder: Path, name: str, **fields: str) -> None:
    body = {"source": "local", "local_path": str(folder), "custom_name": name, **fields}
    added = (await client.post("/api/models", json=body)).json()["data"]
    (await client.post(f"/api/models/{added['id']}/load?wait=true")).raise_for_status()


@asynccontextmanager
async def running(
    home: Path, program: Sequence[str] = PROGRAM, /, **settings: str
) -> AsyncIterator[httpx2.AsyncClient]:
    """The service as a process of its own on a free port. `program` is what Python runs."""
    port = free_port()
    environment = os.environ | {"STEERSERVE_HOME": str(home), "LOG_LEVEL": "WARNING"} | settings
    arguments = [sys.executable, *program, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*arguments, env=environment)
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            while process.returncode is None:
                try:
                    await client.get("/api/health")
                    break
                except httpx2.ConnectError:
                    await asyncio.sleep(0.1)
            assert process.returncode is None, "the service did not start"
            yield client
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
