"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from steerserve.settings import Settings
from steerserve.v1 import intake, render
from steerserve.v1.render import Door


def router(settings: Settings, door: Door) -> APIRouter:
    routes = APIRouter(tags=["inference"])

    @routes.post("/v1/completions", openapi_extra=intake.documented(intake.CompletionBody))
    async def text_completion(request: Request) -> Response:
        intent = await intake.completion(request, settings)
        return await render.answer(request, intent, render.COMPLETION, door)

    return routes
