"""Hands the trained lenses to the service."""

from __future__ import annotations

from steerserve.nouns.noun import Noun
from steerserve.nouns.trained_lenses.owner import TrainedLenses
from steerserve.nouns.trained_lenses.routes import router
from steerserve.nouns.trained_lenses.store import LensStore, lenses

TRAINED_LENSES = Noun(
    name="trained_lenses",
    owner=lambda world: TrainedLenses(
        world.settings,
        LensStore(world.database, world.room, world.now),
        world.hub,
        world.downloads,
        world.conductor,
        world.launcher,
        world.jobs,
        world.paths,
    ),
    routes=lambda owner, _: router(owner),
    tables=(lenses,),
    documents={"trained lenses": lenses},
    changes={
        ("POST", "/api/lenses"): "lens_add",
        ("DELETE", "/api/lenses/{lens_id}"): "lens_delete",
    },
)
