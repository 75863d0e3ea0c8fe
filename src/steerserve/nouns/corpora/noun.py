"""Hands the corpora to the service."""

from __future__ import annotations

from steerserve.nouns.corpora.owner import Corpora
from steerserve.nouns.corpora.routes import router
from steerserve.nouns.corpora.store import (
    corpora,
    corpus_activations,
    corpus_features,
    corpus_parts,
    corpus_saes,
)
from steerserve.nouns.noun import Noun

CORPORA = Noun(
    name="corpora",
    owner=lambda world: Corpora(
        world.settings,
        world.corpus_results.store,
        world.corpus_results,
        world.texts,
        world.hub,
        world.conductor,
        world.jobs,
        world.paths,
    ),
    routes=lambda owner, world: router(owner, world.settings),
    tables=(corpora, corpus_saes, corpus_parts, corpus_activations, corpus_features),
    changes={
        ("POST", "/api/corpora"): "corpus_add",
        ("DELETE", "/api/corpora/{corpus_id}"): "corpus_delete",
    },
    close=Corpora.close,
)
