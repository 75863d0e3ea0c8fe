"""Live requests beside a running batch, and alone, in turns; and the tokens per second of a batch that is alone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import httpx2

from benchmarks import loads, servers
from benchmarks.loads import SHARES, Load
from benchmarks.machine import Spread, quantile
from benchmarks.plans import Plan
from benchmarks.servers import Server
from benchmarks.streams import Answer, repeated_for, words

CLIENTS, ANSWER = (1, 4), 96
"""The numbers of live clients, each of which asks again as soon as it is answered, and the tokens of an answer."""
SECONDS = 12.0
"""Clients ask for this time; in a quick run for half of it."""
LINES, WHOLE = 2000, 256
"""The lines of the batch that runs beside live requests, which never ends there, and of the batch that is alone."""
PROMPT = 12
"""The tokens of the prompt of a live request and of a line."""
MOST_SECONDS = 600.0
OVER = ("completed", "cancelled", "failed", "expired")
POLL_SECONDS = 0.5


async def measure(plan: Plan, size: str) -> dict[str, Any]:
    """Gaps between tokens and times to the first token, alone and beside the batch, and their ratios round by round."""
    found: dict[str, dict[str, list[Load]]] = {"alone": {}, "beside": {}}
    whole: list[float] = []
    beside: dict[str, list[float]] = {}
    home = plan.scratch / "beside-batch"
    async with servers.ours(home, plan.checkpoint(size)) as server:
        await server.warm()
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{server.port}", timeout=60
        ) as client:
            for turn in plan.turns(MOST_SECONDS):
                whole.append(await _alone(client, server, plan, turn))
                plan.say(f"  round {turn + 1}, the batch alone: {whole[-1]:.0f} tokens/s")
                for count in CLIENTS:
                    key = f"{count} live"
                    for where in ("alone", "beside") if turn % 2 else ("beside", "alone"):
                        work = _live(server, count, turn, plan.seconds(SECONDS))
                        if where == "alone":
                            load = await loads.measured(work)
                        else:
                            async with _running(client, server, turn) as batch_id:
                                since = time.perf_counter()
                                before = await _written(client, batch_id)
                                load = await loads.measured(work)
                                took = time.perf_counter() - since
                                rate = (await _written(client, batch_id) - before) / took
                            beside.setdefault(key, []).append(rate)
                        found[where].setdefault(key, []).append(load)
                        plan.say(f"  round {turn + 1}, {key}, {where}: {_told(load)}")
    return {
        "size": size,
        "answer_tokens": ANSWER,
        "slots": servers.ROWS,
        "batch_alone_tokens_per_s": asdict(Spread.of(whole)),
        "batch_beside_tokens_per_s": {k: asdict(Spread.of(v)) for k, v in beside.items()},
        **{
            where: {key: loads.cell(rounds) for key, rounds in of.items()}
            for where, of in found.items()
        },
        "ratios": {key: _ratios(found["beside"][key], found["alone"][key]) for key in beside},
    }


def _ratios(beside: list[Load], alone: list[Load]) -> dict[str, Any]:
    """The quantiles beside the batch over those alone, round by round."""
    return loads.ratios(
        {
            f"{what}, {share}": (
                [quantile(_values(load, what), at) for load in beside],
                [quantile(_values(load, what), at) for load in alone],
            )
            for what in ("gap", "first token")
            for share, at in SHARES.items()
        }
    )


def _values(load: Load, what: str) -> list[float]:
    return load.gaps if what == "gap" else load.first_token


def _told(load: Load) -> str:
    return ", ".join(
        f"{what} {' and '.join(f'{quantile(_values(load, what), at) * 1e3:.1f}' for at in SHARES.values())} ms"
        for what in ("gap", "first token")
    )


async def _live(server: Server, count: int, turn: int, seconds: float) -> list[Answer]:
    return await repeated_for(
        lambda n: server.request(words(PROMPT, (turn, count, n)), ANSWER), count, seconds
    )


async def _alone(client: httpx2.AsyncClient, server: Server, plan: Plan, turn: int) -> float:
    """Tokens per second of a batch that is alone, from its first line to its last."""
    since = time.perf_counter()
    batch = await _begun(client, server, WHOLE, plan.tokens, turn)
    while batch["status"] not in OVER:
        await asyncio.sleep(POLL_SECONDS / 5)
        batch = await _batch(client, batch["id"])
    assert batch["status"] == "completed", batch
    tokens: int = batch["usage"]["output_tokens"]
    return tokens / (time.perf_counter() - since)


@asynccontextmanager
async def _running(client: httpx2.AsyncClient, server: Server, turn: int) -> AsyncIterator[str]:
    """The id of a batch that runs in all slots. It is cancelled afterwards."""
    batch = await _begun(client, server, LINES, ANSWER, -1 - turn)
    while not (await _batch(client, batch["id"]))["request_counts"]["completed"]:
        await asyncio.sleep(POLL_SECONDS)
    try:
        yield batch["id"]
    finally:
        await client.post(f"/v1/batches/{batch['id']}/cancel")
        while (await _batch(client, batch["id"]))["status"] not in OVER:
            await asyncio.sleep(POLL_SECONDS)
        await server.warm()


async def _begun(
    client: httpx2.AsyncClient, server: Server, lines: int, tokens: int, seed: int
) -> dict[str, Any]:
    body = {name: value for name, value in server.fields.items() if name != "stream_options"}
    content = b"".join(
        json.dumps(
            {
                "custom_id": str(n),
                "method": "POST",
                "url": servers.COMPLETIONS,
                "body": {"prompt": words(PROMPT, ("line", seed, n)), "max_tokens": tokens, **body},
            }
        ).encode()
        + b"\n"
        for n in range(lines)
    )
    files = {"file": ("lines.jsonl", content)}
    sent = await client.post("/v1/files", data={"purpose": "batch"}, files=files)
    named = {"input_file_id": sent.raise_for_status().json()["id"]}
    asked = {**named, "endpoint": servers.COMPLETIONS, "completion_window": "24h"}
    answer = await client.post("/v1/batches", json=asked)
    begun: dict[str, Any] = answer.raise_for_status().json()
    return begun


async def _batch(client: httpx2.AsyncClient, batch_id: str) -> dict[str, Any]:
    batch: dict[str, Any] = (await client.get(f"/v1/batches/{batch_id}")).raise_for_status().json()
    return batch


async def _written(client: httpx2.AsyncClient, batch_id: str) -> int:
    """The tokens of the lines that are answered."""
    tokens: int = (await _batch(client, batch_id))["usage"]["output_tokens"]
    return tokens
