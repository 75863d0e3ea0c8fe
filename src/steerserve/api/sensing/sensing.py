"""/api/sensing: which cluster is sensed, and the events in which its members fired together."""

from __future__ import annotations

from datetime import MINYEAR, UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.sensing import (
    ClusterFiringRecord,
    ClusterFirings,
    ClusterSensingReport,
    DeletedFirings,
    QuorumChange,
    SensingChange,
)
from steerserve.api.envelope import RequestBody, RowId, success, unambiguous
from steerserve.control.sensing.sensing import ClusterSensing
from steerserve.control.sensing.sensing_views import SensingIntent, SensingStatus
from steerserve.rules.sensing.firings import LIMIT_DEFAULT, LIMIT_MAXIMUM, cluster_body
from steerserve.rules.steering import evidence

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAXIMUM)]
Since = Annotated[datetime | None, Query(description="Only events that are strictly newer.")]
Scope = Annotated[str | None, Query(max_length=200)]


class SensingConfig(RequestBody):
    """The quorum of a cluster; null restores the default."""

    min_k: Annotated[int, Field(ge=1, le=2**31 - 1)] | None


def router(sensing: ClusterSensing) -> APIRouter:
    routes = APIRouter(tags=["sensing"])

    @routes.get("/api/sensing/status", response_model=Answer[ClusterSensingReport])
    async def status() -> Response:
        return success(status_body(await sensing.status()))

    @routes.get("/api/sensing/events", response_model=Answer[ClusterFirings])
    async def events(
        profile_id: Scope = None, limit: Limit = LIMIT_DEFAULT, since: Since = None
    ) -> Response:
        rows, total = await sensing.events(limit, profile_id, utc(since))
        return success({"events": [cluster_body(row) for row in rows], "total": total})

    @routes.get("/api/sensing/events/{event_id}", response_model=Answer[ClusterFiringRecord])
    async def event(event_id: RowId) -> Response:
        return success(cluster_body(await sensing.event(event_id)))

    @routes.delete("/api/sensing/events", response_model=Answer[DeletedFirings])
    async def clear(profile_id: Scope = None) -> Response:
        return success({"deleted": await sensing.recorder.clear(profile_id)})

    @routes.post("/api/sensing/{profile_id}/enable", response_model=Answer[SensingChange])
    async def enable(profile_id: str) -> Response:
        armed = await sensing.enable(profile_id)
        return success({"profile_id": profile_id, "sensing_enabled": True, "armed": armed})

    @routes.post("/api/sensing/{profile_id}/disable", response_model=Answer[SensingChange])
    async def disable(profile_id: str) -> Response:
        armed = await sensing.enable(profile_id, enabled=False)
        return success({"profile_id": profile_id, "sensing_enabled": False, "armed": armed})

    @routes.put(
        "/api/sensing/{profile_id}/config",
        response_model=Answer[QuorumChange],
        dependencies=[Depends(unambiguous)],
    )
    async def configure(profile_id: str, body: SensingConfig) -> Response:
        report = await sensing.configure(profile_id, body.min_k)
        return success(
            {
                "profile_id": profile_id,
                "min_k": report.min_k,
                "effective_min_k": report.effective_min_k,
                "armed": report.armed,
            }
        )

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


def intents(enabled: tuple[SensingIntent, ...]) -> list[dict[str, Any]]:
    return [{"id": one.id, "name": one.name, "is_active": one.is_active} for one in enabled]


def status_body(now: SensingStatus) -> dict[str, Any]:
    return {
        "note": evidence.OBSERVATION,
        "armed": now.armed,
        "profile_id": now.profile_id,
        "profile_name": now.profile_name,
        "member_count": now.member_count,
        "sensable_count": now.sensable_count,
        "min_k": now.min_k,
        "threshold_mode": now.threshold_mode,
        "context_tokens": now.context_tokens,
        "last_request_overhead_ms": now.last_request_overhead_ms,
        "overhead_warn_threshold_ms": now.overhead_warn_threshold_ms,
        "events_recorded_since_start": now.events_recorded_since_start,
        "ws_events_dropped": 0,  # publishing an event inside the service cannot fail
        "ws_events_throttled": now.ws_events_throttled,
        "retention": {
            "max_events_per_cluster": now.max_events_per_cluster,
            "max_age_days": now.max_age_days,
        },
        "enabled_clusters": intents(now.enabled_clusters),
    }
