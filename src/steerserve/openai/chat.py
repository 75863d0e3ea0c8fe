"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from steerserve.openai import answers, bodies, render, shape
from steerserve.openai.intake import Intake
from steerserve.openai.render import AnswerParts


def router(intake: Intake, parts: AnswerParts) -> APIRouter:
    routes = APIRouter(tags=["inference"])

    @routes.post(
        "/v1/chat/completions",
        responses=answers.streamed(answers.ChatCompletion),
        openapi_extra=bodies.documented(bodies.ChatBody),
    )
    async def chat_completion(request: Request) -> Response:
        accepted = await intake.chat(request)
        return await render.answer(request, accepted, shape.CHAT, parts)

    return routes
