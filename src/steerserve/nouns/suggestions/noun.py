"""Hands the suggested labels to the service."""

from __future__ import annotations

from steerserve.nouns.noun import Noun
from steerserve.nouns.suggestions.owner import Suggestions
from steerserve.nouns.suggestions.routes import router
from steerserve.nouns.suggestions.store import SuggestionStore

SUGGESTIONS = Noun(
    name="suggestions",
    owner=lambda world: Suggestions(
        world.settings,
        SuggestionStore(world.database, world.room, world.now),
        world.labels,
        world.features,
        world.corpus_results,
        world.texts,
        world.generation,
        world.served,
        world.conductor,
        world.jobs,
    ),
    routes=lambda owner, _: router(owner),
    changes={
        ("POST", "/api/saes/{sae_id}/labels/suggest"): "labels_suggest",
        ("POST", "/api/saes/{sae_id}/labels/accept"): "labels_accept",
    },
)
