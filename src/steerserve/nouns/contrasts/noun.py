"""Hands the contrasts to the service."""

from __future__ import annotations

from steerserve.nouns.contrasts.owner import Contrasts
from steerserve.nouns.contrasts.routes import router
from steerserve.nouns.noun import Noun

CONTRASTS = Noun(
    name="contrasts",
    owner=lambda world: Contrasts(world.conductor, world.texts, world.features, world.jobs),
    routes=lambda owner, world: router(owner, world.settings),
    questions=("/api/features/contrast",),
)
