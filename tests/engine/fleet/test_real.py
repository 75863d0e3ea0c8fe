"""Fleets of real engines: kills, stops, edits and seeds, with requests in flight."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator

import psutil
import pytest

from steerserve.engine.fleet.fleet import Fleet
from steerserve.engine.wire import messages as m
from steerserve.errors import Refusal
from steerserve.rules.replicas import ReplicaState
from tests.engine.fleet.real import KEY, ONE_TOKEN, answer, serving, steer, words
from tests.engine.fleet.swarm import Swarm

PATIENCE = 60.0


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with serving(2) as made:
        yield made


async def settled(fleet: Fleet) -> None:
    """Wait until every replica serves."""
    async with asyncio.timeout(PATIENCE):
        while not all(view.state is ReplicaState.SERVING for view in fleet.replicas()):
            await asyncio.sleep(0.01)


async def changed(fleet: Fleet, name: str, state: ReplicaState) -> None:
    async with asyncio.timeout(PATIENCE):
        while next(v for v in fleet.replicas() if v.name == name).state is not state:
            await asyncio.sleep(0.01)


def pids(fleet: Fleet) -> list[int]:
    return [view.pid for view in fleet.replicas() if view.pid is not None]


async def test_a_killed_replica_comes_back_with_the_steering(fleet: Fleet) -> None:
    await steer(fleet, 5)
    expected = await answer(fleet)
    first, _ = pids(fleet)
    long = [
        asyncio.create_task(answer(fleet, m.Sampling(temperature=0.0, max_tokens=300)))
        for _ in range(4)
    ]
    await asyncio.sleep(0.2)
    os.kill(first, signal.SIGKILL)
    outcomes = await asyncio.gather(*long, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, Refusal)
            assert outcome.code == "ENGINE_UNAVAILABLE"
    assert any(isinstance(outcome, str) for outcome in outcomes)
    await changed(fleet, "r1", ReplicaState.SERVING)
    assert first not in pids(fleet)
    views = fleet.replicas()
    assert views[0].epoch == views[1].epoch
    assert views[0].kind == views[1].kind
    assert [await answer(fleet) for _ in range(4)] == [expected] * 4
    assert {view.requests for view in fleet.replicas()} == {0}


async def test_a_stopped_replica_is_left_behind_by_an_edit(fleet: Fleet) -> None:
    first, _ = pids(fleet)
    await steer(fleet, 1)
    old = await answer(fleet)
    os.kill(first, signal.SIGSTOP)
    async with asyncio.timeout(PATIENCE):
        await steer(fleet, 2)
    new = await answer(fleet)
    assert new != old
    await settled(fleet)
    assert first not in pids(fleet)
    assert [await answer(fleet) for _ in range(4)] == [new] * 4


async def test_equal_seeds_give_equal_texts_on_every_replica(fleet: Fleet) -> None:
    seeded = m.Sampling(temperature=1.0, max_tokens=12, seed=7)
    texts = await asyncio.gather(*(answer(fleet, seeded) for _ in range(6)))
    assert len(set(texts)) == 1


async def test_statistics_of_real_replicas_count_every_token(fleet: Fleet) -> None:
    await fleet.monitor(KEY)

    async def labelled(number: int) -> None:
        stream = fleet.generate([m.Text("fish")], 1, ONE_TOKEN, m.Follow(), label=str(number))
        async for _ in stream:
            pass

    await asyncio.gather(*(labelled(number) for number in range(6)))
    assert (await fleet.statistics()).tokens == 6
    await fleet.drain("r1")
    async with asyncio.timeout(PATIENCE):
        while len(fleet.replicas()) > 1:
            await asyncio.sleep(0.01)
    assert (await fleet.statistics()).tokens == 6
    await fleet.reset_statistics()
    assert (await fleet.statistics()).tokens == 0


async def test_no_process_stays_behind() -> None:
    async with serving(2) as fleet:
        seen = {psutil.Process(pid) for pid in pids(fleet)}
        os.kill(pids(fleet)[0], signal.SIGKILL)
        await fleet.resize(3)
        await fleet.replace("r2")
    deadline = time.monotonic() + PATIENCE
    while any(process.is_running() for process in seen) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert not any(process.is_running() for process in seen)


async def test_no_answer_is_written_under_another_epoch_than_its_own(fleet: Fleet) -> None:
    """The short form of the soak of this name."""
    swarm = Swarm(fleet, await words(fleet), random.Random(1))
    await swarm.run(edits=40, kills=2)
    assert swarm.answers > 80
