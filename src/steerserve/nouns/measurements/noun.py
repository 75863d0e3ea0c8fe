"""Hands the measurements of vectors to the service."""

from __future__ import annotations

from steerserve.nouns.measurements.owner import VectorMeasurements
from steerserve.nouns.measurements.routes import router
from steerserve.nouns.noun import Noun

MEASUREMENTS = Noun(
    name="measurements",
    owner=lambda world: VectorMeasurements(world.conductor, world.texts, world.vectors, world.jobs),
    routes=lambda owner, world: router(owner, world.settings),
    changes={("POST", "/api/vectors/{vector_id}/measure"): "vector_measure"},
)
