"""Hands the features of SAEs to the service."""

from __future__ import annotations

from steerserve.nouns.features.owner import Features
from steerserve.nouns.features.routes import router
from steerserve.nouns.noun import Noun

FEATURES = Noun(
    name="features",
    owner=lambda world: Features(
        world.labels,
        world.saes,
        world.reader,
        world.conductor,
        world.launcher,
        world.monitoring.counted,
        world.corpus_results,
    ),
    routes=lambda owner, world: router(owner),
    changes={
        ("POST", "/api/saes/{sae_id}/labels"): "labels_import",
        ("DELETE", "/api/saes/{sae_id}/labels"): "labels_delete",
        ("DELETE", "/api/saes/{sae_id}/labels/{index}"): "label_delete",
    },
)
