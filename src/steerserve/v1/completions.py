"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from steerserve.settings import Settings
from steerserve.v1 import bodies, intake, render, shape
from steerserve.v1.render import Door


def router(settings: Settings, door: Door) -> APIRouter:
    routes = APIRouter(tags=["inference"])

    @routes.post(
        "/v1/completions",
        responses=bodies.STREAMED,
        openapi_extra=bodies.documented(bodies.CompletionBody),
    )
    async def text_completion(request: Request) -> Response:
        intent = await intake.completion(request, settings, door.generation.engine_of)
        return await render.answer(request, intent, shape.COMPLETION, door)

    return routes
