"""/api/health: liveness, readiness, the components, the cards, the metrics, the circuit breakers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from steerserve import __version__
from steerserve.api.answers import Answer
from steerserve.api.envelope import success
from steerserve.control.health.gauges import CONTENT_TYPE, Gauges
from steerserve.control.health.health import Vitals
from steerserve.control.health.views import (
    BackendReport,
    CardReport,
    DetailedHealth,
    Liveness,
    MetricsReport,
    Readiness,
    ServiceVersion,
)
from steerserve.errors import Refusal
from steerserve.logs.lines import Level, LogLines
from steerserve.logs.recent import RecentLines
from steerserve.rules.bounds import LOG_LINES_KEPT
from steerserve.rules.models.breaker import BreakerStatus


def router(vitals: Vitals, gauges: Gauges, lines: RecentLines) -> APIRouter:
    routes = APIRouter(prefix="/api/health", tags=["health"])

    @routes.get("", response_model=Answer[Liveness])
    async def liveness() -> Response:
        return success(vitals.liveness())

    @routes.get("/ready", response_model=Answer[Readiness])
    async def readiness(
        purpose: Annotated[Literal["inference"] | None, Query(alias="for")] = None,
    ) -> Response:
        """With `for=inference`, whether a model serves now. Without it, the service is ready without a model too."""
        state = vitals.inference_readiness() if purpose else await vitals.readiness()
        if state.ready:
            return success(state)
        raise Refusal("NOT_READY", "the service is not ready", **asdict(state))

    @routes.get("/detailed", response_model=Answer[DetailedHealth])
    async def detailed() -> Response:
        return success(await vitals.detailed())

    @routes.get("/gpus", response_model=Answer[CardReport])
    async def gpus() -> Response:
        return success(await vitals.gpus())

    @routes.get("/inference", response_model=Answer[BackendReport])
    async def inference() -> Response:
        return success(vitals.backend())

    @routes.get("/metrics", response_model=Answer[MetricsReport])
    async def metrics() -> Response:
        return success(await gauges.body())

    @routes.get(
        "/metrics/prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def prometheus() -> Response:
        return Response(await gauges.text(), headers={"content-type": CONTENT_TYPE})

    @routes.get("/circuits", response_model=Answer[list[BreakerStatus]])
    async def circuits() -> Response:
        return success(vitals.breakers())

    @routes.post("/circuits/{name}/reset", response_model=Answer[BreakerStatus])
    async def reset(name: str) -> Response:
        return success(vitals.reset(name))

    @routes.get("/log", response_model=Answer[LogLines])
    async def log(
        after: Annotated[int | None, Query(ge=0)] = None,
        level: Level = "DEBUG",
        limit: Annotated[int, Query(ge=1, le=LOG_LINES_KEPT)] = LOG_LINES_KEPT,
    ) -> Response:
        return success(lines.after(after, level, limit))

    @routes.get("/version", response_model=Answer[ServiceVersion])
    async def version() -> Response:
        return success(ServiceVersion(__version__, "steerserve"))

    return routes
