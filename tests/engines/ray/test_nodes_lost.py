"""A node or the head of a Ray cluster is killed while replicas serve. Each test has a cluster of its own."""

from __future__ import annotations

import asyncio
import contextlib

import psutil
import pytest

from steerserve import messages as m
from steerserve.errors import Refusal
from tests import asking
from tests.engines.checkpoint.test_process import GREEDY, LONG, events, text_of
from tests.engines.ray.conftest import STORY, client_of, loaded, placed
from tests.engines.ray.nodes import LOOK, kill, started

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(180)]


async def test_a_node_takes_its_replica_and_another_node_takes_the_next_one() -> None:
    pytest.importorskip("ray")
    with started(4, 4) as nodes:
        async with client_of(nodes) as cluster:
            engine, replica = await placed(cluster, nodes)
            await loaded(engine)
            stream = engine.run(asking.generate(0, [m.Text("The boat")], LONG, m.Follow()))
            assert isinstance(await anext(stream), m.Started)
            home = replica.actor.ppid()
            kill(psutil.Process(home))
            # the actor notices the end of its node within seconds, and a short text may be whole before that
            with contextlib.suppress(Refusal):
                async for _ in stream:
                    pass
            await asyncio.wait_for(asyncio.shield(engine.ended), 60)
            await replica.gone()
            other, second = await placed(cluster, nodes)
            assert second.actor.ppid() != home
            await other.stop()
            await second.gone()


async def test_replicas_serve_on_without_a_head_until_their_nodes_end() -> None:
    """Nodes end `lost_seconds` after their head, and take their replicas with them."""
    pytest.importorskip("ray")
    with started(4, lost_seconds=10) as nodes:
        async with client_of(nodes) as cluster:
            engine, replica = await placed(cluster, nodes)
            await loaded(engine)
            kill(nodes.head())
            assert text_of(await events(engine, STORY, GREEDY))
            async with asyncio.timeout(60):
                while nodes.raylet_runs(1) or not engine.ended.done():
                    await asyncio.sleep(LOOK)
            await replica.gone()
