"""The whole service on a Ray cluster, through HTTP, while a node, the head, or the service itself is killed or stands
still. Each test has a cluster of its own."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.engines.ray.crowd import REQUESTS, STATES, Known, asked, attach, crowding, learned, steer
from tests.engines.ray.nodes import LOOK, Nodes, kill, replica_of, started
from tests.nouns.replicas.test_replicated_model import BASE
from tests.processes import Process, serving

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
COUNT = 2
PATIENCE = 120.0
STILL_SECONDS = 18.0
"""Longer than the 15 seconds for which a host waits for a beat of its service."""


@contextmanager
def service(home: Path, nodes: Nodes) -> Iterator[Process]:
    fields: dict[str, Any] = {
        "engine_backend": "ray",
        "ray_address": nodes.address,
        "engine_replicas": COUNT,
        "engine_cards": 0,
        "torch_threads": 1,
    }
    with serving(home, **fields) as served:
        yield served


def prepared(served: Process) -> Known:
    """Load the demo model with an SAE, and learn what it says."""
    served.load_demo()
    attach(served.http)
    return learned(served.http)


def rows(served: Process) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = served.http.get(BASE).json()["data"]["replicas"]
    return found


def until(nodes: Nodes, what: str, condition: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, f"still not: {what}"
        nodes.reap()
        time.sleep(LOOK)


def is_whole(served: Process) -> bool:
    return [row["state"] for row in rows(served)] == ["serving"] * COUNT


def until_none(nodes: Nodes) -> None:
    """Wait until no process of a replica is left."""
    until(nodes, "no replica is left", lambda: not nodes.replica_processes())


def test_a_node_dies_and_its_replica_goes_to_another_node(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with started(2, 2) as nodes, service(tmp_path, nodes) as served:
        known = prepared(served)
        steer(served.http, "first")
        replicas = [replica_of(process) for process in nodes.replica_processes()]
        homes = {replica.actor.ppid(): replica for replica in replicas}
        assert len(homes) == COUNT
        with crowding(served.url, known, "first") as crowd:
            crowd.flow()
            home, victim = next(iter(homes.items()))
            pids = {row["pid"] for row in rows(served)}
            kill(psutil.Process(home))
            until(nodes, "the replica is lost", lambda: not is_whole(served))
            crowd.steer(served.http, "second")
            crowd.flow()
            until(nodes, "another node has its replica", lambda: is_whole(served))
            assert len({row["pid"] for row in rows(served)} & pids) == 1
            crowd.flow(2)
        print(dict(crowd.outcomes()))
        asyncio.run(victim.gone())
        assert home not in {process.parent().ppid() for process in nodes.replica_processes()}
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == 0
        until_none(nodes)


def test_the_head_dies_and_every_replica_serves_on(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with started(2, 2) as nodes, service(tmp_path, nodes) as served:
        known = prepared(served)
        steer(served.http, "first")
        with crowding(served.url, known, "first") as crowd:
            crowd.flow()
            kill(nodes.head())
            for state in ("second", "third", "first"):
                crowd.steer(served.http, state)
                crowd.flow(2)
        assert set(crowd.outcomes()) == {"stream: answered", "whole: answered"}
        assert is_whole(served)
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == 0
        until_none(nodes)


def test_the_service_is_killed_and_the_next_one_serves(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with started(2, 2) as nodes:
        with service(tmp_path, nodes) as served:
            known = prepared(served)
            steer(served.http, "second")
            children = served.family()
            with ThreadPoolExecutor(len(REQUESTS) * 2) as pool:
                asking = [
                    pool.submit(ask_until_lost, served, name, is_streamed=is_streamed)
                    for name in REQUESTS
                    for is_streamed in (False, True)
                ]
                until(
                    nodes,
                    "every replica has requests",
                    lambda: all(row["requests"] for row in rows(served)),
                )
                served.process.kill()
                texts = [text for one in asking for text in one.result(PATIENCE)]
            served.wait()
            assert all(
                any(known.texts[name, "second"].startswith(text) for name in REQUESTS)
                for text in texts
            )
            until_none(nodes)
            assert not psutil.wait_procs(children, timeout=30)[1]
        with service(tmp_path, nodes) as again:
            assert again.http.get("/api/models/1").json()["data"]["status"] != "loaded"
            assert again.http.post("/api/models/1/load?wait=true").status_code == 200
            until(nodes, "all replicas serve", lambda: is_whole(again))
            attach(again.http)
            assert learned(again.http) == known
            again.process.send_signal(signal.SIGTERM)
            assert again.wait() == 0
        until_none(nodes)


def ask_until_lost(served: Process, name: str, *, is_streamed: bool) -> list[str]:
    """The texts of a client until its service is gone. The last one may be cut off."""
    texts = []
    with httpx2.Client(base_url=served.url, timeout=PATIENCE) as http:
        while True:
            one = asked(http, name, is_streamed=is_streamed, states=("second",))
            texts.append(one.text)
            if one.fault is not None:
                return texts
            assert one.code is None, one


def test_a_service_that_stood_still_has_its_replicas_and_its_steering_again(tmp_path: Path) -> None:
    """Its replicas end by themselves meanwhile, because they take it for lost."""
    pytest.importorskip("ray")
    with started(2, 2) as nodes, service(tmp_path, nodes) as served:
        known = prepared(served)
        steer(served.http, "second")
        replicas = [replica_of(process) for process in nodes.replica_processes()]
        before = {row["pid"] for row in rows(served)}
        with crowding(served.url, known, "second") as crowd:
            crowd.flow()
            served.process.send_signal(signal.SIGSTOP)
            since = time.monotonic()
            for replica in replicas:
                asyncio.run(replica.gone())
            time.sleep(max(0.0, since + STILL_SECONDS - time.monotonic()))
            served.process.send_signal(signal.SIGCONT)
            until(nodes, "all replicas serve again", lambda: is_whole(served))
            crowd.flow(2)
        print(dict(crowd.outcomes()))
        assert before.isdisjoint(row["pid"] for row in rows(served))
        values = served.http.get("/api/saes/steering").json()["data"]["values"]
        assert {index: x for index, x in values.items() if x} == {
            index: x for index, x in STATES["second"].items() if x
        }
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == 0
        until_none(nodes)
