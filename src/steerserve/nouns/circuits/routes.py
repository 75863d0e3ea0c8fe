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
from steerserve.control.metrics import note_object
from steerserve.nouns.circuits.form import (
    ActivatedCircuit,
    CircuitDetailRecord,
    CircuitList,
    CircuitRecord,
    ClaimedLayer,
    DeactivatedCircuit,
    DeletedCircuit,
    ImportedCircuitRecord,
    RedialledCircuit,
    ReleasedClaims,
)
from steerserve.nouns.circuits.owner import Circuits
from steerserve.nouns.claims import rules as claim_rules
from steerserve.nouns.claims.owner import LayerClaims
from steerserve.nouns.clusters.owner import OnConflict
from steerserve.rules.steering import evidence

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


def router(
    circuits: Circuits, claims: LayerClaims, settled: Callable[[], Awaitable[None]]
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
            page = await circuits.page(
                min_rung=min_rung, is_serveable=serveable, limit=limit, offset=offset
            )
            return await asyncio.to_thread(success, page)

    @routes.get("/active", response_model=Answer[list[CircuitRecord] | CircuitRecord | None])
    async def get_active(single: bool = False) -> Response:
        """The circuits that serve. With `single=true` the first of them, or null."""
        active = await circuits.active()
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
        released = await circuits.release(circuit_id)
        note_object(circuit_id=released.circuit_id)
        return success(released)

    @routes.post(
        "/import",
        response_model=Answer[ImportedCircuitRecord] | RefusedAnswer,
        openapi_extra=_DOCUMENT,
    )
    async def import_circuit(request: Request, on_conflict: OnConflict = "rename") -> Response:
        """Save a circuit document. A document of another kind, or one that does not match its form, is refused with
        status 200 and `success: false`."""
        circuit = await circuits.add_body(await import_body(request), on_conflict)
        note_object(circuit_id=circuit.id)
        return success(circuit)

    @routes.put("/active/intensity", response_model=Answer[RedialledCircuit] | RefusedAnswer)
    async def set_intensity(body: CircuitIntensityBody) -> Response:
        """Set the intensity of the one circuit that serves."""
        note_object(intensity=body.intensity)
        done = await circuits.set_intensity(
            body.intensity, reapply=body.reapply, acknowledged=body.acknowledge_unvalidated
        )
        return success(done)

    @routes.post("/{circuit_id}/activate", response_model=Answer[ActivatedCircuit] | RefusedAnswer)
    async def activate(
        circuit_id: str,
        acknowledge_unvalidated: bool = False,
        allow_layer_overlap: bool = False,
    ) -> Response:
        """Serve a circuit. Evidence below rung 2 needs `acknowledge_unvalidated=true`, and a layer that another circuit
        holds needs `allow_layer_overlap=true`."""
        done = await circuits.activate(
            circuit_id,
            acknowledged=acknowledge_unvalidated,
            allows_overlap=allow_layer_overlap,
        )
        await settled()
        return success(done)

    @routes.post("/{circuit_id}/deactivate", response_model=Answer[DeactivatedCircuit])
    async def deactivate(circuit_id: str) -> Response:
        """Stop serving a circuit. Values of other owners stay."""
        ended = await circuits.deactivate(circuit_id)
        await settled()
        return success(ended)

    @routes.get("/{circuit_id}", response_model=Answer[CircuitDetailRecord])
    async def get_circuit(circuit_id: str) -> Response:
        """A circuit with its members and edges."""
        return success(await circuits.detail(circuit_id))

    @routes.delete("/{circuit_id}", response_model=Answer[DeletedCircuit])
    async def delete_circuit(circuit_id: str) -> Response:
        """Delete a circuit. A circuit that serves is deactivated first."""
        await circuits.remove(circuit_id)
        return success(DeletedCircuit(circuit_id, True))

    @routes.get("/{circuit_id}/export", response_model=Answer[dict[str, Any]])
    async def export_circuit(circuit_id: str) -> Response:
        """The document of a circuit, as it was imported."""
        return stored(await circuits.document(circuit_id))

    return routes
