"""A comparison on a scripted engine: which model it runs on, and a client that leaves in its middle."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI
from starlette.requests import ClientDisconnect

from steerserve.api.inference import compare as routes
from steerserve.errors import Refusal
from steerserve.http.disconnect import answer_nobody
from tests.control.conftest import Make, refused
from tests.doubles import World
from tests.scripted_engine import Stream
from tests.waiting import soon, until

BODY = {"prompt": "hello", "steering": {"2": 4.0}, "intensities": [0, 1]}


class Client:
    """One request to /api/compare. It reads its answer while `reads` is set, and has gone away once `gone` is set."""

    def __init__(self, world: World, body: Any = BODY) -> None:
        app = FastAPI()
        app.add_exception_handler(ClientDisconnect, answer_nobody)
        app.include_router(routes.router(world.compare, world.settings))
        self._app = app
        self._body = json.dumps(body).encode()
        self._is_sent = False
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.answered: list[Any] = []

    async def _receive(self) -> dict[str, Any]:
        if not self._is_sent:
            self._is_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def ask(self) -> tuple[int, Any]:
        """Status and body of the answer."""
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/compare",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }

        async def send(message: Any) -> None:
            await self.reads.wait()
            self.answered.append(message)

        await self._app(scope, self._receive, send)
        status, body = self.answered[0]["status"], self.body
        if body.startswith(b"event: "):
            return status, None
        return status, json.loads(body) if body else None

    @property
    def body(self) -> bytes:
        """The body of the answer so far."""
        return b"".join(one.get("body", b"") for one in self.answered)


async def ready(world: World, quantization: str = "FP16") -> None:
    row = await world.model()
    row = await world.catalog.change_model(row.id, quantization=quantization)
    await soon((await world.conductor.load(row)).ready)
    await world.attachments.attach(await world.sae(), 1)


async def test_a_client_that_leaves_frees_the_slot_and_the_engine(world: World) -> None:
    await ready(world)
    client = Client(world)
    asking = world.begin(client.ask())
    stream = await world.launcher.stream()
    stream.start()
    assert len(stream.prompts) == 2
    client.gone.set()
    await soon(stream.over.wait())
    assert stream.was_cancelled
    assert await soon(asking) == (499, None)
    assert world.is_idle
    assert world.resident.users == 0


async def test_a_client_that_leaves_while_it_waits_frees_its_place(make: Make) -> None:
    async with make(max_concurrent_requests=1) as world:
        await ready(world)
        holder, stream = await world.in_flight()
        client = Client(world)
        asking = world.begin(client.ask())
        await until(lambda: world.queue.counts().pending == 2)
        client.gone.set()
        await until(lambda: world.queue.counts().pending == 1)
        assert await soon(asking) == (499, None)
        stream.complete()
        await soon(holder)
        assert world.is_idle
        assert world.launcher.log.count("generate") == 1


async def test_it_runs_on_the_resident_of_several_of_one_name(world: World) -> None:
    await ready(world, "Q8")
    other = await world.models.add(
        str(world.home / "a"), quantization="FP16", custom_name="a", trust_remote_code=False
    )
    assert other.name == world.resident.row.name
    assert (await refused(world.ask("a"))).code == "AMBIGUOUS_MODEL_NAME"
    asking = world.begin(Client(world).ask())
    (await world.launcher.stream()).complete("told")
    status, body = await soon(asking)
    assert status == 200
    assert [side["text"] for side in body["data"]["sides"]] == ["told", "told"]
    assert world.resident.row.quantization == "Q8"


async def test_without_a_model_that_is_what_is_missing(world: World) -> None:
    assert (await refused(Client(world).ask())).code == "MODEL_NOT_LOADED"
    await world.loaded()
    assert (await refused(Client(world).ask())).code == "SAE_NOT_ATTACHED"


async def test_too_much_steering_is_refused(world: World) -> None:
    await ready(world)
    client = Client(world)
    steering = json.dumps({str(i): 1.0 for i in range(1001)}).encode()
    client._body = b'{"prompt": "hello", "steering": %s}' % steering
    try:
        status, _ = await client.ask()
    except Refusal as refused:
        status = refused.row.api
    assert status == 422
    assert world.launcher.log.count("generate") == 0


def events_of(client: Client) -> list[tuple[str, Any]]:
    """The events that a client has got so far, each with its name and its data."""
    blocks = client.body.decode().split("\n\n")
    lines = (block.split("\n") for block in blocks if block)
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in lines
    ]


STREAMED = {**BODY, "stream": True}


async def streaming(world: World) -> tuple[Client, asyncio.Future[Any], Stream]:
    """A streamed comparison whose first text has reached its client."""
    client = Client(world, STREAMED)
    asking = world.begin(client.ask())
    stream = await world.launcher.stream()
    stream.start()
    stream.say("one")
    await until(lambda: b"one" in client.body)
    return client, asking, stream


async def test_a_streamed_comparison_sends_each_text_as_it_is_written(world: World) -> None:
    await ready(world)
    client = Client(world, STREAMED)
    asking = world.begin(client.ask())
    stream = await world.launcher.stream()
    assert len(stream.prompts) == 2
    stream.start()
    stream.say("one", choice=1)
    await until(lambda: b"one" in client.body)
    stream.say("", choice=0)
    stream.say(" more", choice=0, finish="length")
    stream.say("", choice=1, finish="stop")
    assert await soon(asking) == (200, None)
    names = [(name, data.get("side"), data.get("text")) for name, data in events_of(client)]
    assert names == [
        ("started", None, None),
        ("text", 1, "one"),
        ("text", 0, " more"),
        ("text", 1, ""),
        ("done", None, None),
    ]
    assert world.is_idle


async def test_a_client_that_leaves_a_streamed_comparison_ends_it(world: World) -> None:
    await ready(world)
    client, asking, stream = await streaming(world)
    client.gone.set()
    await soon(stream.over.wait())
    assert stream.was_cancelled
    assert await soon(asking) == (200, None)
    assert world.is_idle


async def test_an_operators_change_ends_a_streamed_comparison_with_an_error(world: World) -> None:
    await ready(world)
    client, asking, stream = await streaming(world)
    await world.steering.set_values({1: 1.0})
    stream.say("two")
    assert await soon(asking) == (200, None)
    name, data = events_of(client)[-1]
    assert (name, data["code"]) == ("error", "STEERING_CHANGED")
    assert world.is_idle


async def test_the_end_of_the_engine_is_not_taken_for_an_operators_change(world: World) -> None:
    await ready(world)
    await world.steering.set_values({1: 1.0})
    client, asking, stream = await streaming(world)
    epoch = world.serving.live.epoch
    client.reads.clear()
    stream.say("more")
    stream.say("and more")
    world.launcher.engine.die()
    await until(lambda: world.serving.live.epoch != epoch)
    client.reads.set()
    assert await soon(asking) == (200, None)
    name, data = events_of(client)[-1]
    assert (name, data["code"]) == ("error", "ENGINE_UNAVAILABLE")


async def test_a_streamed_comparison_that_is_refused_has_the_status_of_its_refusal(
    world: World,
) -> None:
    await ready(world)
    client = Client(world, STREAMED)
    asking = world.begin(client.ask())
    (await world.launcher.stream()).refuse(Refusal("CONTEXT_LENGTH_EXCEEDED", "too long"))
    assert (await refused(asking)).code == "CONTEXT_LENGTH_EXCEEDED"
    assert world.is_idle
