"""Contrasts as parts of a job: behind the requests, and ended with the SAE."""

from __future__ import annotations

from steerserve.control.inference.texts import TEXTS_AT_ONCE
from steerserve.nouns.contrasts.form import Contrast
from steerserve.nouns.contrasts.noun import CONTRASTS
from steerserve.nouns.contrasts.owner import ContrastRequest
from steerserve.rules.saes.attachment import SaeChoice
from tests.control.conftest import Make
from tests.doubles import World
from tests.waiting import soon, turns, until

ASKED = ContrastRequest(
    positives=("a" * 3,) * TEXTS_AT_ONCE,
    negatives=("b" * 5,) * TEXTS_AT_ONCE,
    choice=SaeChoice(),
    pool="max",
    top=5,
    holdout=0.0,
    seed=0,
    min_share=0.0,
    has_special=False,
    has_examples=False,
    client="",
)
"""The scripted engine gives a text the feature whose index is its length."""


async def attached(world: World) -> None:
    await world.loaded()
    await soon(world.attachments.attach(await world.sae(), 1))


async def test_the_job_reads_all_texts_in_parts(world: World) -> None:
    await attached(world)
    job = world.owner(CONTRASTS).start(ASKED)
    await soon(job.over.wait())
    assert isinstance(job.result, Contrast)
    assert [(one.index, one.auc) for one in job.result.features] == [(3, 1.0), (5, 0.0)]
    assert job.result.features[0].promotes == ["d", "e", "f"]
    assert world.launcher.log.count("pool") == 2


async def test_a_request_gets_its_slot_after_a_part_and_the_next_parts_run_beside_it(
    make: Make,
) -> None:
    async with make(max_concurrent_requests=1) as world:
        await attached(world)
        gate = world.launcher.hold("pool")
        job = world.owner(CONTRASTS).start(ASKED)
        await soon(gate.reached.wait())
        asked = world.begin(world.ask())
        await until(lambda: world.queue.counts().pending)
        gate.open.set()
        stream = await soon(world.launcher.stream())
        await soon(job.over.wait())
        assert job.facts.state == "done"
        assert not asked.done()
        stream.complete()
        await soon(asked)


async def detached(world: World) -> None:
    await world.attachments.detach("sae_a")


async def unloaded(world: World) -> None:
    await world.conductor.unload(world.resident.row.id)


async def crashed(world: World) -> None:
    world.launcher.engine.die()


async def test_the_job_ends_typed_with_its_sae(world: World) -> None:
    await attached(world)
    gate = world.launcher.hold("pool")
    job = world.owner(CONTRASTS).start(ASKED)
    await soon(gate.reached.wait())
    changing = world.begin(detached(world))
    await turns()  # the change waits for the part of the job that runs
    gate.open.set()
    await soon(changing)
    await soon(job.over.wait())
    assert job.facts.error is not None
    assert job.facts.error.code == "SAE_NOT_ATTACHED"
    assert world.launcher.log.count("pool") == 1
