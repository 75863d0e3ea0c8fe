"""Hands the registered models to the service. The slot loads and unloads them."""

from __future__ import annotations

from steerserve.control.models.events import DownloadComplete, DownloadError, DownloadProgress
from steerserve.control.residency.events import (
    LoadComplete,
    LoadError,
    LoadProgress,
    UnloadComplete,
)
from steerserve.database.tables import models
from steerserve.nouns.models.owner import Models
from steerserve.nouns.models.routes import router
from steerserve.nouns.noun import Noun

MODELS = Noun(
    name="models",
    owner=lambda world: Models(
        world.catalog,
        world.conductor,
        world.model_downloads,
        world.contents,
        world.paths,
        world.settings.may_run_remote_code,
    ),
    routes=lambda owner, world: router(
        owner, world.model_downloads, world.conductor, world.replicas
    ),
    tables=(models,),
    events=(
        DownloadProgress,
        DownloadComplete,
        DownloadError,
        LoadProgress,
        LoadComplete,
        LoadError,
        UnloadComplete,
    ),
    changes={
        ("POST", "/api/models"): "model_add",
        ("DELETE", "/api/models/{model_id}"): "model_delete",
        ("POST", "/api/models/{model_id}/cancel"): "model_cancel",
        ("POST", "/api/models/{model_id}/load"): "model_load",
        ("POST", "/api/models/{model_id}/unload"): "model_unload",
        ("POST", "/api/models/{model_id}/lock"): "model_lock",
        ("POST", "/api/models/{model_id}/unlock"): "model_unlock",
    },
    questions=("/api/models/preview",),
)
