"""Fleets of real engines: kills, stops, edits and seeds, with requests in flight."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

import psutil
import pytest
import pytest_asyncio
from msgspec import structs
from tokenizers import Tokenizer

from steerserve import demo
from steerserve import messages as m
from steerserve.engines.checkpoint.client import Launcher
from steerserve.engines.fleet.fleet import Fleet
from steerserve.errors import Refusal
from steerserve.messages.engine import Engine
from steerserve.rules.residency.replicas import ReplicaState, ReplicaView
from tests import asking
from tests.engines.fleet.real import (
    FIELDS,
    KEY,
    ONE_TOKEN,
    PLACED,
    PROMPT,
    answer,
    serving,
    steer,
    words,
)
from tests.engines.fleet.swarm import Swarm
from tests.refusals import refused
from tests.waiting import LOOK, until

PATIENCE = 60.0
EIGHT_TOKENS = m.Sampling(temperature=0.0, max_tokens=8)
MEMBERS = [m.ClusterMember(feature, 0.0) for feature in range(64)]
CLUSTER = m.ArmedCluster("c", "Cluster", KEY, MEMBERS, 1, 100, 0, 1)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with serving(2) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def steady() -> AsyncIterator[Fleet]:
    """A fleet for tests that only ask."""
    async with serving(2) as made:
        yield made


async def settled(fleet: Fleet) -> None:
    """Wait until every replica serves."""
    await until(lambda: all(view.state is ReplicaState.SERVING for view in fleet.replicas()), LOOK)


async def changed(fleet: Fleet, name: str, state: ReplicaState) -> None:
    await until(lambda: next(v for v in fleet.replicas() if v.name == name).state is state, LOOK)


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
    await until(lambda: sum(view.requests for view in fleet.replicas()) >= len(long), LOOK)
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


@pytest.mark.asyncio(loop_scope="module")
async def test_equal_seeds_give_equal_texts_on_every_replica(steady: Fleet) -> None:
    seeded = m.Sampling(temperature=1.0, max_tokens=12, seed=7)
    texts = await asyncio.gather(*(answer(steady, seeded) for _ in range(6)))
    assert len(set(texts)) == 1


async def test_statistics_of_real_replicas_count_every_token(fleet: Fleet) -> None:
    await fleet.change(m.setting(monitored=m.Monitored(KEY)))

    async def labelled(number: int) -> None:
        stream = fleet.run(
            asking.generate(0, [m.Text("fish")], ONE_TOKEN, m.Follow(), label=str(number))
        )
        async for _ in stream:
            pass

    await asyncio.gather(*(labelled(number) for number in range(6)))
    assert (await fleet.ask(m.ReadStatistics())).tokens == 6
    await fleet.drain("r1")
    await until(lambda: len(fleet.replicas()) == 1, LOOK)
    assert (await fleet.ask(m.ReadStatistics())).tokens == 6
    await fleet.ask(m.ResetStatistics())
    assert (await fleet.ask(m.ReadStatistics())).tokens == 0


def views(engine: Engine) -> tuple[ReplicaView, ...]:
    return engine.fleet.replicas() if engine.fleet else ()


async def said(engine: Engine, text: str) -> tuple[str, str | None]:
    """What an engine writes after a text while the cluster is sensed, and the name of the replica that wrote it."""
    stream = engine.run(
        asking.generate(0, [m.Text(text)], EIGHT_TOKENS, m.Follow(), label="sensed")
    )
    made, name = "", None
    async for event in stream:
        name = next((view.name for view in views(engine) if view.requests), None)
        made += event.text if isinstance(event, m.Piece) else ""
    return made, name


async def turns(
    engine: Engine, between: Callable[[str | None], Awaitable[object]]
) -> list[list[tuple[int, int]]]:
    """The positions of the events in each of three turns of a conversation. `between` is called after each turn with
    the name of the replica that wrote the answer."""
    told: list[m.SensedSpans] = []
    engine.on_spans = told.append
    await engine.change(m.setting(cluster=CLUSTER))
    text = PROMPT
    for _ in range(3):
        made, name = await said(engine, text)
        text += f"{made}. Then the sea"
        await between(name)
    return [[(span.start, span.end) for span in one.spans] for one in told]


async def test_turns_on_different_replicas_are_sensed_as_turns_on_one_engine(fleet: Fleet) -> None:
    launcher = Launcher("CRITICAL", "json")
    one = await launcher.launch()
    try:
        await one.load(lambda _: None, **FIELDS)
        await one.change(lambda state: state.attached(PLACED))
        expected = await turns(one, lambda _: asyncio.sleep(0))
    finally:
        await one.stop()
    writers: list[str | None] = []

    async def leave(name: str | None) -> None:
        """The replica of the first turn is killed, the replica of the second one is taken away."""
        writers.append(name)
        await settled(fleet)
        view = next(view for view in fleet.replicas() if view.name == name)
        if len(writers) == 1:
            assert view.pid is not None
            os.kill(view.pid, signal.SIGKILL)
        elif len(writers) == 2:
            await changed(fleet, str(writers[0]), ReplicaState.SERVING)
            await fleet.drain(view.name)

    assert await turns(fleet, leave) == expected
    assert writers[0] != writers[1] != writers[2]
    assert all(before[-1][1] < after[0][0] for before, after in pairwise(expected))


async def test_no_process_stays_behind() -> None:
    async with serving(2) as fleet:
        seen = {psutil.Process(pid) for pid in pids(fleet)}
        os.kill(pids(fleet)[0], signal.SIGKILL)
        await fleet.resize(3)
        await fleet.replace("r2")
    await until(lambda: not any(process.is_running() for process in seen), LOOK)


async def test_no_answer_is_written_under_another_epoch_than_its_own(fleet: Fleet) -> None:
    """The short form of the soak of this name."""
    swarm = Swarm(fleet, await words(fleet), random.Random(1))
    await swarm.run(edits=20, kills=1)
    assert swarm.answers > 40


@pytest.mark.asyncio(loop_scope="module")
async def test_prompts_as_token_ids_are_those_of_their_text(steady: Fleet) -> None:
    tokenizer = Tokenizer.from_file(str(demo.MODEL_DIR / "tokenizer.json"))
    ids = list(tokenizer.encode(PROMPT).ids)
    prompts: list[list[m.Prompt]] = [[m.Text(PROMPT)], [m.Tokens(ids, place="prompt")]]
    scored = [
        [event async for event in steady.run(asking.score(0, prompt, top=1, echo=m.Echo(1, 100)))]
        for prompt in prompts
    ]
    (text, given) = [events[1] for events in scored]
    assert isinstance(text, m.Scored)
    assert isinstance(given, m.Scored)
    assert [token.token for token in given.prompt] == ids
    assert [(one.token, one.logprob) for one in given.prompt] == [
        (one.token, one.logprob) for one in text.prompt
    ]
    assert given.prompt_text == tokenizer.decode(ids, skip_special_tokens=False)
    written = [
        [
            e.text
            async for e in steady.run(asking.generate(0, p, EIGHT_TOKENS, m.Follow()))
            if isinstance(e, m.Piece)
        ]
        for p in prompts
    ]
    assert "".join(written[0]) == "".join(written[1])
    outside: list[m.Prompt] = [m.Tokens([5, 10**6], place="prompt[0]")]
    refusal = await refused(
        anext(steady.run(asking.generate(0, outside, EIGHT_TOKENS, m.Follow())))
    )
    assert refusal.param == "prompt[0][1]"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_lens_and_an_attribution_are_answered_by_one_replica(steady: Fleet) -> None:
    await steer(steady, 5)
    lens = m.Lens(layers=None, top=2, max_distributions=1000, max_entries=1000)
    attribution = m.Attribute(
        position=-1, target=5, against=None, key=KEY, layer=PLACED.layer, top=3
    )
    for goal, kind in ((lens, m.LensRead), (attribution, m.Attributed)):
        request = asking.read(0, [m.Text(PROMPT)], goal)
        answers = await asyncio.gather(*(_events(steady, request) for _ in range(4)))
        assert [[type(event) for event in events] for events in answers] == [[m.Started, kind]] * 4
        # replicas give the same numbers; the ids of the requests are their own
        assert len({repr(structs.replace(events[1], id=0)) for events in answers}) == 1


async def _events(fleet: Fleet, request: m.Request) -> list[m.Started | m.Outcome]:
    return [event async for event in fleet.run(request)]
