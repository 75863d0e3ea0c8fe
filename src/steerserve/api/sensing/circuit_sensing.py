"""/api/circuit-sensing: which circuits are sensed, and the firings of their edges.

A firing is an observation. It says nothing about causes, and changes no evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.sensing import (
    CircuitSensingChange,
    CircuitSensingState,
    DeletedFirings,
    EdgeFiringRecord,
    EdgeFirings,
)
from steerserve.api.envelope import RowId, success
from steerserve.api.sensing.sensing import Limit, Scope, Since, intents, utc
from steerserve.control.sensing.circuit_sensing import CircuitSensing
from steerserve.control.sensing.sensing_views import CircuitSensingReport, CircuitSensingStatus
from steerserve.rules.sensing.circuit_sensing import Unsensable
from steerserve.rules.sensing.firings import LIMIT_DEFAULT, edge_body
from steerserve.rules.steering import evidence

EdgeKey = Annotated[str | None, Query(max_length=200)]


def router(sensing: CircuitSensing) -> APIRouter:
    routes = APIRouter(prefix="/api/circuit-sensing", tags=["sensing"])

    @routes.get("/status", response_model=Answer[CircuitSensingState])
    async def get_status() -> Response:
        return success(status_body(await sensing.status()))

    @routes.get("/events", response_model=Answer[EdgeFirings])
    async def list_firings(
        circuit_id: Scope = None,
        edge_key: EdgeKey = None,
        limit: Limit = LIMIT_DEFAULT,
        since: Since = None,
    ) -> Response:
        rows, total = await sensing.events(limit, circuit_id, edge_key, utc(since))
        return success({"total": total, "events": [edge_body(row) for row in rows]})

    @routes.get("/events/{event_id}", response_model=Answer[EdgeFiringRecord])
    async def get_firing(event_id: RowId) -> Response:
        return success(edge_body(await sensing.event(event_id)))

    @routes.delete("/events", response_model=Answer[DeletedFirings])
    async def clear_firings(circuit_id: Scope = None) -> Response:
        return success({"deleted": await sensing.recorder.clear(circuit_id)})

    @routes.post("/{circuit_id}/enable", response_model=Answer[CircuitSensingChange])
    async def enable_sensing(circuit_id: str) -> Response:
        return success(_report(circuit_id, await sensing.enable(circuit_id)))

    @routes.post("/{circuit_id}/disable", response_model=Answer[CircuitSensingChange])
    async def disable_sensing(circuit_id: str) -> Response:
        return success(_report(circuit_id, await sensing.enable(circuit_id, enabled=False)))

    return routes


def status_body(now: CircuitSensingStatus) -> dict[str, Any]:
    first = next(iter(now.circuits), None)
    return {
        "note": evidence.OBSERVATION,
        "armed": bool(now.circuits),
        "paused_reason": now.paused_reason,
        "circuit_id": first.id if first else None,
        "circuit_name": first.name if first else None,
        "layers": sorted({layer for circuit in now.circuits for layer in circuit.layers}),
        "sensable_edges": sum(circuit.sensable_edges for circuit in now.circuits),
        "unsensable_edges": _edges(now.unsensable_edges),
        "max_token_lag": now.max_token_lag,
        "last_request_overhead_ms": now.last_request_overhead_ms,
        "truncated_layers": list(now.truncated_layers),
        "requests_sensed": now.requests_sensed,
        "requests_truncated": now.requests_truncated,
        "events_recorded": now.events_recorded,
        "ws_dropped": 0,  # publishing an event inside the service cannot fail
        "ws_throttled": now.ws_throttled,
        "enabled_circuits": intents(now.enabled_circuits),
        "circuits": [
            {
                "circuit_id": circuit.id,
                "circuit_name": circuit.name,
                "layers": list(circuit.layers),
                "sensable_edges": circuit.sensable_edges,
                "unsensable_edges": _edges(circuit.unsensable_edges),
                "max_token_lag": circuit.max_token_lag,
            }
            for circuit in now.circuits
        ],
    }


def _report(circuit_id: str, report: CircuitSensingReport) -> dict[str, Any]:
    return {
        "circuit_id": circuit_id,
        "enabled": report.enabled,
        "armed": report.armed,
        "unsensable_edges": _edges(report.unsensable_edges),
        "message": report.message,
    }


def _edges(unsensable: Iterable[Unsensable]) -> list[dict[str, Any]]:
    return [asdict(edge) for edge in unsensable]
