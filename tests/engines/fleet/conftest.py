"""Fleets that are stopped after their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.engines.fleet.scripted import Scene

Made = Callable[..., Awaitable[Scene]]


@pytest.fixture
async def scene() -> AsyncIterator[Made]:
    """Makes a fleet of scripted engines that have loaded a model."""
    made: list[Scene] = []

    async def make(count: int = 2, **more: object) -> Scene:
        made.append(Scene(count, **more))
        await made[-1].load()
        return made[-1]

    yield make
    for one in made:
        await one.fleet.stop()
