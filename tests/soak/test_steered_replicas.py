"""Thousands of answers over HTTP across hundreds of changes of the steering, with replicas that are killed: three whose
engines this machine starts, and two on the nodes of a Ray cluster. SOAK_SECONDS is the least length; `SOAK_SECONDS=3600
make soak` runs for an hour."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from steerserve import demo
from tests.engines.ray.nodes import Nodes, replica_of, started
from tests.local_cluster import LocalCluster
from tests.nouns.replicas.test_replicated_model import BASE, Replicated
from tests.service import add_sae, load_demo, running
from tests.soak.steered import Asker, Operator, Records, judged, words_of

SECONDS = float(os.environ.get("SOAK_SECONDS", "180"))
ANSWERS, CHANGES = 2000, 200
"""A run also lasts until it has at least so many."""
REPLICAS, RAY_REPLICAS, CLIENTS = 3, 2, 8
SEED = 19
PATIENCE = 120.0
KILL_SECONDS = 8.0
"""Between two kills, at most."""
ACTOR_SHARE = 0.25
"""The share of the kills that end the actor of a replica, and not only its engine."""

Kill = Callable[[list[int], random.Random], str]
"""Kills one of the engines with these process ids, or what it runs in. Returns what was killed."""


def kill_engine(pids: list[int], draw: random.Random) -> str:
    os.kill(draw.choice(pids), signal.SIGKILL)
    return "engines killed"


def killing_on(nodes: Nodes) -> Kill:
    def kill(pids: list[int], draw: random.Random) -> str:
        if draw.random() >= ACTOR_SHARE:
            return kill_engine(pids, draw)
        replica_of(draw.choice(nodes.replica_processes())).actor.kill()
        return "actors killed"

    return kill


async def kill_replicas(
    http: httpx2.AsyncClient,
    records: Records,
    draw: random.Random,
    kill: Kill,
    is_over: asyncio.Event,
) -> None:
    """Kill random replicas while another one serves."""
    while not is_over.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(is_over.wait(), draw.uniform(0.2, 1.0) * KILL_SECONDS)
        rows = (await http.get(BASE)).json()["data"]["replicas"]
        pids = [row["pid"] for row in rows if row["state"] == "serving" and row["pid"]]
        if len(pids) > 1 and not is_over.is_set():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                records.outcomes[kill(pids, draw)] += 1


async def stress(url: str, records: Records, kill: Kill) -> tuple[dict[str, int], int]:
    """Run clients, an operator and kills beside each other. Returns the words, and the number of changes."""
    draw = random.Random(SEED)
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=120) as http:
        operator, is_over = Operator(http, records, draw), asyncio.Event()
        words = await words_of(http, operator)
        askers = [
            Asker(http, operator, records, random.Random(f"{SEED} {n}")) for n in range(CLIENTS)
        ]
        works = [
            asyncio.create_task(operator.run(is_over)),
            asyncio.create_task(kill_replicas(http, records, draw, kill, is_over)),
            *(asyncio.create_task(asker.run(is_over)) for asker in askers),
        ]
        until = time.monotonic() + SECONDS
        try:
            while not any(work.done() for work in works):
                is_long = time.monotonic() >= until and operator.made >= CHANGES
                if (is_long and len(records.answers) >= ANSWERS) or records.wrong:
                    break
                await asyncio.sleep(0.1)
        finally:
            is_over.set()
            await asyncio.gather(*works)
        return words, operator.made


def check(folder: Path, kill: Kill, replicas: int, **surroundings: Any) -> None:
    """Every answer of a service with so many replicas has the steering of one change that was current."""
    records = Records()
    settings = {"engine_backend": "ray", "engine_replicas": replicas, "torch_threads": 1}
    with running(folder, log_level="ERROR", **settings, **surroundings) as live:
        load_demo(live)
        sae = demo.saes()[0]
        live.data("POST", f"/api/saes/{add_sae(live, sae)}/attach", {"layer": sae.layer})
        since = time.monotonic()
        words, changes = asyncio.run(stress(live.url, records, kill))
        seconds = time.monotonic() - since
        wrong = judged(records, words)
        print(
            f"seed {SEED}, {seconds:.0f} s: {len(records.answers)} answers, {changes} changes, {dict(records.outcomes)}"
        )
        assert wrong == [], (len(wrong), wrong[:5])
        Replicated(live, PATIENCE).whole(replicas)
    assert records.outcomes["engines killed"]


@pytest.mark.soak
@pytest.mark.timeout(3 * SECONDS + 300)
def test_every_answer_has_the_steering_of_one_change_that_was_current(tmp_path: Path) -> None:
    cluster = LocalCluster()
    check(tmp_path, kill_engine, REPLICAS, cluster=cluster)
    assert not cluster.alive
    assert not [engine for engine in cluster.engines if psutil.pid_exists(engine.pid or 0)]


@pytest.mark.soak
@pytest.mark.timeout(5 * SECONDS + 600)
def test_every_answer_has_that_steering_on_a_ray_cluster_too(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with started(4, 4) as nodes:
        kill = killing_on(nodes)
        check(tmp_path, kill, RAY_REPLICAS, ray_address=nodes.address, engine_cards=0)
        assert not nodes.replica_processes()
