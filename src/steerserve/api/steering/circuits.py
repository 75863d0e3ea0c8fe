"""/api/circuits: interventions on several layers, with their evidence. Several of them may serve at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer, RefusedAnswer
from steerserve.api.envelope import PageLimit, PageOffset, RequestBody, import_body, stored, success
from steerserve.api.steering.steering import texts
from steerserve.control.metrics import note_object
from steerserve.control.steering.circuit_serving import CircuitServing
from steerserve.control.steering.circuit_state import CircuitActivation, CircuitDetail, CircuitView
from steerserve.control.steering.circuit_views import (
    ActivatedCircuit,
    CircuitDetailRecord,
    CircuitEdgeEnd,
    CircuitEdgeRecord,
    CircuitHazard,
    CircuitList,
    CircuitRecord,
    ClaimedLayer,
    DeactivatedCircuit,
    DeletedCircuit,
    HazardEnd,
    ImportedCircuitRecord,
    LayerVerdict,
    RedialledCircuit,
    ReleasedClaims,
    SteeredMember,
)
from steerserve.control.steering.circuits import Circuits, OnNameConflict
from steerserve.control.steering.claims import LayerClaims
from steerserve.rules.steering import claims as claim_rules
from steerserve.rules.steering import evidence
from steerserve.rules.steering.hazards import Hazard

_DOCUMENT = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": "a mistudio.circuit-definition, alone or inside the `data` of an export",
                }
            }
        },
    }
}


class CircuitIntensityBody(RequestBody):
    """The new intensity of the circuit that serves. Without `reapply` it is only saved."""

    intensity: Annotated[float, Field(ge=0, le=2)]
    reapply: bool = True
    acknowledge_unvalidated: bool = False


def record(view: CircuitView) -> CircuitRecord:
    """A circuit in the form in which every list answers it."""
    return CircuitRecord(**_fields(view))


def _fields(view: CircuitView) -> dict[str, Any]:
    """The fields that every answer about one circuit has."""
    row = view.row
    return {
        "id": row.id,
        "name": row.name,
        "description": row.description,
        "rung": row.rung,
        "rung_language": evidence.language(row.rung),
        "rung_next_step": evidence.next_step(row.rung),
        "validated": evidence.is_validated(row.rung),
        "edge_count": row.outline.edge_count,
        "layers": row.outline.layers,
        "serveable": view.is_serveable,
        "is_active": view.served is not None,
        "serving_mode": view.mode,
        "intensity": view.intensity,
        "steering": view.is_steering,
        "composed_layers": view.composed_layers,
        "per_sae_warnings": [
            LayerVerdict(bound.layer, bound.sae_id, bound.verdict, bound.reason)
            for bound in view.bindings
        ],
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def detailed(detail: CircuitDetail) -> CircuitDetailRecord:
    """A circuit with the parts of its document that the service uses."""
    return CircuitDetailRecord(
        **_fields(detail.view),
        dial_range=detail.dial_range,
        sensing_enabled=detail.view.row.sensing_enabled,
        members=[
            SteeredMember(layer, member.feature_idx, member.label, member.value)
            for layer, of_layer in detail.circuit.members.items()
            for member in of_layer
        ],
        edges=[
            CircuitEdgeRecord(
                edge_key=edge.key,
                up=CircuitEdgeEnd(edge.up.layer, edge.up.feature_idx),
                down=CircuitEdgeEnd(edge.down.layer, edge.down.feature_idx),
                edge_type=edge.kind,
                rung=edge.rung,
                rung_language=evidence.language(edge.rung),
                effect_size=edge.effect_size,
                weight_prior=edge.weight_prior,
            )
            for edge in detail.circuit.edges
        ],
        hazards=[_hazard(one) for one in detail.hazards],
    )


def activated(done: CircuitActivation) -> ActivatedCircuit:
    shared = {"composed_layers": done.shared, claim_rules.OVERRIDDEN: True} if done.shared else {}
    return ActivatedCircuit(
        **(_fields(done.view) | shared),
        bound_layers=done.bound_layers,
        slice_layer=done.slice_layer,
        applied_per_layer=None
        if done.applied is None
        else {str(layer): texts(values) for layer, values in done.applied.items()},
        hazards=[_hazard(one) for one in done.hazards],
        warnings=done.warnings,
        acknowledged_unvalidated=done.acknowledged,
    )


def _hazard(one: Hazard) -> CircuitHazard:
    up, down = one.edge.up, one.edge.down
    return CircuitHazard(
        kind=one.kind,
        edge_key=one.edge.key,
        up=HazardEnd(up.layer, up.feature_idx, one.up_value),
        down=HazardEnd(down.layer, down.feature_idx, one.down_value),
        label=one.label,
    )


def router(
    circuits: Circuits,
    serving: CircuitServing,
    claims: LayerClaims,
    settled: Callable[[], Awaitable[None]],
) -> APIRouter:
    """The routes. An activation and a deactivation are answered once they are `settled`: sensing has followed them."""
    routes = APIRouter(prefix="/api/circuits", tags=["circuits"])
    # one page at a time, so that many requests for large pages take the memory of one
    listing = asyncio.Lock()

    @routes.get("", response_model=Answer[CircuitList])
    async def list_circuits(
        min_rung: Annotated[int, Query(ge=0, le=evidence.HIGHEST)] = 0,
        serveable: bool | None = None,
        limit: PageLimit = 50,
        offset: PageOffset = 0,
    ) -> Response:
        """Imported circuits, newest first. `serveable` asks for those that the attached SAEs can, or cannot, serve
        whole."""
        async with listing:
            page = await circuits.list(
                min_rung=min_rung, is_serveable=serveable, limit=limit, offset=offset
            )

            def answer() -> Response:
                records = [record(view) for view in page.circuits]
                return success(CircuitList(records, page.active_id, page.total))

            return await asyncio.to_thread(answer)

    @routes.get("/active", response_model=Answer[list[CircuitRecord] | CircuitRecord | None])
    async def get_active(single: bool = False) -> Response:
        """The circuits that serve. With `single=true` the first of them, or null."""
        active = [record(view) for view in await circuits.active()]
        if single:
            return success(active[0] if active else None)
        return success(active)

    @routes.get("/claims", response_model=Answer[list[ClaimedLayer]])
    async def list_claims() -> Response:
        """Which circuit holds which layer."""
        held = await claims.current()
        composed = claim_rules.composed(held)
        return success(
            [
                ClaimedLayer(
                    layer=claim.layer,
                    circuit_id=claim.circuit_id,
                    circuit_name=claim.circuit_name,
                    composed=claim.layer in composed,
                    steering_keys=sorted(claim.features),
                )
                for claim in held
            ]
        )

    @routes.post("/claims/release", response_model=Answer[ReleasedClaims])
    async def release_claims(circuit_id: Annotated[str, Query()]) -> Response:
        """Release the layers that one circuit holds."""
        released = await serving.release(circuit_id)
        note_object(circuit_id=released.circuit_id)
        return success(released)

    @routes.post(
        "/import",
        response_model=Answer[ImportedCircuitRecord] | RefusedAnswer,
        openapi_extra=_DOCUMENT,
    )
    async def import_circuit(request: Request, on_conflict: OnNameConflict = "rename") -> Response:
        """Save a circuit document. A document of another kind, or one that does not match its form, is refused with
        status 200 and `success: false`."""
        view, warnings = await circuits.add_body(await import_body(request), on_conflict)
        note_object(circuit_id=view.row.id)
        return success(ImportedCircuitRecord(**_fields(view), warnings=warnings))

    @routes.put("/active/intensity", response_model=Answer[RedialledCircuit] | RefusedAnswer)
    async def set_intensity(body: CircuitIntensityBody) -> Response:
        """Set the intensity of the one circuit that serves."""
        note_object(intensity=body.intensity)
        done = await serving.set_intensity(
            body.intensity, reapply=body.reapply, acknowledged=body.acknowledge_unvalidated
        )
        return success(
            RedialledCircuit(
                **_fields(done.view),
                reapplied=done.reapplied,
                superseded=done.superseded,
                warnings=done.warnings,
            )
        )

    @routes.post("/{circuit_id}/activate", response_model=Answer[ActivatedCircuit] | RefusedAnswer)
    async def activate(
        circuit_id: str,
        acknowledge_unvalidated: bool = False,
        allow_layer_overlap: bool = False,
    ) -> Response:
        """Serve a circuit. Evidence below rung 2 needs `acknowledge_unvalidated=true`, and a layer that another circuit
        holds needs `allow_layer_overlap=true`."""
        done = await serving.activate(
            circuit_id,
            acknowledged=acknowledge_unvalidated,
            allows_overlap=allow_layer_overlap,
        )
        await settled()
        return success(activated(done))

    @routes.post("/{circuit_id}/deactivate", response_model=Answer[DeactivatedCircuit])
    async def deactivate(circuit_id: str) -> Response:
        """Stop serving a circuit. Values of other owners stay."""
        view, was_serving = await serving.deactivate(circuit_id)
        await settled()
        return success(DeactivatedCircuit(**_fields(view), cleared_steering=was_serving))

    @routes.get("/{circuit_id}", response_model=Answer[CircuitDetailRecord])
    async def get_circuit(circuit_id: str) -> Response:
        """A circuit with its members and edges."""
        return success(detailed(await circuits.detail(circuit_id)))

    @routes.delete("/{circuit_id}", response_model=Answer[DeletedCircuit])
    async def delete_circuit(circuit_id: str) -> Response:
        """Delete a circuit. A circuit that serves is deactivated first."""
        await serving.remove(circuit_id)
        return success(DeletedCircuit(circuit_id, True))

    @routes.get("/{circuit_id}/export", response_model=Answer[dict[str, Any]])
    async def export_circuit(circuit_id: str) -> Response:
        """The document of a circuit, as it was imported."""
        return stored(await circuits.document(circuit_id))

    return routes
