"""GET /v1/models and /v1/models/{id}: the models that requests may name."""

from __future__ import annotations

from fastapi import APIRouter

from steerserve.control.models.served import ServedModel, ServedModels
from steerserve.errors import Refusal
from steerserve.openai import answers


def router(models: ServedModels) -> APIRouter:
    routes = APIRouter(tags=["inference"])

    @routes.get("/v1/models", response_model=None, responses=answers.answered(answers.ModelEntries))
    async def list_models() -> dict[str, object]:
        return {"object": "list", "data": [entry(model) for model in await models.listed()]}

    @routes.get(
        "/v1/models/{name:path}",
        response_model=None,
        responses=answers.answered(answers.ModelEntry),
    )
    async def get_model(name: str) -> dict[str, object]:
        if not name:
            raise Refusal("NOT_FOUND", "no route '/v1/models/'")
        return entry(await models.find(name))

    return routes


def entry(model: ServedModel) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": int(model.created_at.timestamp()),
        "owned_by": model.owner,
    }
