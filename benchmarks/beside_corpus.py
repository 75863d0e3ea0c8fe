"""One whole corpus read beside live streams of the demo model, with a `kill -9` of the service in the middle; then the
same corpus read without live streams, whose results must be the same."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2

from benchmarks import beside_jobs, loads, servers, service
from benchmarks.loads import SHARES, Load
from benchmarks.machine import Spread, quantile
from benchmarks.plans import Plan
from benchmarks.servers import Server
from benchmarks.streams import Answer, repeated
from steerserve import demo
from steerserve.control.sensing.corpus_results import PART

STREAMS = 8
TOKENS, QUICK_TOKENS = 1_000_000, 12_000
ALONE_SECONDS = 20.0
"""Clients ask alone for this time: before the corpus, in its middle, and after it. A quick run takes half of it."""
MOST_MB = 1024
"""The setting CORPORA_MAX_MB of the service."""
FEATURES = 64
"""The features of which everything is compared."""
POLL_SECONDS = 1.0
READ = re.compile(r"(\d+) of at most")

Body = dict[str, Any]


async def measure(plan: Plan) -> dict[str, Any]:
    tokens = QUICK_TOKENS if plan.is_quick else TOKENS
    file = plan.scratch / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": one}) + "\n" for one in beside_jobs.texts()))
    home = plan.scratch / "beside-corpus"
    body = {
        "source": "local",
        "local_path": str(file),
        "max_tokens": tokens,
        "name": "beside live streams",
    }
    reading = Reading(plan, home, body)
    async with reading.served(is_new=True) as (client, server):
        await reading.alone(server, 0)
        await reading.beside(client, server, 1, until=0.5)
        await reading.look(client)
        server.process.kill()
    async with reading.served(is_new=False) as (client, server):
        told = reading.told
        kept = (await _corpora(client))[0]["tokens"]
        await reading.alone(server, 2)
        await reading.beside(client, server, 3, until=1.0)
        await reading.alone(server, 4)
        plan.say("  the same corpus without live streams")
        since = time.perf_counter()
        await reading.whole(client, body | {"name": "alone"})
        alone_seconds = time.perf_counter() - since
        beside, alone = await _corpora(client)
        differing = await _differing(client, beside, alone)
    assert beside["tokens"] == alone["tokens"] == tokens, (beside, alone)
    return {
        "streams": STREAMS,
        "tokens": tokens,
        "seconds": reading.seconds,
        "minutes": asdict(Spread.of([reading.seconds / 60])),
        "tokens_per_s": tokens / reading.seconds,
        "seconds_without_live": alone_seconds,
        "lost_by_kill": told - kept,
        "contexts_of_a_part": PART,
        "counted": [beside["counted"], alone["counted"]],
        "features_that_fire": [one["saes"][0]["features"] for one in (beside, alone)],
        "features_compared": FEATURES,
        "features_that_differ": differing,
        "most_stored_bytes": reading.most_stored,
        "stored_bytes_at_the_end": beside["stored_bytes"],
        "limit_bytes": MOST_MB << 20,
        "alone": loads.cell(reading.loads_alone),
        "beside": loads.cell(reading.loads_beside),
        "ratios": ratios(reading.loads_beside, reading.loads_alone),
    }


def ratios(beside: list[Load], alone: list[Load]) -> dict[str, Any]:
    """The quantiles of the gaps beside each half of the corpus over the mean of those alone before and after it."""
    return loads.ratios(
        {
            share: (
                [quantile(load.gaps, at) for load in beside],
                [
                    (quantile(before.gaps, at) + quantile(after.gaps, at)) / 2
                    for before, after in pairwise(alone)
                ],
            )
            for share, at in SHARES.items()
        }
    )


class Reading:
    """A corpus, and the live streams beside it.

    Attributes:
        seconds: how long the corpus was read, over all its parts.
        told: the tokens of which the job said that they are read.
        most_stored: the most bytes that the corpus took in the database.
    """

    def __init__(self, plan: Plan, home: Path, body: Body) -> None:
        self._plan = plan
        self._home = home
        self._body = body
        self.loads_alone: list[Load] = []
        self.loads_beside: list[Load] = []
        self._job = ""
        self.seconds = 0.0
        self.told = 0
        self.most_stored = 0

    @asynccontextmanager
    async def served(self, *, is_new: bool) -> AsyncIterator[tuple[httpx2.AsyncClient, Server]]:
        """The service with the demo model and an SAE, started anew over the same database."""
        limits = {"MAX_CONCURRENT_REQUESTS": str(beside_jobs.SLOTS), "CORPORA_MAX_MB": str(MOST_MB)}
        async with service.running(self._home, **limits) as client:
            if is_new:
                await service.load(client, demo.MODEL_DIR, demo.MODEL_NAME)
                await beside_jobs.attach(client)
            else:
                await _taken_up(client)
            server = servers.served(client, demo.MODEL_NAME)
            await server.warm()
            yield client, server

    async def alone(self, server: Server, turn: int, whole: float = ALONE_SECONDS) -> None:
        seconds = self._plan.seconds(whole)
        self.loads_alone.append(await self._live(server, turn, lambda: asyncio.sleep(seconds)))

    async def beside(
        self, client: httpx2.AsyncClient, server: Server, turn: int, *, until: float
    ) -> None:
        """Read the corpus up to this share of its tokens, or to its end, beside live streams."""

        async def read() -> None:
            since = time.perf_counter()
            await self.whole(client, self._body, until=until)
            self.seconds += time.perf_counter() - since

        self.loads_beside.append(await self._live(server, turn, read))

    async def whole(self, client: httpx2.AsyncClient, body: Body, *, until: float = 1.0) -> None:
        """Begin a corpus or carry it on, and wait until so much of it is read."""
        answer = await client.post("/api/corpora", json=body)
        self._job = answer.raise_for_status().json()["data"]["job"]["id"]
        job = await self.look(client)
        while job["finished_at"] is None and (until == 1.0 or job["progress"] < until):
            await asyncio.sleep(POLL_SECONDS)
            job = await self.look(client)
        assert until < 1.0 or job["state"] == "done", job

    async def look(self, client: httpx2.AsyncClient) -> Body:
        """The job that reads the corpus."""
        found = (await client.get(f"/api/jobs/{self._job}")).raise_for_status()
        job: Body = found.json()["data"]["job"]
        if read := READ.match(job["message"]):
            self.told = int(read[1])
        for corpus in await _corpora(client):
            self.most_stored = max(self.most_stored, corpus["stored_bytes"])
        return job

    async def _live(self, server: Server, turn: int, work: Callable[[], Awaitable[None]]) -> Load:
        """The load of live streams until the work is done."""
        leaving = asyncio.Event()
        asked: list[Answer] = []

        async def worked() -> None:
            try:
                await work()
            finally:
                leaving.set()

        async def streamed() -> None:
            asked.extend(
                await repeated(lambda n: beside_jobs.live(server, (turn, n)), STREAMS, leaving)
            )

        async def both() -> list[Answer]:
            async with asyncio.TaskGroup() as group:
                group.create_task(worked())
                group.create_task(streamed())
            return asked

        load = await loads.measured(both())
        gaps = " and ".join(f"{quantile(load.gaps, at) * 1e3:.1f}" for at in SHARES.values())
        self._plan.say(f"  {STREAMS} live streams: gap {gaps} ms; {self.told} tokens are read")
        return load


async def _taken_up(client: httpx2.AsyncClient) -> None:
    """Load the model and attach the SAE of the service before."""
    models = (await client.get("/api/models")).raise_for_status().json()["data"]["models"]
    (model,) = (one["id"] for one in models if one["name"] == demo.MODEL_NAME)
    (await client.post(f"/api/models/{model}/load?wait=true")).raise_for_status()
    saes = (await client.get("/api/saes")).raise_for_status().json()["data"]["saes"]
    layer = demo.saes()[1].layer
    for sae in saes:
        attached = await client.post(f"/api/saes/{sae['id']}/attach", json={"layer": layer})
        attached.raise_for_status()


async def _corpora(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    listed = (await client.get("/api/corpora")).raise_for_status().json()["data"]
    found: list[dict[str, Any]] = listed["corpora"]
    return found


async def _differing(
    client: httpx2.AsyncClient, beside: dict[str, Any], alone: dict[str, Any]
) -> int:
    """How many of the first features have other statistics or other examples in the two corpora."""
    sae = beside["saes"][0]["sae_id"]
    differing = 0
    for feature in range(FEATURES):
        answer = await client.get(f"/api/saes/{sae}/features/{feature}")
        corpora = answer.raise_for_status().json()["data"]["corpora"]
        found = {
            one["name"]: {k: v for k, v in one.items() if k not in ("corpus_id", "name")}
            for one in corpora
        }
        differing += found[beside["name"]] != found[alone["name"]]
    return differing
