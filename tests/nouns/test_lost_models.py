"""Jobs that read texts lose their model or its engine at every step: a typed end, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.control.inference.test_job_ends import STEPS, Start, check_nothing_is_left
from tests.doubles import World
from tests.nouns.contrasts.test_owner import attached, crashed, unloaded
from tests.waiting import soon, turns


@STEPS
@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (unloaded, {"MODEL_BUSY", "MODEL_NOT_LOADED", "ENGINE_UNAVAILABLE"}),
        (crashed, {"MODEL_NOT_LOADED", "ENGINE_UNAVAILABLE"}),
    ],
)
async def test_a_job_ends_typed_with_its_model_and_leaves_nothing(
    world: World,
    start: Start,
    step: str,
    change: Callable[[World], Awaitable[None]],
    codes: set[str],
) -> None:
    await attached(world)
    gate = world.launcher.hold(step)
    job = await start(world)
    await soon(gate.reached.wait())
    changing = world.begin(change(world))
    await turns()  # an unload waits for the part of the job that runs
    gate.open.set()
    await soon(changing)
    await soon(job.over.wait())
    assert (job.facts.state, job.result) == ("failed", None)
    assert job.facts.error is not None
    assert job.facts.error.code in codes
    await check_nothing_is_left(world)
