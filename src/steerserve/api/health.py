"""/api/health: liveness, readiness, the components and the queue."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from steerserve import __version__
from steerserve.api.envelope import Envelope, success
from steerserve.control.vitals import Vitals
from steerserve.errors import Refusal


def router(vitals: Vitals) -> APIRouter:
    routes = APIRouter(prefix="/api/health", tags=["health"])

    @routes.get("", response_model=Envelope)
    async def liveness() -> Response:
        return success(vitals.liveness())

    @routes.get("/ready", response_model=Envelope)
    async def readiness() -> Response:
        state = await vitals.readiness()
        if state["ready"]:
            return success(state)
        raise Refusal("NOT_READY", "the service is not ready", **state)

    @routes.get("/detailed", response_model=Envelope)
    async def detailed() -> Response:
        return success(await vitals.detailed())

    @routes.get("/inference", response_model=Envelope)
    async def inference() -> Response:
        return success(vitals.backend())

    @routes.get("/version", response_model=Envelope)
    async def version() -> Response:
        return success({"version": __version__, "app": "steerserve"})

    return routes
