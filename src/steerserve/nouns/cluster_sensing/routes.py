"""/api/sensing: which cluster is sensed, and the events in which its members fired together."""

from __future__ import annotations

from datetime import MINYEAR, UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import RequestBody, RowId, success
from steerserve.control.sensing.sensing_views import DeletedFirings
from steerserve.nouns.cluster_sensing.form import (
    ClusterFirings,
    ClusterSensingReport,
    QuorumChange,
    SensingChange,
)
from steerserve.nouns.cluster_sensing.owner import ClusterSensing
from steerserve.rules.sensing.firings import LIMIT_DEFAULT, LIMIT_MAXIMUM, ClusterFiringRecord

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAXIMUM)]
Since = Annotated[datetime | None, Query(description="Only events that are strictly newer.")]
Scope = Annotated[str | None, Query(max_length=200)]


class SensingConfig(RequestBody):
    """The quorum of a cluster; null stands for all sensable members, also over the quorum of the document."""

    min_k: Annotated[int, Field(ge=1, le=2**31 - 1)] | None


def router(sensing: ClusterSensing) -> APIRouter:
    routes = APIRouter(tags=["sensing"])

    @routes.get("/api/sensing/status", response_model=Answer[ClusterSensingReport])
    async def status() -> Response:
        return success(await sensing.status())

    @routes.get("/api/sensing/events", response_model=Answer[ClusterFirings])
    async def events(
        profile_id: Scope = None, limit: Limit = LIMIT_DEFAULT, since: Since = None
    ) -> Response:
        return success(await sensing.events(limit, profile_id, utc(since)))

    @routes.get("/api/sensing/events/{event_id}", response_model=Answer[ClusterFiringRecord])
    async def event(event_id: RowId) -> Response:
        return success(await sensing.event(event_id))

    @routes.delete("/api/sensing/events", response_model=Answer[DeletedFirings])
    async def clear(profile_id: Scope = None) -> Response:
        return success(DeletedFirings(await sensing.recorder.clear(profile_id)))

    @routes.post("/api/sensing/{profile_id}/enable", response_model=Answer[SensingChange])
    async def enable(profile_id: str) -> Response:
        return success(await sensing.enable(profile_id))

    @routes.post("/api/sensing/{profile_id}/disable", response_model=Answer[SensingChange])
    async def disable(profile_id: str) -> Response:
        return success(await sensing.enable(profile_id, enabled=False))

    @routes.put(
        "/api/sensing/{profile_id}/config",
        response_model=Answer[QuorumChange],
    )
    async def configure(profile_id: str, body: SensingConfig) -> Response:
        return success(await sensing.configure(profile_id, body.min_k))

    return routes


def utc(since: datetime | None) -> datetime | None:
    """A time from a query. A time without a zone is UTC. A time of no year that UTC has is the nearest one that is."""
    if since is None:
        return None
    try:
        return since.astimezone(UTC) if since.tzinfo else since.replace(tzinfo=UTC)
    except OverflowError:
        nearest = datetime.min if since.year == MINYEAR else datetime.max
        return nearest.replace(tzinfo=UTC)
