"""Hands the replicas of the loaded model to the service. The slot has them."""

from __future__ import annotations

from steerserve.control.residency.events import ReplicaChanged
from steerserve.control.residency.replicas import Replicas
from steerserve.nouns.noun import Noun
from steerserve.nouns.replicas.routes import router

REPLICAS = Noun(
    name="replicas",
    owner=lambda world: Replicas(world.conductor, world.launcher, world.settings),
    routes=lambda owner, world: router(world.models, owner),
    events=(ReplicaChanged,),
    changes={
        ("PUT", "/api/models/{model_id}/replicas"): "replicas_resize",
        ("POST", "/api/models/{model_id}/replicas/{name}/drain"): "replica_drain",
        ("POST", "/api/models/{model_id}/replicas/{name}/replace"): "replica_replace",
    },
)
