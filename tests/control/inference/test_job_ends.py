"""Jobs that read texts are cancelled, or lose their model to another one, at every step: a typed end, and nothing is
left behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from steerserve.control.inference.texts import TEXTS_AT_ONCE
from steerserve.control.jobs import Job
from steerserve.nouns.contrasts.noun import CONTRASTS
from steerserve.nouns.corpora.form import CorpusSource
from steerserve.nouns.corpora.noun import CORPORA
from steerserve.nouns.corpora.owner import CorpusRequest
from steerserve.nouns.effects.noun import EFFECTS
from steerserve.nouns.patches.noun import PATCHES
from steerserve.nouns.trainings.noun import TRAININGS
from tests.control.conftest import refused
from tests.doubles import World
from tests.nouns.contrasts import test_owner as test_contrasts
from tests.nouns.contrasts.test_owner import attached
from tests.nouns.effects import test_owner as test_effects
from tests.nouns.patches import test_owner as test_patches
from tests.nouns.trainings import test_owner as test_training
from tests.waiting import soon, turns

CORPUS = CorpusRequest(
    name="sea",
    source=CorpusSource(kind="inline"),
    texts=("abc",) * (TEXTS_AT_ONCE + 1),
    hub_token=None,
    max_tokens=100,
    context=16,
    examples=2,
    client="",
)


async def contrast(world: World) -> Job:
    return world.owner(CONTRASTS).start(test_contrasts.ASKED)


async def training(world: World) -> Job:
    return await world.owner(TRAININGS).start(test_training.ASKED)


async def effects(world: World) -> Job:
    return await world.owner(EFFECTS).start(test_effects.ASKED)


async def patches(world: World) -> Job:
    return await world.owner(PATCHES).start(test_patches.ASKED)


async def corpus(world: World) -> Job:
    return await world.owner(CORPORA).start(CORPUS)


STEPS = pytest.mark.parametrize(
    ("start", "step"),
    [
        (contrast, "pool"),
        (contrast, "promote"),
        (training, "states"),
        (training, "fit"),
        (training, "explore"),
        (effects, "explore"),
        (effects, "diverge"),
        (corpus, "activations"),
        (patches, "patches"),
    ],
)
REQUESTS = ("pool", "states", "diverge", "activations", "patches")
"""The steps for whose end a load waits. The others end with the engine."""
Start = Callable[[World], Awaitable[Job]]


async def check_nothing_is_left(world: World) -> None:
    """No slot is held, and no result is stored. What a corpus has read is kept, so that it can go on."""
    assert world.queue.counts().holding == 0
    assert (await refused(world.vectors.get("calm"))).code == "VECTOR_NOT_FOUND"
    assert (await world.owner(EFFECTS).page(10, 0, None)).total == 0
    states = [one.state for one in (await world.owner(CORPORA).all()).corpora]
    assert states in ([], ["stopped"])


@STEPS
async def test_a_cancelled_job_leaves_nothing_and_can_be_started_again(
    world: World, start: Start, step: str
) -> None:
    await attached(world)
    job, gate = await world.reaching(step, start(world))
    read = world.launcher.log.count(step)
    await soon(world.jobs.drop(job.id))
    assert (job.facts.state, job.result, job.facts.error) == ("cancelled", None, None)
    gate.open.set()
    await turns()
    assert world.launcher.log.count(step) == read
    await check_nothing_is_left(world)
    again = await start(world)
    await soon(again.over.wait())
    assert (again.facts.state, again.facts.error) == ("done", None)


@STEPS
async def test_a_job_whose_model_is_swapped_ends_typed_and_leaves_nothing(
    world: World, start: Start, step: str
) -> None:
    await attached(world)
    other = await world.model("b")
    job, gate = await world.reaching(step, start(world))
    coming = await soon(world.conductor.load(other))
    if step in REQUESTS:
        gate.open.set()
    await soon(coming.ready)
    assert world.resident.row.id == other.id
    await soon(job.over.wait())
    assert (job.facts.state, job.result) == ("failed", None)
    assert job.facts.error is not None
    assert job.facts.error.code == ("MODEL_BUSY" if step in REQUESTS else "ENGINE_UNAVAILABLE")
    await check_nothing_is_left(world)
