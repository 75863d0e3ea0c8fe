"""Hands the patch sweeps to the service."""

from __future__ import annotations

from steerserve.nouns.noun import Noun
from steerserve.nouns.patches.owner import PatchSweeps
from steerserve.nouns.patches.routes import router

PATCHES = Noun(
    name="patches",
    owner=lambda world: PatchSweeps(
        world.settings, world.conductor, world.texts, world.speller, world.jobs
    ),
    routes=lambda owner, world: router(owner, world.settings),
    questions=("/api/patches",),
)
