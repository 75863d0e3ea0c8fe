"""Measurements of vectors as parts of a job: what stands in the record however the work ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from steerserve.nouns.directions.rules import VectorRecord
from steerserve.nouns.trainings.noun import TRAININGS
from steerserve.nouns.trainings.owner import Example
from steerserve.rules.steering.levers import LeverPlace, Measured
from tests.doubles import World
from tests.nouns.contrasts.test_owner import crashed, unloaded
from tests.nouns.trainings.test_owner import ASKED
from tests.waiting import soon, turns

MEASURED = replace(ASKED, is_measured=True)


async def trained(world: World, **changes: object) -> VectorRecord:
    job = await world.owner(TRAININGS).start(replace(MEASURED, **changes))
    await soon(job.over.wait())
    assert isinstance(job.result, VectorRecord), job.facts
    return job.result


async def test_few_texts_leave_a_vector_unmeasured_with_the_reason(world: World) -> None:
    await world.loaded()
    few = [Example(f"positives[{i}]", "a") for i in range(7)]
    record = await trained(world, positives=few)
    assert record.measured is None
    assert record.not_measured == "a group has 7 texts; a probe of steered texts needs 8"
    assert await world.vectors.get("calm") == record
    assert world.launcher.log.count("diverge") == 0


@pytest.mark.parametrize("change", [unloaded, crashed])
async def test_the_vector_stays_where_the_model_goes_during_its_measurement(
    world: World, change: Callable[[World], Awaitable[None]]
) -> None:
    await world.loaded()
    gate = world.launcher.hold("diverge")
    job = await world.owner(TRAININGS).start(MEASURED)
    await soon(gate.reached.wait())
    assert (await world.vectors.get("calm")).not_measured == "its measurement was not finished"
    changing = world.begin(change(world))
    await turns()  # an unload waits for the part of the job that runs
    gate.open.set()
    await soon(changing)
    await soon(job.over.wait())
    record = await world.vectors.get("calm")
    assert job.facts.error is None
    assert job.result == record
    assert record.measured is None
    assert record.not_measured not in {None, "its measurement was not finished"}


async def test_a_cancelled_measurement_says_so(world: World) -> None:
    await world.loaded()
    gate = world.launcher.hold("diverge")
    job = await world.owner(TRAININGS).start(MEASURED)
    await soon(gate.reached.wait())
    await soon(world.jobs.drop(job.id))
    gate.open.set()
    await soon(job.over.wait())
    record = await world.vectors.get("calm")
    assert record.not_measured == "its measurement was not finished"


async def test_a_kept_vector_in_memory_learns_its_place(world: World) -> None:
    """The vector was found, and is in memory, before it is measured."""
    await world.loaded()
    record = await trained(world, is_measured=False)
    assert (await world.vectors.find("calm")).default_layers == (0,)
    assert record.not_measured == "no measurement was asked for"
    place = LeverPlace(1, 2.0)
    found = Measured(
        model="a",
        by="words",
        words=["sea"],
        probe=None,
        plain=0.0,
        layers=[],
        best=place,
        works=True,
        random=[],
        tokens=24,
        temperature=1.0,
        seed=0,
    )
    measured = await world.vectors.keep_measurement(record.id, found)
    assert (measured.measured, measured.not_measured) == (found, None)
    assert (await world.vectors.find("calm")).default_layers == (1,)
    # a later reason does not replace what was measured
    again = await world.vectors.keep_measurement(record.id, "the model went")
    assert (again.measured, again.not_measured) == (found, None)
