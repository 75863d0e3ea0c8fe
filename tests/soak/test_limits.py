"""Several clients ask for as much as one request may, and for more, all at once: each answer is typed, liveness answers
all the while, and the memory comes back."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.processes import Process
from tests.soak import watching
from tests.soak.clients import text_of
from tests.soak.watching import in_ms

CLIENTS, ROUNDS = 6, 12
LIVENESS_SECONDS = 1.0
GROWTH = 1.1
"""The most that memory may differ between the later rounds, when the allocators have their working size."""

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HELLO = {"role": "user", "content": "the boats"}
STOPS = [f"{i} " + "z" * 990 for i in range(16)]
LONG = "the boats " * 20_000

AT_LIMITS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [HELLO], "n": 16, "max_tokens": 60, "stop": STOPS}),
    (CHAT, {"messages": [HELLO], "extra_messages": [[HELLO]] * 64, "max_tokens": 30}),
    (CHAT, {"messages": [HELLO] * 2000, "max_tokens": 1}),
    (CHAT, {"messages": [HELLO], "extra_messages": [[HELLO] * 31] * 64, "max_tokens": 1}),
    (CHAT, {"messages": [HELLO], "logprobs": True, "top_logprobs": 20, "max_tokens": 1}),
    (TEXT, {"prompt": ["the boats"] * 128, "max_tokens": 60, "stop": STOPS}),
    (TEXT, {"prompt": ["the boats"] * 128, "max_tokens": 1, "logprobs": 20}),
    (
        TEXT,
        {
            "prompt": ["the boats"] * 128,
            "max_tokens": 1,
            "logprobs": 0,
            "allowed_token_ids": list(range(50)) * 900,
        },
    ),
    (TEXT, {"prompt": [LONG] * 39, "max_tokens": 4}),
    (EMBED, {"input": ["the boats"] * 128}),
    (EMBED, {"input": [LONG] * 39}),
]
"""Requests within the limits of counts. Some are longer than the context, and refused for that."""

BEYOND: list[tuple[str, bytes]] = [
    (CHAT, b'{"model": "red", "messages": [' + b"[]," * 2_000_000 + b"[]]}"),
    (CHAT, b'{"model": "red", "messages": [' + b'{"role":5},' * 60_000 + b"{}]}"),
    (CHAT, b'{"model": "red", ' + b'"a":1,' * 1_000_000 + b'"messages": []}'),
    (TEXT, b'{"model": "red", "prompt": [' + b"5," * 3_000_000 + b"5]}"),
    (TEXT, b'{"model": "red", "stop": ["a"], "prompt": "' + b'\\"' * 3_500_000 + b'"}'),
    (TEXT, b'{"model": "red", "prompt": "a", "allowed_token_ids": [' + b"1," * 150_000 + b"1]}"),
    (EMBED, b'{"model": "red", "input": [' + b'"",' * 2_000_000 + b'""]}'),
    ("/api/monitoring/configure", b'{"features": [' + b'"",' * 2_000_000 + b'""]}'),
    ("/api/compare", b'{"messages": [' + b"{}," * 2_000_000 + b"{}]}"),
    ("/api/saes/steering/batch", b'{"steering": {' + b'"a":[],' * 1_000_000 + b'"b":1}}'),
]

REFUSALS = (400, 404, 413, 422, 503)
JSON = {"content-type": "application/json"}


async def stress(url: str) -> list[float]:
    """Let every client send every request; the seconds of each liveness probe beside them."""
    probes: list[float] = []
    async with httpx2.AsyncClient(base_url=url, timeout=300) as http:
        clients = [asyncio.create_task(client(http, i)) for i in range(CLIENTS)]
        work = asyncio.gather(*clients)
        while not work.done():
            since = time.monotonic()
            assert (await http.get("/api/health")).status_code == 200
            probes.append(time.monotonic() - since)
            await asyncio.wait([work], timeout=0.05)
        await work
    return probes


async def client(http: httpx2.AsyncClient, number: int) -> None:
    """Send every request, each client beginning at another one."""
    sent = [(path, json.dumps({"model": "red"} | body).encode()) for path, body in AT_LIMITS]
    sent += BEYOND
    for turn in range(len(sent)):
        path, body = sent[(turn + number * 3) % len(sent)]
        answer = await http.post(path, content=body, headers=JSON)
        if answer.status_code != 200:
            assert answer.status_code in REFUSALS, answer.text[:300]
            assert answer.json()["error"]["code"] not in ("internal_error", "INTERNAL_ERROR")
        elif (path, body) in BEYOND:
            raise AssertionError(f"served: {path} {body[:60]!r}")


def sizes_mb(served: Process) -> dict[str, float]:
    """The memory of the control plane and of its engine processes, in MiB."""
    control = psutil.Process(served.process.pid).memory_info().rss
    engines = sum(process.memory_info().rss for process in watching.engines(served))
    return {"control": control / (1 << 20), "engines": engines / (1 << 20)}


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_clients_at_every_limit_hurt_neither_liveness_nor_memory(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    with watching.stressed(tmp_path / "home") as served:
        with httpx2.Client(base_url=served.url, timeout=60) as http:
            watching.load(http, watching.register(http, folders["red"], "red"))
            clean = text_of(http)
            probes: list[float] = []
            sizes: list[dict[str, float]] = []
            for _ in range(ROUNDS):
                probes += asyncio.run(stress(served.url))
                watching.until_idle(http)
                sizes.append(sizes_mb(served))
            print(f"liveness of {len(probes)} probes: {in_ms(probes)}")
            assert text_of(http) == clean
        assert max(probes) < LIVENESS_SECONDS
        for name in sizes[0]:
            values = [size[name] for size in sizes]
            print(name, [round(value) for value in values], "MiB")
            settled = values[len(values) // 2 :]
            assert max(settled) <= min(settled) * GROWTH, name
        assert not watching.complaints(served)
        watching.stop(served)
