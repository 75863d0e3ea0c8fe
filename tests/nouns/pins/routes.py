"""/api/pins: the pinned features."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import RequestBody, success

from .form import Pin, PinList
from .owner import Pins
from .rules import NOTES


class PinBody(RequestBody):
    """Why a feature is pinned."""

    note: Annotated[str, Field(max_length=NOTES)]


def router(pins: Pins) -> APIRouter:
    routes = APIRouter(prefix="/api/pins", tags=["pins"])

    @routes.get("", response_model=Answer[PinList])
    async def list_pins() -> Response:
        return success(await pins.all())

    @routes.put("/{sae_id}/{index}", response_model=Answer[Pin])
    async def set_pin(sae_id: str, index: int, body: PinBody) -> Response:
        return success(await pins.set(Pin(sae_id, index, body.note)))

    return routes
