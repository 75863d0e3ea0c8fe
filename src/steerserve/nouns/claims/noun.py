"""Hands the claims of layers to the service. The routes of circuits answer for them."""

from __future__ import annotations

from steerserve.database.tables import circuit_claims
from steerserve.nouns.claims.owner import LayerClaims
from steerserve.nouns.noun import Noun

CLAIMS = Noun(
    name="claims",
    owner=lambda world: LayerClaims(world.circuit_store, world.serving, world.steering, world.bus),
    tables=(circuit_claims,),
    close=LayerClaims.close,
)
