"""Hands the live interventions to the service."""

from __future__ import annotations

from steerserve.control.steering.interventions import Interventions
from steerserve.nouns.interventions.routes import router
from steerserve.nouns.noun import Noun

INTERVENTIONS = Noun(
    name="interventions",
    owner=lambda world: Interventions(world.steering, world.conductor, world.edit_parts),
    routes=lambda owner, _: router(owner),
    changes={
        ("PUT", "/api/interventions"): "interventions_set",
        ("DELETE", "/api/interventions"): "interventions_clear",
    },
)
