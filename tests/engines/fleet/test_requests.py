"""Which replica gets a request, and what becomes of requests whose replica ends."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.engines.fleet.affinity import BLOCK
from steerserve.errors import Refusal
from steerserve.rules.residency.replicas import RUNS, ReplicaState
from tests.engines.fleet.conftest import Made
from tests.engines.fleet.scripted import NO_ROOM
from tests.waiting import soon, until


async def test_requests_go_to_the_replica_with_the_fewest_rows(scene: Made) -> None:
    one = await scene(3)
    requests = [one.ask(f"text {number}", n=n) for number, n in enumerate((4, 1, 1, 1))]
    streams = [await one.stream(number) for number in (0, 1, 2)]
    await until(lambda: sum(view.requests for view in one.fleet.replicas()) == 4)
    assert [view.requests for view in one.fleet.replicas()] == [1, 2, 1]
    for stream in [*streams, await one.stream(1)]:
        stream.complete()
    for request in requests:
        await request.text()
    assert [view.requests for view in one.fleet.replicas()] == [0, 0, 0]


async def test_a_conversation_stays_on_the_replica_that_holds_its_beginning(scene: Made) -> None:
    one = await scene(2)
    beginning = "a" * BLOCK * 2
    await one.served_by(0, text=beginning)
    await one.served_by(1, text="b" * BLOCK * 2)
    for more in ("one", "two", "three"):
        await one.served_by(0, text=beginning + more)


async def test_a_request_without_a_token_runs_again_and_its_client_sees_one_beginning(
    scene: Made,
) -> None:
    one = await scene(2)
    request = one.ask()
    (await one.stream(0)).start()
    await until(lambda: request.events)
    one.engine(0).die()
    (await one.stream(1)).complete("from the other")
    assert await request.text() == "from the other"
    assert [type(event) for event in request.events] == [m.Started, m.Piece]


async def test_a_request_with_a_token_ends_with_a_typed_error(scene: Made) -> None:
    one = await scene(2)
    request = one.ask()
    stream = await one.stream(0)
    stream.start()
    stream.say("a beginning")
    await until(lambda: len(request.events) == 2)
    one.engine(0).die("the engine process was ended by signal 9")
    with pytest.raises(Refusal, match=r"wrote this answer ended.*signal 9") as refused:
        await request.text()
    assert refused.value.code == "ENGINE_UNAVAILABLE"
    await one.serving("r1", "r2")


async def test_a_request_that_ends_every_engine_does_not_end_all_of_them(scene: Made) -> None:
    one = await scene(RUNS + 1)
    request = one.ask()
    for number in range(RUNS):
        await one.stream(number)
        one.engine(number).die()
    with pytest.raises(Refusal, match="each replica ended that ran this request"):
        await request.text()
    assert not one.engine(RUNS).ended.done()


async def test_a_refusal_of_the_engine_is_passed_on(scene: Made) -> None:
    one = await scene(2)
    request = one.ask()
    (await one.stream(0)).refuse(Refusal("NON_FINITE_LOGITS", "NaN"))
    with pytest.raises(Refusal, match="NaN"):
        await request.text()


async def test_a_request_waits_while_no_replica_serves_and_then_runs(scene: Made) -> None:
    one = await scene(1)
    one.hold("load")
    one.engine(0).die()
    request = one.ask()
    gate = await one.held()
    assert one.states() == {"r1": ReplicaState.STARTING}
    gate.open.set()
    (await one.stream(1)).complete("later")
    assert await request.text() == "later"


async def test_a_client_that_leaves_cancels_its_request(scene: Made) -> None:
    one = await scene(1)
    request = one.ask()
    stream = await one.stream(0)
    request.task.cancel()
    await stream.over.wait()
    assert stream.was_cancelled
    await until(lambda: one.fleet.replicas()[0].requests == 0)


@pytest.mark.parametrize("turns", range(3))
async def test_a_client_that_leaves_as_its_engine_ends_leaves_no_error_unread(
    scene: Made, turns: int
) -> None:
    one = await scene(1)
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    request = one.ask()
    await one.stream(0)
    one.engine(0).die()
    for _ in range(turns):
        await asyncio.sleep(0)
    request.task.cancel()
    await asyncio.wait({request.task})
    # an error that nobody reads is told when its task is collected
    del request
    await asyncio.sleep(0)
    gc.collect()
    assert not errors


async def test_a_stalled_replica_gets_no_requests_until_it_wakes(scene: Made) -> None:
    one = await scene(2)
    replica, engine = one.replica("r1"), one.engine(0)
    engine.heartbeat.stall(Refusal("ENGINE_UNAVAILABLE", "silent"))
    replica.move(ReplicaState.STALLED, "silent")
    await one.served_by(1, 1)
    engine.heartbeat.wake()
    replica.move(ReplicaState.SERVING)
    await one.served_by(0)


async def test_a_request_without_a_token_leaves_a_replica_that_stands_still(scene: Made) -> None:
    one = await scene(2)
    waiting, written = one.ask("one"), one.ask("two")
    first = await one.stream(0)
    first.start()
    other = await one.stream(1)
    other.start()
    other.say("a beginning")
    await until(lambda: waiting.events and len(written.events) == 2)
    one.engine(0).heartbeat.stall(Refusal("ENGINE_UNAVAILABLE", "silent"))
    (await one.stream(1)).complete("elsewhere")
    assert await waiting.text() == "elsewhere"
    assert first.was_cancelled
    # a request with a token waits, as long as its engine may wake
    one.engine(1).heartbeat.stall(Refusal("ENGINE_UNAVAILABLE", "silent"))
    one.engine(1).heartbeat.wake()
    other.say(" and an end", finish="stop")
    assert await written.text() == "a beginning and an end"


async def test_firings_of_a_request_that_left_a_replica_are_told_once(scene: Made) -> None:
    one = await scene(2)
    told: list[tuple[str, float]] = []
    one.fleet.on_spans = lambda event: told.append((event.label, event.overhead_ms))
    moved = one.ask("one", label="moved")
    await one.stream(0)
    engine = one.engine(0)
    engine.heartbeat.stall(Refusal("ENGINE_UNAVAILABLE", "silent"))
    elsewhere = await one.stream(1)
    engine.heartbeat.wake()
    # the replica had computed a part of the request before it was told that the request is cancelled
    engine.on_spans(m.SensedSpans(1, "moved", 0, "cluster", 1.0, []))
    engine.on_spans(m.SensedSpans(2, "another", 0, "cluster", 2.0, []))
    one.engine(1).on_spans(m.SensedSpans(1, "moved", 0, "cluster", 3.0, []))
    elsewhere.complete("elsewhere")
    assert await moved.text() == "elsewhere"
    assert told == [("another", 2.0), ("moved", 3.0)]


async def test_requests_with_a_seed_stay_with_the_kind_of_the_first_replica(scene: Made) -> None:
    one = await scene(3)
    one.replica("r1").kind = one.replica("r3").kind = "a"
    one.replica("r2").kind = "b"
    requests = [one.ask(str(number), seed=number) for number in range(4)]
    for number in (0, 2, 0, 2):
        (await one.stream(number)).complete()
    for request in requests:
        await request.text()
    for number in (0, 2):
        one.crew.prepare = lambda launcher: launcher.fail("launch", NO_ROOM) and None
        one.engine(number).die()
    await until(lambda: all(one.replica(name).failed_starts for name in ("r1", "r3")))
    # other replicas of the kind do not come back: after some starts, the promise is kept with another kind
    await one.served_by(1, text="late", seed=1)


@pytest.mark.parametrize("work", ["request", "edit", "question"])
async def test_without_a_replica_that_can_be_placed_the_wait_is_bounded(
    scene: Made, work: str
) -> None:
    one = await scene(2, wait_seconds=0.01)
    gate = asyncio.Event()
    one.crew.placing = gate.wait
    await one.kill(0)
    await one.kill(1)

    async def refused() -> Refusal:
        asked = {
            "request": lambda: one.ask().text(),
            "edit": lambda: one.fleet.change(m.setting(steering=m.Steering(1, True, {}))),
            "question": lambda: one.fleet.ask(m.Explore(features=[1])),
        }[work]
        with pytest.raises(Refusal, match=r"no replica serves.*signal 9") as caught:
            await soon(asked())
        return caught.value

    assert (await refused()).code == "ENGINE_UNAVAILABLE"
    assert (await refused()).row.v1 == 503, "the next one too"
    gate.set()
    await one.serving("r1", "r2")
    await one.served_by(2)


async def test_a_replica_that_is_placed_is_waited_for_while_it_loads(scene: Made) -> None:
    one = await scene(1, wait_seconds=0.0)
    one.hold("load")
    await one.kill(0)
    gate = await one.held()
    request = one.ask()
    for _ in range(20):
        await asyncio.sleep(0)
    gate.open.set()
    (await one.stream(1)).complete("after the load")
    assert await request.text() == "after the load"
