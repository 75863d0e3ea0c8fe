"""/api/saes: registered SAEs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from steerserve.api.envelope import Envelope, RequestBody, success
from steerserve.control.saes import Saes
from steerserve.control.vitals import iso
from steerserve.errors import Refusal

MIB = 1 << 20


class NewSae(RequestBody):
    """An SAE to register: the folder `local_path`, in place."""

    local_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None


def record(row: Any) -> dict[str, Any]:
    """An SAE's metadata."""
    width = None
    if row.d_sae is not None:
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


def router(saes: Saes, attachment: Callable[[], dict[str, Any]]) -> APIRouter:
    """`attachment` tells the attachment status."""
    routes = APIRouter(prefix="/api/saes", tags=["saes"])

    @routes.get("", response_model=Envelope)
    async def list_saes() -> Response:
        records = [record(row) for row in await saes.list()]
        return success({"saes": records, "total": len(records), "attachment": attachment()})

    @routes.post("/download", response_model=Envelope, status_code=202)
    async def download_sae(body: NewSae) -> Response:
        if body.local_path is None:
            raise Refusal(
                "VALIDATION_ERROR",
                "local_path: this version registers SAEs from local folders only",
                errors=[{"loc": ["body", "local_path"], "msg": "required"}],
            )
        row, was_there = await saes.add(body.local_path)
        message = "already registered" if was_there else "registered"
        return success({"sae_id": row.id, "status": row.status, "message": message}, 202)

    @routes.get("/{sae_id}", response_model=Envelope)
    async def get_sae(sae_id: str) -> Response:
        return success(record(await saes.get(sae_id)))

    @routes.delete("/{sae_id}", response_model=Envelope)
    async def delete_sae(sae_id: str) -> Response:
        row = await saes.remove(sae_id)
        return success({"status": "deleted", "sae_id": row.id, "freed_disk_mb": 0})

    return routes
