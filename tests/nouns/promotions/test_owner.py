"""The search for the features that promote a word: computed once, kept, and ended with the model."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.control.jobs import Job
from steerserve.nouns.features.form import FeatureSearch
from steerserve.nouns.promotions.form import PromotedFeatures
from steerserve.nouns.promotions.noun import PROMOTIONS
from steerserve.nouns.promotions.owner import Promotions
from steerserve.nouns.promotions.store import PromotedStore
from tests.control.conftest import refused
from tests.doubles import World
from tests.scripted_answers import WIDTH
from tests.waiting import soon


async def attached(world: World, **claims: Any) -> None:
    await world.loaded()
    await soon(world.attachments.attach(await world.sae(**claims), 1))


async def search(world: World, word: str, limit: int = 20) -> FeatureSearch:
    """The answer of a search, once its job is over."""
    found = await soon(world.owner(PROMOTIONS).search("sae_a", word, limit))
    if isinstance(found, Job):
        await soon(found.over.wait())
        assert found.facts.error is None
        found = await soon(world.owner(PROMOTIONS).search("sae_a", word, limit))
    assert isinstance(found, FeatureSearch)
    return found


async def test_a_word_finds_the_features_that_promote_all_its_tokens(world: World) -> None:
    await attached(world)
    await world.features.add_labels("sae_a", {"2": "letters"}, replace=False)
    gate = world.launcher.hold("promote")
    job = await soon(world.owner(PROMOTIONS).search("sae_a", "c", 20))
    assert isinstance(job, Job)
    await soon(gate.reached.wait())
    # the same search does not begin a second job
    assert await soon(world.owner(PROMOTIONS).search("sae_a", "d", 20)) is job
    gate.open.set()
    await soon(job.over.wait())
    assert job.result == PromotedFeatures("sae_a", 1, WIDTH, 10)
    assert (job.facts.kind, job.facts.progress) == ("promoted_tokens", 1.0)
    found = await search(world, "c")
    best = [(one.feature_idx, one.label, one.value) for one in found.features]
    assert best[0] == (2, "letters", 1.0)
    assert [index for index, *_ in best] == [2, 1, 0]
    assert (found.matched, found.query) == (3, "c")
    two = await search(world, "ce", 1)
    # feature 0 promotes e with 1/5, feature 1 with 1/4, feature 2 with 1/3
    assert [one.feature_idx for one in two.features] == [2]
    assert two.features[0].value == pytest.approx(1 / 3)
    assert two.matched == 3
    assert (await search(world, "A")).features == []
    assert world.launcher.log.count("promote") == WIDTH


async def test_what_was_computed_is_kept_for_the_next_start(world: World) -> None:
    await attached(world)
    found = await search(world, "c")
    world.launcher.log.clear()
    fresh = Promotions(PromotedStore(world.database), world.features, world.conductor, world.jobs)
    assert await soon(fresh.search("sae_a", "c", 20)) == found
    assert "promote" not in world.launcher.log


async def test_the_job_ends_typed_when_the_engine_goes(world: World) -> None:
    await attached(world)
    gate = world.launcher.hold("promote")
    job = await soon(world.owner(PROMOTIONS).search("sae_a", "c", 20))
    assert isinstance(job, Job)
    await soon(gate.reached.wait())
    world.launcher.engine.die()
    await soon(job.over.wait())
    assert job.facts.error is not None
    assert job.facts.error.code == "ENGINE_UNAVAILABLE"


async def test_what_cannot_be_searched_is_refused(world: World) -> None:
    assert (await refused(world.owner(PROMOTIONS).search("sae_a", "c", 20))).code == "SAE_NOT_FOUND"
    await world.sae()
    assert (
        await refused(world.owner(PROMOTIONS).search("sae_a", "c", 20))
    ).code == "MODEL_NOT_LOADED"
    await world.loaded()
    assert (
        await refused(world.owner(PROMOTIONS).search("sae_a", "c", 20))
    ).code == "SAE_NOT_ATTACHED"
