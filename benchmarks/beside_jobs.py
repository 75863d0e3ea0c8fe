"""Live streams of the demo model beside jobs that read texts, and alone, in turns."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx2

from benchmarks import loads, servers
from benchmarks.loads import SHARES, Load
from benchmarks.machine import Spread, quantile
from benchmarks.plans import Plan
from benchmarks.servers import Server
from benchmarks.streams import Answer, Request, repeated_for, words
from steerserve import demo

STREAMS = {"a corpus": 8, "a contrast": 32, "a training": 32, "effects": 32}
"""The live streams beside each job. As soon as one is answered, the next is asked."""
SLOTS = 32
SECONDS = 12.0
"""Clients ask for this time; in a quick run for half of it."""
ANSWER, PROMPT = 96, 12
"""The most tokens of an answer, and the bytes of its prompt."""
CORPUS_TOKENS, CORPUS_LINES, WORDS_OF_A_LINE = 1_000_000, 12_000, 100
TEXTS = {"a contrast": 2000, "a training": 500}
"""The texts of each of the two groups, as many as the service takes."""
WORDS_OF_A_TEXT = 60
WORDS = "the boat sailed over waves and a whale swam near king sat on his throne she saw fish jump".split()
FEATURE = 90
MOST_SECONDS = 600.0
POLL_SECONDS = 0.1

Body = dict[str, Any]


async def measure(plan: Plan) -> dict[str, Any]:
    """Gaps between the tokens of live streams alone and beside each job, and their ratios round by round."""
    found: dict[str, dict[str, list[Load]]] = {"alone": {}, "beside": {}}
    shares: dict[str, list[float]] = {}
    file = plan.scratch / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": one}) + "\n" for one in texts()))
    home = plan.scratch / "beside-jobs"
    limits = {"MAX_CONCURRENT_REQUESTS": str(SLOTS)}
    async with servers.ours(home, demo.MODEL_DIR, **limits) as server:
        await server.warm()
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{server.port}", timeout=60
        ) as client:
            await attach(client)
            for turn in plan.turns(MOST_SECONDS):
                for name, streams in STREAMS.items():
                    for where in ("alone", "beside") if turn % 2 else ("beside", "alone"):
                        work = _live(server, streams, turn, plan.seconds(SECONDS))
                        if where == "alone":
                            load = await loads.measured(work)
                        else:
                            async with _running(client, *_job(name, turn, file)) as job:
                                before = await _done(client, job)
                                load = await loads.measured(work)
                                share = await _done(client, job) - before
                            shares.setdefault(name, []).append(share)
                        found[where].setdefault(name, []).append(load)
                        gaps = [quantile(load.gaps, at) * 1e3 for at in SHARES.values()]
                        told = " and ".join(f"{gap:.1f}" for gap in gaps)
                        plan.say(f"  round {turn + 1}, {name}, {where}: gap {told} ms")
    return {
        "answer_tokens": ANSWER,
        "slots": SLOTS,
        "seconds": plan.seconds(SECONDS),
        "corpus_tokens": CORPUS_TOKENS,
        "texts": TEXTS,
        "streams": STREAMS,
        "share_of_the_job": {name: asdict(Spread.of(done)) for name, done in shares.items()},
        **{
            where: {name: loads.cell(rounds) for name, rounds in of.items()}
            for where, of in found.items()
        },
        "ratios": {name: _ratios(found["beside"][name], found["alone"][name]) for name in STREAMS},
    }


def _ratios(beside: list[Load], alone: list[Load]) -> dict[str, Any]:
    """The quantiles of the gaps beside the job over those alone, round by round."""
    return loads.ratios(
        {
            share: (
                [quantile(load.gaps, at) for load in beside],
                [quantile(load.gaps, at) for load in alone],
            )
            for share, at in SHARES.items()
        }
    )


async def _live(server: Server, count: int, turn: int, seconds: float) -> list[Answer]:
    return await repeated_for(lambda n: live(server, (turn, count, n)), count, seconds)


def live(server: Server, seed: object) -> Request:
    """The request of a live client."""
    return server.request(words(PROMPT, seed), ANSWER)


# ---------------------------------------------------------------- jobs


def _job(name: str, turn: int, file: Path) -> tuple[str, Body]:
    """The path and the body of a job that takes longer than the clients ask."""
    if name == "a corpus":
        source = {"source": "local", "local_path": str(file), "max_tokens": CORPUS_TOKENS}
        return "/api/corpora", {"name": f"corpus {turn}", **source}
    if name == "effects":
        ladder = {"strengths": [5.0 * (n + 1) for n in range(16)], "random_directions": 16}
        return "/api/effects", {"feature": {"index": FEATURE}, "tokens": 200, **ladder}
    draw = random.Random(f"{name} {turn}")
    groups: Body = {
        group: [_text(draw, WORDS_OF_A_TEXT) for _ in range(TEXTS[name])]
        for group in ("positives", "negatives")
    }
    if name == "a contrast":
        return "/api/features/contrast", groups
    return "/api/vectors/train", {"name": f"vector {turn}", "read": "mean", **groups}


def texts() -> Iterator[str]:
    """The texts of the corpus."""
    draw = random.Random("corpus")
    return (_text(draw, WORDS_OF_A_LINE) for _ in range(CORPUS_LINES))


def _text(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


async def attach(client: httpx2.AsyncClient) -> None:
    """Attach the SAE whose features are read."""
    sae = demo.saes()[1]
    answer = await client.post("/api/saes/download", json={"local_path": str(sae.path)})
    sae_id = answer.raise_for_status().json()["data"]["sae_id"]
    attached = await client.post(f"/api/saes/{sae_id}/attach", json={"layer": sae.layer})
    attached.raise_for_status()


@asynccontextmanager
async def _running(client: httpx2.AsyncClient, path: str, body: Body) -> AsyncIterator[str]:
    """The id of a job that has begun to read. It is cancelled afterwards, and its corpus is deleted."""
    answer = await client.post(path, json=body)
    job: str = answer.raise_for_status().json()["data"]["job"]["id"]
    while not await _done(client, job):
        await asyncio.sleep(POLL_SECONDS)
    try:
        yield job
    finally:
        (await client.delete(f"/api/jobs/{job}")).raise_for_status()
        listed = (await client.get("/api/corpora")).raise_for_status().json()["data"]["corpora"]
        for corpus in listed:
            (await client.delete(f"/api/corpora/{corpus['id']}")).raise_for_status()


async def _done(client: httpx2.AsyncClient, job: str) -> float:
    """The share of a job that is done. The job has not failed and goes on beside the live streams to their end."""
    answer = await client.get(f"/api/jobs/{job}")
    told = answer.raise_for_status().json()["data"]["job"]
    assert told["finished_at"] is None, told
    share: float = told["progress"]
    return share
