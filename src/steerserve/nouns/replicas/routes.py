"""/api/models/{id}/replicas: the replicas of the loaded model, and changes of them while the model serves."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import ModelId, RequestBody, success
from steerserve.control.residency.replicas import Replicas
from steerserve.nouns.models.owner import Models
from steerserve.rules.residency.replicas import COUNT_MAXIMUM, ReplicaSet

ReplicaName = Annotated[str, Path(min_length=1, max_length=100)]


class ReplicaCount(RequestBody):
    """How many replicas shall serve the model."""

    count: Annotated[int, Field(ge=1, le=COUNT_MAXIMUM)]


def router(models: Models, replicas: Replicas) -> APIRouter:
    routes = APIRouter(prefix="/api/models/{model_id}/replicas", tags=["models"])

    @routes.get("", response_model=Answer[ReplicaSet])
    async def list_replicas(model_id: ModelId) -> Response:
        await models.get(model_id)
        return success(replicas.of_model(model_id))

    @routes.put("", response_model=Answer[ReplicaSet], status_code=202)
    async def resize_replicas(model_id: ModelId, body: ReplicaCount) -> Response:
        await models.get(model_id)
        return success(await replicas.resize(model_id, body.count), 202)

    @routes.post("/{name}/drain", response_model=Answer[ReplicaSet], status_code=202)
    async def drain_replica(model_id: ModelId, name: ReplicaName) -> Response:
        await models.get(model_id)
        return success(await replicas.drain(model_id, name), 202)

    @routes.post("/{name}/replace", response_model=Answer[ReplicaSet], status_code=202)
    async def replace_replica(model_id: ModelId, name: ReplicaName) -> Response:
        await models.get(model_id)
        return success(await replicas.replace(model_id, name), 202)

    return routes
