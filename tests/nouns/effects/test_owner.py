"""Measurements of effects as parts of a job: behind the requests, and ended with the model, the SAE or the vector."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from steerserve.nouns.directions.rules import VectorSource
from steerserve.nouns.effects.form import Effects
from steerserve.nouns.effects.noun import EFFECTS
from steerserve.nouns.effects.owner import EffectsRequest
from steerserve.rules.steering.request import RequestSteering, SteeredFeature, SteeredVector
from steerserve.rules.steering.vector import Direction, ReadVector
from tests.control.conftest import refused
from tests.doubles import World
from tests.nouns.contrasts.test_owner import attached, crashed, detached, unloaded
from tests.scripted_answers import HIDDEN
from tests.waiting import soon, turns

ASKED = EffectsRequest(
    lever={"feature": {"index": 1}},
    steering=RequestSteering((SteeredFeature(1, 1.0),), field=""),
    strengths=(0.5, 2.0),
    prompts=("one", "two"),
    tokens=2,
    temperature=1.0,
    seed=0,
    target=("sea",),
    control=("hay", "cow"),
    random_directions=2,
    client="",
)
"""The scripted engine's KL at each token is the strength of the lever."""


async def measured(world: World, **changes: Any) -> Effects:
    job = await world.owner(EFFECTS).start(replace(ASKED, **changes))
    await soon(job.over.wait())
    assert isinstance(job.result, Effects), job.facts
    return job.result


async def vector(world: World) -> str:
    direction = Direction(1, "resid_post", struct.pack(f"<{HIDDEN}f", *[1.0] * HIDDEN))
    read = ReadVector(format="inline", directions=(direction,))
    source = VectorSource(kind="inline", format="inline")
    return (await world.vectors.add("calm", read, source, None)).id


async def test_each_strength_has_the_lever_and_random_directions(world: World) -> None:
    await attached(world)
    found = await measured(world)
    assert found.plain.kl_p95 == 0.0
    assert [(one.strength, one.kl_median, one.texts) for one in found.rows] == [
        (0.5, 0.5, 2),
        (2.0, 2.0, 2),
    ]
    assert [(one.strength, one.texts, one.tokens) for one in found.random] == [
        (0.5, 4, 8),
        (2.0, 4, 8),
    ]
    assert found.calibrated.strength == pytest.approx(1.0)
    assert found.calibrated.between == (0.5, 2.0)
    assert (found.rows[0].target_logprob, found.rows[0].control_logprob) == (-1.0, -1.0)
    # one part for the plain texts, and one for each lever and strength
    assert world.launcher.log.count("diverge") == 1 + 2 * (1 + 2)


async def test_the_digest_is_that_of_the_result(world: World) -> None:
    await attached(world)
    first, again = await measured(world), await measured(world)
    # equal results are kept once
    assert first == again
    assert (first.id is not None, first.not_kept) == (True, None)
    assert (await measured(world, seed=1)).digest != first.digest
    assert first.digest.startswith("sha256=")
    assert first.steering_state is not None


async def test_few_texts_are_written_at_once_where_their_logits_are_large(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await attached(world)
    monkeypatch.setattr("steerserve.control.inference.steered_texts.LOGITS_KEPT", 4 * 32 * 2)
    await measured(world, random_directions=0)
    assert world.launcher.log.count("diverge") == 2 * 3


async def test_too_many_texts_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await attached(world)
    monkeypatch.setattr("steerserve.control.inference.steered_texts.TEXTS_MAXIMUM", 13)
    refusal = await refused(world.owner(EFFECTS).start(ASKED))
    assert (refusal.code, refusal.param) == ("INVALID_PARAMETER", "strengths")
    assert refusal.details["texts"] == 14


async def test_it_needs_a_model(world: World) -> None:
    assert (await refused(world.owner(EFFECTS).start(ASKED))).code == "MODEL_NOT_LOADED"


@pytest.mark.parametrize("step", ["diverge", "explore"])
@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (detached, {"SAE_NOT_ATTACHED"}),
        (unloaded, {"MODEL_BUSY", "MODEL_NOT_LOADED", "ENGINE_UNAVAILABLE"}),
        (crashed, {"ENGINE_UNAVAILABLE"}),
    ],
)
async def test_the_job_ends_typed_with_what_it_needs(
    world: World, step: str, change: Callable[[World], Awaitable[None]], codes: set[str]
) -> None:
    await attached(world)
    gate = world.launcher.hold(step)
    job = await world.owner(EFFECTS).start(ASKED)
    await soon(gate.reached.wait())
    changing = world.begin(change(world))
    await turns()  # the change waits for the part of the job that runs
    gate.open.set()
    await soon(changing)
    await soon(job.over.wait())
    assert job.facts.error is not None
    assert job.facts.error.code in codes


async def test_the_job_ends_typed_with_its_vector(world: World) -> None:
    await attached(world)
    name = await vector(world)
    lever = RequestSteering((SteeredVector(name, "add", 1.0),), field="")
    asked = replace(ASKED, lever={"vector": name}, steering=lever)
    gate = world.launcher.hold("diverge")
    job = await world.owner(EFFECTS).start(asked)
    await soon(gate.reached.wait())
    await world.vectors.remove(name)
    gate.open.set()
    await soon(job.over.wait())
    assert job.facts.error is not None
    assert job.facts.error.code == "VECTOR_NOT_FOUND"
    assert (await refused(world.owner(EFFECTS).start(asked))).param == "vector"


@pytest.mark.parametrize("step", ["diverge", "explore"])
async def test_a_cancelled_job_ends_at_once(world: World, step: str) -> None:
    await attached(world)
    gate = world.launcher.hold(step)
    job = await world.owner(EFFECTS).start(ASKED)
    await soon(gate.reached.wait())
    await soon(world.jobs.drop(job.id))
    assert job.facts.state == "cancelled"
    gate.open.set()
    assert world.queue.counts().holding == 0
