"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from steerserve.openai import answers, bodies, render, shape
from steerserve.openai.intake import Intake
from steerserve.openai.render import AnswerParts


def router(intake: Intake, parts: AnswerParts) -> APIRouter:
    routes = APIRouter(tags=["inference"])

    @routes.post(
        "/v1/completions",
        responses=answers.streamed(answers.TextCompletion),
        openapi_extra=bodies.documented(bodies.CompletionBody),
    )
    async def text_completion(request: Request) -> Response:
        accepted = await intake.completion(request)
        return await render.answer(request, accepted, shape.COMPLETION, parts)

    return routes
