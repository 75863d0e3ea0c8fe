"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from steerserve.settings import Settings
from steerserve.v1 import bodies, intake, render, shape
from steerserve.v1.render import Door


def router(settings: Settings, door: Door) -> APIRouter:
    routes = APIRouter(tags=["inference"])

    @routes.post(
        "/v1/chat/completions",
        responses=bodies.STREAMED,
        openapi_extra=bodies.documented(bodies.ChatBody),
    )
    async def chat_completion(request: Request) -> Response:
        intent = await intake.chat(request, settings, door.generation.engine_of)
        return await render.answer(request, intent, shape.CHAT, door)

    return routes
