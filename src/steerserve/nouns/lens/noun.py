"""Hands the lens and attribution to the service."""

from __future__ import annotations

from steerserve.nouns.lens.owner import Lenses
from steerserve.nouns.lens.routes import router
from steerserve.nouns.noun import Noun
from steerserve.nouns.trained_lenses.noun import TRAINED_LENSES

LENS = Noun(
    name="lens",
    owner=lambda world: Lenses(
        world.generation,
        world.served,
        world.conductor,
        world.features,
        world.owner(TRAINED_LENSES),
        world.paths,
    ),
    routes=lambda owner, world: router(owner, world.speller, world.settings),
    questions=("/api/lens", "/api/attribution"),
)
