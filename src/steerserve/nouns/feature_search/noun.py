"""Hands the search for features to the service."""

from __future__ import annotations

from steerserve.nouns.feature_search.owner import TextSearch
from steerserve.nouns.feature_search.routes import router
from steerserve.nouns.noun import Noun
from steerserve.nouns.promotions.noun import PROMOTIONS

FEATURE_SEARCH = Noun(
    name="feature_search",
    owner=lambda world: TextSearch(
        world.settings, world.conductor, world.texts, world.features, world.corpus_results
    ),
    routes=lambda owner, world: router(
        world.features, world.owner(PROMOTIONS), owner, world.settings
    ),
    questions=("/api/saes/{sae_id}/features/search",),
)
