"""The end of the owners."""

from __future__ import annotations

import asyncio

import pytest

from steerserve.control.residency.events import UnloadComplete
from tests.doubles import World
from tests.waiting import soon


async def test_the_work_of_sensing_ends_before_the_database_closes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[int] = []
    end_of_model, close = world.conductor.close, world.database.close

    def in_the_background() -> int:
        return sum(task.get_name() == "sensing-arm" for task in asyncio.all_tasks())

    async def end_model() -> None:
        await end_of_model()
        world.bus.publish(UnloadComplete(1))
        running.append(in_the_background())

    async def look() -> None:
        running.append(in_the_background())
        await close()

    monkeypatch.setattr(world.conductor, "close", end_model)
    monkeypatch.setattr(world.database, "close", look)
    await soon(world.close())
    assert running == [2, 0]  # clusters and circuits
