"""Trainings as jobs: what is stored, and what is refused before a text is read."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from steerserve.control.inference import texts
from steerserve.nouns.directions.rules import ProbeRecord, VectorRecord
from steerserve.nouns.trainings.noun import TRAININGS
from steerserve.nouns.trainings.owner import Example, TrainingRequest
from tests.control.conftest import refused
from tests.doubles import World
from tests.scripted_answers import HIDDEN
from tests.waiting import soon

ASKED = TrainingRequest(
    name="calm",
    positives=[Example(f"positives[{i}]", "a") for i in range(8)],
    negatives=[Example(f"negatives[{i}]", "b") for i in range(8)],
    is_paired=False,
    layers=(1, 0),
    site="resid_post",
    method="mean_difference",
    is_probe=False,
    read="last",
    has_special=False,
    holdout=0.25,
    seed=0,
    is_measured=False,
    client="",
)
"""The scripted engine scores the positives 1 and the negatives 0 at each layer."""


async def test_all_layers_are_read_at_once_and_fitted_one_by_one(world: World) -> None:
    await world.loaded()
    job = await world.owner(TRAININGS).start(ASKED)
    await soon(job.over.wait())
    assert isinstance(job.result, VectorRecord)
    log = world.launcher.log
    assert (log.count("states"), log.count("fit")) == (2, 2)
    training = job.result.training
    assert training is not None
    assert [one.layer for one in training.layers] == [0, 1]
    assert training.held_out == 4
    assert training.best_layer == 0
    assert {one.auc_held_out for one in training.layers} == {1.0}
    assert training.layers[0].norm_over_residual == pytest.approx(1.5 * HIDDEN**0.5)
    assert (await world.vectors.get("calm")).id == job.result.id


async def test_a_name_that_is_taken_is_refused_before_a_text_is_read(world: World) -> None:
    await world.loaded()
    for is_probe, code in ((False, "VECTOR_ALREADY_EXISTS"), (True, "PROBE_ALREADY_EXISTS")):
        asked = replace(ASKED, is_probe=is_probe)
        await soon((await world.owner(TRAININGS).start(asked)).over.wait())
        assert (await refused(world.owner(TRAININGS).start(asked))).code == code
    assert world.launcher.log.count("states") == 4


async def test_values_that_need_too_much_memory_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steerserve.nouns.trainings.owner.STATES_MAXIMUM", 16 * 2 * HIDDEN)
    await world.loaded()
    refusal = await refused(world.owner(TRAININGS).start(ASKED))
    assert (refusal.code, refusal.param) == ("INVALID_PARAMETER", "layers")


async def test_a_probe_in_memory_is_found_without_the_database(world: World) -> None:
    await world.loaded()
    job = await world.owner(TRAININGS).start(replace(ASKED, is_probe=True))
    await soon(job.over.wait())
    assert isinstance(job.result, ProbeRecord)
    found = await world.probes.find("calm")
    assert [one.layer for one in found.directions] == [0, 1]
    assert (found.best_layer, found.biases) == (0, (0.0, 0.0))
    await world.database.close()
    assert await world.probes.find(job.result.id) == found


async def test_reading_takes_turns_with_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    clock = count()
    monkeypatch.setattr(texts, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(texts, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    await world.loaded()
    await soon((await world.owner(TRAININGS).start(ASKED)).over.wait())
    assert pauses == []
    async with world.queue.room() as place, world.queue.slot(place):
        await soon((await world.owner(TRAININGS).start(replace(ASKED, name="b"))).over.wait())
    # 16 texts in parts of 8, each of which takes 1 s of this clock
    assert pauses == [1]
