"""POST /v1/embeddings."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from steerserve.openai import answers, bodies, render
from steerserve.openai.intake import Intake
from steerserve.openai.render import AnswerParts


def router(intake: Intake, parts: AnswerParts) -> APIRouter:
    routes = APIRouter(tags=["inference"])

    @routes.post(
        "/v1/embeddings",
        responses=answers.answered(answers.EmbeddingList),
        openapi_extra=bodies.documented(bodies.EmbeddingBody),
    )
    async def embeddings(request: Request) -> Response:
        return await render.embed(request, await intake.embedding(request), parts)

    return routes
