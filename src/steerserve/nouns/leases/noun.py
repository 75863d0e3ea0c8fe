"""Hands the leases of models to the service. The slot grants them."""

from __future__ import annotations

from steerserve.control.residency.events import LeaseChanged
from steerserve.nouns.leases.routes import router
from steerserve.nouns.noun import Noun

LEASES = Noun(
    name="leases",
    owner=lambda world: world.conductor.leases,
    routes=lambda _, world: router(world.models, world.conductor),
    events=(LeaseChanged,),
    changes={
        ("POST", "/api/models/{model_id}/lease"): "lease_grant",
        ("POST", "/api/models/{model_id}/lease/renew"): "lease_renew",
        ("DELETE", "/api/models/{model_id}/lease"): "lease_release",
    },
)
