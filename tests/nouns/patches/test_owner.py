"""Patch sweeps as parts of a job, on the scripted engine, which gives a cell its first position as its metric."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steerserve.nouns.patches import owner as patches
from steerserve.nouns.patches.noun import PATCHES
from steerserve.nouns.patches.owner import PatchesRequest
from steerserve.nouns.patches.rules import Patches
from tests.control.conftest import refused
from tests.doubles import World
from tests.scripted_answers import LAYERS
from tests.waiting import soon

ASKED = PatchesRequest(
    clean="abcd",
    corrupt="abce",
    align=None,
    sites=("resid_post",),
    layers="all",
    positions="each",
    has_heads=False,
    direction="denoise",
    kind="logit_difference",
    target=1,
    against=2,
    noise_repeats=2,
    client="",
)


async def swept(world: World, asked: PatchesRequest = ASKED) -> Patches:
    job = await world.owner(PATCHES).start(asked)
    await soon(job.over.wait())
    assert job.facts.error is None
    assert isinstance(job.result, Patches)
    return job.result


async def test_cells_are_normalised_between_the_texts(world: World) -> None:
    await world.loaded()
    found = await swept(world)
    assert (found.clean, found.corrupt, found.noise_floor) == (2.0, 0.0, 0.125)
    places = [(layer, at) for layer in range(LAYERS) for at in range(4)]
    assert [(one.layer, *one.positions) for one in found.cells] == places
    assert [one.normalised for one in found.cells] == [at / 2 for _, at in places]
    assert found.tokens == list("abce")


async def test_a_difference_within_the_noise_is_not_normalised(world: World) -> None:
    await world.loaded()
    noisy = await swept(world, replace(ASKED, noise_repeats=0))
    assert noisy.noise_floor == 0
    world.launcher.noise = 2.0
    assert {one.normalised for one in (await swept(world)).cells} == {None}


async def test_a_large_sweep_runs_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "FIRST_PRODUCTS", 3 * 4 * 1234)
    await world.loaded()
    found = await swept(world)
    assert len(found.cells) == 4 * LAYERS
    # 3 cells, then twice as many in each part, as none takes long
    assert world.launcher.log.count("patches") == 3


async def test_a_sweep_needs_a_loaded_model(world: World) -> None:
    assert (await refused(world.owner(PATCHES).start(ASKED))).code == "MODEL_NOT_LOADED"


async def test_a_text_beyond_the_context_is_refused_by_name(world: World) -> None:
    await world.loaded()
    found = await refused(world.owner(PATCHES).start(replace(ASKED, clean="a" * 65)))
    assert (found.code, found.param) == ("CONTEXT_LENGTH_EXCEEDED", "clean")
