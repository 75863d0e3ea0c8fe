"""Jobs that read texts lose their model or its engine at every step: a typed end, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.control.inference.test_job_ends import REQUESTS, STEPS, Start, check_nothing_is_left
from tests.doubles import World
from tests.nouns.contrasts.test_owner import attached, crashed, unloaded
from tests.waiting import soon, turns


@STEPS
@pytest.mark.parametrize("change", [unloaded, crashed])
async def test_a_job_ends_typed_with_its_model_and_leaves_nothing(
    world: World, start: Start, step: str, change: Callable[[World], Awaitable[None]]
) -> None:
    await attached(world)
    gate = world.launcher.hold(step)
    job = await start(world)
    await soon(gate.reached.wait())
    read = world.launcher.log.count(step)
    changing = world.begin(change(world))
    await turns()  # an unload waits for the part of the job that runs
    gate.open.set()
    await soon(changing)
    await soon(job.over.wait())
    assert (job.facts.state, job.result) == ("failed", None)
    assert job.facts.error is not None
    is_awaited = change is unloaded and step in REQUESTS
    assert job.facts.error.code == ("MODEL_BUSY" if is_awaited else "ENGINE_UNAVAILABLE")
    assert world.launcher.log.count(step) == read
    await check_nothing_is_left(world)
