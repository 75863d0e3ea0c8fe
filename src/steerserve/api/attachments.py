"""/api/saes/attachment and its neighbours: attaching SAEs to the loaded model and detaching them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from steerserve.api.envelope import Envelope, RequestBody, success
from steerserve.control.attachments import Attachments
from steerserve.control.conductor import Conductor
from steerserve.control.saes import Saes
from steerserve.control.steering import Steering


class AttachBody(RequestBody):
    """Where to attach: the decoder layer, counted from 0."""

    layer: Annotated[int, Field(ge=0)]


def attachment_status(conductor: Conductor, steering: Steering) -> dict[str, Any]:
    """The first attached SAE, and whether it steers; all but `is_attached` None where there is none."""
    attached = conductor.attachments()
    if not attached:
        return {
            "is_attached": False,
            "sae_id": None,
            "layer": None,
            "memory_usage_mb": None,
            "steering_enabled": False,
            "monitoring_enabled": False,
            "steering_apply_count": 0,
        }
    first = attached[0]
    resident = conductor.resident
    applied = resident.engine.applied if resident and resident.engine else {}
    return {
        "is_attached": True,
        "sae_id": first.sae_id,
        "layer": first.layer,
        "memory_usage_mb": first.memory_mb,
        "steering_enabled": steering.live.enabled,
        "monitoring_enabled": False,
        "steering_apply_count": applied.get(first.key, 0),
        "layer_module_path": first.layer_module_path,
        "warnings": list(first.warnings),
        "check": first.check,
    }


def router(
    saes: Saes, conductor: Conductor, attachments: Attachments, steering: Steering
) -> APIRouter:
    routes = APIRouter(prefix="/api/saes", tags=["saes"])

    @routes.get("/attachment", response_model=Envelope)
    async def get_attachment() -> Response:
        return success(attachment_status(conductor, steering))

    @routes.get("/{sae_id}/compatibility", response_model=Envelope)
    async def compatibility(sae_id: str, layer: Annotated[int, Query()]) -> Response:
        verdict = attachments.compatibility(await saes.get(sae_id), layer)
        return success(
            {
                "compatible": verdict.is_compatible,
                "errors": list(verdict.errors),
                "warnings": list(verdict.warnings),
            }
        )

    @routes.post("/{sae_id}/attach", response_model=Envelope)
    async def attach_sae(sae_id: str, body: AttachBody) -> Response:
        attached = await attachments.attach(await saes.get(sae_id), body.layer)
        return success(
            {
                "status": "attached",
                "sae_id": attached.sae_id,
                "layer": attached.layer,
                "memory_usage_mb": attached.memory_mb,
                "warnings": list(attached.warnings),
                "layer_module_path": attached.layer_module_path,
                "check": attached.check,
            }
        )

    @routes.post("/{sae_id}/detach", response_model=Envelope)
    async def detach_sae(sae_id: str) -> Response:
        await saes.get(sae_id)
        freed = await attachments.detach(sae_id)
        return success({"status": "detached", "sae_id": sae_id, "memory_freed_mb": freed})

    return routes
