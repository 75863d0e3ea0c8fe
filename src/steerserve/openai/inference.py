"""The routes that answer with a model: chats, text completions, responses and embeddings."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from steerserve.openai import answers, bodies, render, responses, shape
from steerserve.openai.intake import Intake
from steerserve.openai.render import AnswerParts
from steerserve.openai.response_body import named_as_sent


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

    @routes.post(
        "/v1/completions",
        responses=answers.streamed(answers.TextCompletion),
        openapi_extra=bodies.documented(bodies.CompletionBody),
    )
    async def text_completion(request: Request) -> Response:
        accepted = await intake.completion(request)
        return await render.answer(request, accepted, shape.COMPLETION, parts)

    @routes.post(
        "/v1/responses",
        responses=answers.streamed(answers.ResponseObject),
        openapi_extra=bodies.documented(bodies.ResponseBody),
    )
    async def response(request: Request) -> Response:
        with named_as_sent():
            accepted, body = await intake.response(request)
            return await responses.answer(request, accepted, body, parts)

    @routes.post(
        "/v1/embeddings",
        responses=answers.answered(answers.EmbeddingList),
        openapi_extra=bodies.documented(bodies.EmbeddingBody),
    )
    async def embeddings(request: Request) -> Response:
        return await render.embed(request, await intake.embedding(request), parts)

    return routes
