"""Runs a line of a batch through the route of its endpoint, as a request that yields to all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import cast

import structlog
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from steerserve.control.inference.batch_run import Answered
from steerserve.control.metrics import CURRENT, RequestRecord
from steerserve.control.models.served import ServedModel
from steerserve.errors import Refusal
from steerserve.openai import render
from steerserve.openai.intake import CLIENT, Intake
from steerserve.rules import clients
from steerserve.rules.inference import fields
from steerserve.rules.inference.batches import ENDPOINTS

log = structlog.get_logger(__name__)
Answer = Callable[[Request], Awaitable[Response]]

_HEADERS = ((b"content-type", b"application/json"), (b"x-service-load-policy", b"refuse"))
"""The owner of the batches loads its model, so no line does."""


class BatchLines:
    """Runs lines. `router` has the endpoints."""

    def __init__(self, router: APIRouter, intake: Intake) -> None:
        self._answers: dict[str, Answer] = {
            route.path: cast(Answer, route.endpoint)
            for route in router.routes
            if isinstance(route, APIRoute) and route.path in ENDPOINTS
        }
        self._intake = intake

    async def model(self, name: str) -> tuple[ServedModel, str | None]:
        model, profile = await self._intake.model(name)
        if isinstance(model, Refusal):
            raise model
        return model, profile

    async def answer(
        self, endpoint: str, body: bytes, client: str, is_strict: bool | None
    ) -> Answered:
        # its refusals are those of no client, so they are not counted
        token = CURRENT.set(RequestRecord(in_background=True))
        try:
            response = await self._answers[endpoint](_request(endpoint, body, client, is_strict))
        except Refusal as refusal:
            return _refused(refusal)
        except Exception:
            log.exception("batch_line_failed", endpoint=endpoint)
            why = "an error inside the service; its log says more"
            return _refused(Refusal("INTERNAL_ERROR", why))
        finally:
            CURRENT.reset(token)
        ignored = fields.locations(response.headers.get("x-service-ignored-fields"))
        return Answered(response.status_code, bytes(response.body), ignored=ignored)


def _refused(refusal: Refusal) -> Answered:
    return Answered(refusal.row.v1, render.error_bytes(refusal), refusal)


def _request(endpoint: str, body: bytes, client: str, is_strict: bool | None) -> Request:
    strict = [] if is_strict is None else [(b"x-service-strict", str(is_strict).lower().encode())]
    scope: MutableMapping[str, object] = {
        "type": "http",
        "method": "POST",
        "path": endpoint,
        "query_string": b"",
        "headers": [*_HEADERS, *strict],
        "client": None,
        CLIENT: clients.in_background(client),
    }
    parts: list[MutableMapping[str, object]] = [{"type": "http.request", "body": body}]

    async def receive() -> MutableMapping[str, object]:
        if parts:
            return parts.pop()
        # nobody goes away before the answer
        gone: asyncio.Future[MutableMapping[str, object]] = (
            asyncio.get_running_loop().create_future()
        )
        return await gone

    return Request(scope, receive)
