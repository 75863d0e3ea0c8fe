"""The road of a generating request: its place, its slot, its stream, and every way to leave it early."""

from __future__ import annotations

import asyncio

import pytest

from steerserve import messages as m
from steerserve.control.inference.asked import Asked
from steerserve.errors import Refusal
from tests import asking
from tests.control.conftest import Make, refused
from tests.doubles import World
from tests.waiting import soon, until


def asked() -> Asked:
    return asking.to_write()


async def cancelled(task: asyncio.Future[str]) -> None:
    task.cancel()
    await soon(asyncio.gather(task, return_exceptions=True))


async def test_a_request_begins_with_started_and_ends_with_its_pieces(world: World) -> None:
    await world.loaded()
    async with world.opened(asked()) as run:
        stream = await world.launcher.stream()
        stream.start()
        stream.say("Once ")
        stream.say("upon", finish="stop")
        events = [event async for event in run.events]
    assert isinstance(events[0], m.Started)
    assert [e.text for e in events[1:] if isinstance(e, m.Piece)] == ["Once ", "upon"]
    assert run.model_name == "a"
    assert world.is_idle


@pytest.mark.shows("chat-parameters.20")
async def test_the_fingerprint_says_unrecorded_where_nothing_is_known(world: World) -> None:
    await world.loaded()
    async with world.opened(asked()) as run:
        assert run.fingerprint == "service:a@unrecorded:float32/FP16:transformers"


async def test_what_was_asked_for_reaches_the_engine(world: World) -> None:
    await world.loaded()
    sampling = m.Sampling(0.5, 0.9, 1.2, 7, 512, ["END"], 42)
    wanted = asking.to_write("text", "other", sampling=sampling, n=2, client="a key")
    async with world.opened(wanted):
        stream = await world.launcher.stream()
    assert stream.prompts == [m.Text("text"), m.Text("other")]
    assert stream.client == "a key"
    assert stream.choices == 4
    assert stream.sampling == sampling
    assert isinstance(stream.plan, m.Follow)


async def test_the_slot_is_given_back_when_the_engine_is_done_though_the_client_never_reads(
    make: Make,
) -> None:
    async with make(max_concurrent_requests=1) as world:
        await world.loaded()
        async with world.opened(asked()) as unread:
            (await world.launcher.stream()).complete("kept")
            await world.answered()
            assert world.resident.users == 0
            kept = [event async for event in unread.events]
        assert [e.text for e in kept if isinstance(e, m.Piece)] == ["kept"]


async def test_leaving_early_cancels_in_the_engine(world: World) -> None:
    await world.loaded()
    async with world.opened(asked()) as run:
        stream = await world.launcher.stream()
        stream.start()
        assert isinstance(await anext(aiter(run.events)), m.Started)
    assert stream.was_cancelled
    assert world.is_idle
    assert world.resident.users == 0


async def test_leaving_after_the_end_cancels_nothing(world: World) -> None:
    await world.loaded()
    asked, stream = await world.in_flight()
    stream.complete()
    await soon(asked)
    assert not stream.was_cancelled


async def test_a_client_that_goes_away_in_the_queue_frees_its_place(make: Make) -> None:
    async with make(max_concurrent_requests=1) as world:
        await world.loaded()
        holder, stream = await world.in_flight()
        waiting = world.begin(world.ask())
        await until(lambda: world.resident.users == 2)
        await cancelled(waiting)
        assert world.queue.counts().pending == 1
        assert world.resident.users == 1
        assert world.launcher.log.count("generate") == 1
        stream.complete()
        await soon(holder)
        assert world.is_idle


async def test_a_client_that_goes_away_while_its_model_loads_frees_its_place(
    world: World,
) -> None:
    await world.model()
    asked, gate = await world.held("load", world.ask())
    assert world.queue.counts().pending == 1
    await cancelled(asked)
    assert world.is_idle
    gate.open.set()
    await soon(world.resident.ready)
    assert world.launcher.log.count("generate") == 0


async def test_a_client_that_goes_away_during_a_detach_frees_its_place(world: World) -> None:
    await world.attached()
    holder, stream = await world.in_flight()
    detaching = world.begin(world.attachments.detach("sae_a"))
    await until(world.conductor.editing.locked)
    asked = world.begin(world.ask())
    await until(lambda: world.queue.counts().holding == 2)
    await cancelled(asked)
    assert world.queue.counts().holding == 1
    stream.complete()
    await soon(asyncio.gather(holder, detaching))
    assert world.is_idle


async def test_a_full_queue_refuses_before_anything_is_loaded(make: Make) -> None:
    async with make(max_concurrent_requests=1, max_pending_requests=0) as world:
        await world.loaded()
        await world.model("b")
        holder, stream = await world.in_flight()
        assert (await refused(world.ask("b"))).code == "QUEUE_FULL"
        assert world.resident.row.name == "a"
        assert world.generation.active == 1
        stream.complete()
        await soon(holder)


async def test_the_choices_of_a_request_count_when_clients_take_turns(make: Make) -> None:
    async with make(max_concurrent_requests=3) as world:
        await world.loaded()

        async def ask(client: str, choices: int = 1) -> str:
            asked = asking.to_write("hi", n=choices, client=client)
            async with world.opened(asked) as run:
                async for _ in run.events:
                    pass
            return client

        streams = []
        for client, choices in (("wide", 4), ("narrow", 1), ("last", 1)):
            world.begin(ask(client, choices))
            streams.append(await world.launcher.stream())
        waiting = [world.begin(ask(client)) for client in ("wide", "narrow")]
        await until(lambda: world.queue.counts().waiting == 2)
        streams[2].complete()
        (await world.launcher.stream()).complete()
        assert await soon(waiting[1]) == "narrow"
        assert not waiting[0].done()


async def test_what_the_engine_refuses_is_raised_where_the_events_are_read(world: World) -> None:
    await world.loaded()
    async with world.opened(asked()) as run:
        stream = await world.launcher.stream()
        stream.refuse(Refusal("CONTEXT_LENGTH_EXCEEDED", "too long", prompt_tokens=99))
        refusal = await refused(anext(aiter(run.events)))
    assert refusal.code == "CONTEXT_LENGTH_EXCEEDED"
    assert refusal.details == {"prompt_tokens": 99}
    assert world.is_idle


async def test_a_failure_after_some_text_comes_after_that_text(world: World) -> None:
    await world.loaded()
    async with world.opened(asked()) as run:
        stream = await world.launcher.stream()
        stream.start()
        stream.say("some")
        await until(lambda: stream.events.empty())
        world.launcher.engine.die()
        events = aiter(run.events)
        assert isinstance(await anext(events), m.Started)
        assert await anext(events) == m.Piece(1, 0, "some", 1, None)
        refusal = await refused(anext(events))
    assert refusal.code == "ENGINE_UNAVAILABLE"


async def test_a_closing_service_refuses_newcomers_and_serves_those_in_flight(
    world: World,
) -> None:
    await world.loaded()
    asked, stream = await world.in_flight()
    world.generation.is_closing = True
    assert (await refused(world.ask())).code == "SHUTTING_DOWN"
    stream.complete()
    assert await soon(asked) == "done"
    assert world.is_idle


async def test_an_unknown_model_is_refused_and_counts_nothing(world: World) -> None:
    assert (await refused(world.ask("unknown"))).code == "MODEL_NOT_FOUND"
    assert world.generation.active == 0


async def test_a_model_whose_last_load_failed_is_refused_with_the_reason(world: World) -> None:
    await world.model("a", status="error", error_message="the weights do not fit")
    refusal = await refused(world.ask("a"))
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert "the weights do not fit" in refusal.message


async def test_a_locked_model_is_the_only_one_listed(world: World) -> None:
    row = await world.loaded("a")
    await world.model("b")
    await world.model("c", status="error")
    assert [r.name for r in await world.served.listed()] == ["a", "b"]
    world.conductor.lock(row.id)
    assert [r.name for r in await world.served.listed()] == ["a"]
