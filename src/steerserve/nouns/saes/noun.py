"""Hands the registered SAEs to the service."""

from __future__ import annotations

from steerserve.control.saes.events import (
    SaeDownloadComplete,
    SaeDownloadError,
    SaeDownloadProgress,
)
from steerserve.database.tables import saes
from steerserve.nouns.attachments.noun import status
from steerserve.nouns.noun import Noun
from steerserve.nouns.saes.owner import Saes
from steerserve.nouns.saes.routes import router

SAES = Noun(
    name="saes",
    owner=lambda world: Saes(
        world.catalog,
        world.conductor,
        world.sae_reader,
        world.labels,
        world.sae_downloads,
        world.paths,
    ),
    routes=lambda owner, world: router(owner, world.sae_downloads, status(world)),
    tables=(saes,),
    events=(SaeDownloadProgress, SaeDownloadComplete, SaeDownloadError),
    changes={
        ("POST", "/api/saes/download"): "sae_add",
        ("DELETE", "/api/saes/{sae_id}"): "sae_delete",
        ("POST", "/api/saes/{sae_id}/cancel"): "sae_cancel",
    },
    questions=("/api/saes/preview",),
)
