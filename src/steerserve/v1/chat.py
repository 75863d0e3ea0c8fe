"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from steerserve.settings import Settings
from steerserve.v1 import intake, render
from steerserve.v1.render import Door


def router(settings: Settings, door: Door) -> APIRouter:
    routes = APIRouter(tags=["inference"])

    @routes.post("/v1/chat/completions", openapi_extra=intake.documented(intake.ChatBody))
    async def chat_completion(request: Request) -> Response:
        intent = await intake.chat(request, settings)
        return await render.answer(request, intent, render.CHAT, door)

    return routes
