"""Hands the trainings of vectors and probes to the service."""

from __future__ import annotations

from steerserve.nouns.measurements.noun import MEASUREMENTS
from steerserve.nouns.noun import Noun
from steerserve.nouns.trainings.owner import Trainings
from steerserve.nouns.trainings.routes import router

TRAININGS = Noun(
    name="trainings",
    owner=lambda world: Trainings(
        world.conductor,
        world.texts,
        world.vectors,
        world.probes,
        world.jobs,
        world.owner(MEASUREMENTS),
    ),
    routes=lambda owner, world: router(owner, world.settings),
    changes={
        ("POST", "/api/vectors/train"): "vector_train",
        ("POST", "/api/probes/train"): "probe_train",
    },
)
