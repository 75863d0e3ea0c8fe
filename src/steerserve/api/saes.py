"""/api/saes: registered SAEs, and attaching them to the loaded model."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from steerserve.api.envelope import Envelope, RequestBody, success
from steerserve.control.attachments import Attachments
from steerserve.control.catalog import Registry
from steerserve.control.conductor import Conductor
from steerserve.control.steering import Steering
from steerserve.control.vitals import iso
from steerserve.errors import Refusal

MIB = 1 << 20


class NewSae(RequestBody):
    """An SAE to register: the folder `local_path`, in place."""

    local_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None


class AttachBody(RequestBody):
    """Where to attach: the decoder layer, counted from 0."""

    layer: Annotated[int, Field(ge=0)]


def record(row: Any) -> dict[str, Any]:
    """An SAE's metadata."""
    width = f"{row.d_sae // 1024}k" if row.d_sae % 1024 == 0 else str(row.d_sae)
    return {
        "id": row.id,
        "repository_id": row.repository_id,
        "revision": row.revision,
        "local_path": row.local_path,
        "name": row.name,
        "format": row.format,
        "architecture": row.architecture,
        "d_in": row.d_in,
        "d_sae": row.d_sae,
        "dtype": row.dtype,
        "hook_name": row.hook_name,
        "trained_on": row.trained_on,
        "trained_layer": row.trained_layer,
        "width": width,
        "average_l0": row.average_l0,
        "file_size_bytes": row.file_size_bytes,
        "status": row.status,
        "error_message": row.error_message,
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
    }


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
    registry: Registry, conductor: Conductor, attachments: Attachments, steering: Steering
) -> APIRouter:
    routes = APIRouter(prefix="/api/saes", tags=["saes"])

    @routes.get("", response_model=Envelope)
    async def list_saes() -> Response:
        records = [record(row) for row in await registry.saes()]
        attachment = attachment_status(conductor, steering)
        return success({"saes": records, "total": len(records), "attachment": attachment})

    @routes.post("/download", response_model=Envelope, status_code=202)
    async def download_sae(body: NewSae) -> Response:
        if body.local_path is None:
            raise Refusal(
                "VALIDATION_ERROR",
                "local_path: this version registers SAEs from local folders only",
                errors=[{"loc": ["body", "local_path"], "msg": "required"}],
            )
        row, was_there = await registry.add_sae(body.local_path)
        message = "already registered" if was_there else "registered"
        return success({"sae_id": row.id, "status": row.status, "message": message}, 202)

    @routes.get("/attachment", response_model=Envelope)
    async def get_attachment() -> Response:
        return success(attachment_status(conductor, steering))

    @routes.get("/{sae_id}", response_model=Envelope)
    async def get_sae(sae_id: str) -> Response:
        return success(record(await registry.sae(sae_id)))

    @routes.delete("/{sae_id}", response_model=Envelope)
    async def delete_sae(sae_id: str) -> Response:
        row = await registry.remove_sae(sae_id)
        return success({"status": "deleted", "sae_id": row.id, "freed_disk_mb": 0})

    @routes.get("/{sae_id}/compatibility", response_model=Envelope)
    async def compatibility(sae_id: str, layer: Annotated[int, Query()]) -> Response:
        verdict = attachments.compatibility(await registry.sae(sae_id), layer)
        return success(
            {
                "compatible": verdict.is_compatible,
                "errors": list(verdict.errors),
                "warnings": list(verdict.warnings),
            }
        )

    @routes.post("/{sae_id}/attach", response_model=Envelope)
    async def attach_sae(sae_id: str, body: AttachBody) -> Response:
        attached = await attachments.attach(await registry.sae(sae_id), body.layer)
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
        await registry.sae(sae_id)
        freed = await attachments.detach(sae_id)
        return success({"status": "detached", "sae_id": sae_id, "memory_freed_mb": freed})

    return routes
