"""GET /v1/models and /v1/models/{id}: what requests may name."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from steerserve.control.requests.generate import Generation
from steerserve.errors import Refusal


def router(generation: Generation) -> APIRouter:
    routes = APIRouter(tags=["inference"])

    @routes.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [entry(row) for row in await generation.models()]}

    @routes.get("/v1/models/{name:path}")
    async def get_model(name: str) -> dict[str, Any]:
        if not name:
            raise Refusal("NOT_FOUND", "no route '/v1/models/'")
        return entry(await generation.find(name))

    return routes


def entry(row: Any) -> dict[str, Any]:
    return {
        "id": row.name,
        "object": "model",
        "created": int(row.created_at.timestamp()),
        "owned_by": row.repo_id or "local",
    }
