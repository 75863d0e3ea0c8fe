"""Hands the promoted tokens to the service."""

from __future__ import annotations

from steerserve.nouns.noun import Noun
from steerserve.nouns.promotions.owner import Promotions
from steerserve.nouns.promotions.store import PromotedStore, promoted_tokens

PROMOTIONS = Noun(
    name="promotions",
    owner=lambda world: Promotions(
        PromotedStore(world.database, world.room, world.now),
        world.features,
        world.conductor,
        world.jobs,
    ),
    tables=(promoted_tokens,),
)
