"""Hands the circuits to the service."""

from __future__ import annotations

from steerserve.database.tables import circuits
from steerserve.nouns.circuits.owner import Circuits
from steerserve.nouns.circuits.routes import router
from steerserve.nouns.noun import Noun

CIRCUITS = Noun(
    name="circuits",
    owner=lambda world: Circuits(
        world.circuit_store,
        world.profile_store,
        world.reader,
        world.clusters,
        world.claims,
        world.serving,
        world.steering,
        world.conductor,
        world.settings,
    ),
    routes=lambda owner, world: router(owner, world.claims, world.circuit_sensing.settled),
    tables=(circuits,),
    documents={"circuits": circuits},
    changes={
        ("POST", "/api/circuits/claims/release"): "claims_release",
        ("POST", "/api/circuits/import"): "circuit_import",
        ("PUT", "/api/circuits/active/intensity"): "circuit_dial",
        ("POST", "/api/circuits/{circuit_id}/activate"): "circuit_activate",
        ("POST", "/api/circuits/{circuit_id}/deactivate"): "circuit_deactivate",
        ("DELETE", "/api/circuits/{circuit_id}"): "circuit_delete",
    },
)
