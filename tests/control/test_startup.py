"""The models that are loaded at the start of the service, while clients load others."""

from __future__ import annotations

import asyncio

from steerserve.app import startup
from tests.control.conftest import refused
from tests.doubles import World
from tests.waiting import soon


async def start(world: World, name: str) -> str:
    """Let the start use the model, and return the name of the model that is resident then."""
    async with startup.using(world, (await world.served.resolve(name)).row):
        return world.conductor.loaded().row.name


async def test_the_start_joins_a_load_that_a_client_has_begun(world: World) -> None:
    row, gate = await world.model("a"), world.launcher.hold("load")
    await world.conductor.load(row)
    starting = world.begin(start(world, "a"))
    await soon(gate.reached.wait())
    gate.open.set()
    assert await soon(starting) == "a"
    assert world.launcher.log.count("load") == 1


async def test_the_start_waits_for_the_load_of_another_model(world: World) -> None:
    gate = world.launcher.hold("load")
    await world.model("a")
    await world.conductor.load(await world.model("b"))
    starting = world.begin(start(world, "a"))
    await soon(gate.reached.wait())
    assert not starting.done()
    gate.open.set()
    assert await soon(starting) == "a"
    assert len(world.launcher.alive) == 1


async def test_the_start_waits_for_an_unload(world: World) -> None:
    row = await world.loaded("a")
    asked, stream = await world.in_flight()
    unloading = await world.unloading(world.conductor.unload(row.id))
    starting = world.begin(start(world, "a"))
    stream.complete()
    assert await soon(starting) == "a"
    await soon(asyncio.gather(asked, unloading))


async def test_a_load_of_the_start_that_an_operator_ends_is_not_begun_again(world: World) -> None:
    row = await world.model("a")
    starting, _ = await world.held("load", start(world, "a"))
    await soon(world.conductor.end_load(row.id))
    assert (await refused(starting)).code == "MODEL_BUSY"
    assert world.launcher.log.count("load") == 1


async def test_an_sae_that_a_client_has_attached_counts_as_attached(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    attached = await world.attachments.attach(sae, 1)
    assert await startup.attached(world, sae, 1) is attached
    assert (await refused(startup.attached(world, sae, 99))).code != "SAE_ALREADY_ATTACHED"
