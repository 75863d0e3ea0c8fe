"""Hands the tokens of vectors to the service."""

from __future__ import annotations

from steerserve.nouns.noun import Noun
from steerserve.nouns.vector_tokens.owner import PromotingVectors
from steerserve.nouns.vector_tokens.routes import router

VECTOR_TOKENS = Noun(
    name="vector_tokens",
    owner=lambda world: PromotingVectors(world.vectors, world.conductor),
    routes=lambda owner, _: router(owner),
)
