"""/api/circuit-sensing: which circuits are sensed, and the firings of their edges.

A firing is an observation. It says nothing about causes, and changes no evidence.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import RowId, success
from steerserve.control.sensing.sensing_views import DeletedFirings
from steerserve.nouns.circuit_sensing.form import (
    CircuitSensingChange,
    CircuitSensingState,
    EdgeFirings,
)
from steerserve.nouns.circuit_sensing.owner import CircuitSensing
from steerserve.nouns.cluster_sensing.routes import Limit, Scope, Since, utc
from steerserve.rules.sensing.firings import LIMIT_DEFAULT, EdgeFiringRecord

EdgeKey = Annotated[str | None, Query(max_length=200)]


def router(sensing: CircuitSensing) -> APIRouter:
    routes = APIRouter(prefix="/api/circuit-sensing", tags=["sensing"])

    @routes.get("/status", response_model=Answer[CircuitSensingState])
    async def get_status() -> Response:
        return success(await sensing.status())

    @routes.get("/events", response_model=Answer[EdgeFirings])
    async def list_firings(
        circuit_id: Scope = None,
        edge_key: EdgeKey = None,
        limit: Limit = LIMIT_DEFAULT,
        since: Since = None,
    ) -> Response:
        return success(await sensing.events(limit, circuit_id, edge_key, utc(since)))

    @routes.get("/events/{event_id}", response_model=Answer[EdgeFiringRecord])
    async def get_firing(event_id: RowId) -> Response:
        return success(await sensing.event(event_id))

    @routes.delete("/events", response_model=Answer[DeletedFirings])
    async def clear_firings(circuit_id: Scope = None) -> Response:
        return success(DeletedFirings(await sensing.recorder.clear(circuit_id)))

    @routes.post("/{circuit_id}/enable", response_model=Answer[CircuitSensingChange])
    async def enable_sensing(circuit_id: str) -> Response:
        return success(await sensing.enable(circuit_id))

    @routes.post("/{circuit_id}/disable", response_model=Answer[CircuitSensingChange])
    async def disable_sensing(circuit_id: str) -> Response:
        return success(await sensing.enable(circuit_id, enabled=False))

    return routes
