"""/api/models: the registry of models, and loading and unloading them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from steerserve.api.envelope import Envelope, RequestBody, success
from steerserve.api.leases import LeaseHeader
from steerserve.control.catalog import Registry
from steerserve.control.conductor import Conductor
from steerserve.control.resident import Resident
from steerserve.control.vitals import iso
from steerserve.errors import Refusal
from steerserve.rules.naming import parameters_label


class NewModel(RequestBody):
    """A model to register. `source` local registers the folder `local_path` in place."""

    source: Literal["huggingface", "local"]
    local_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    quantization: Literal["FP16", "Q8", "Q4", "Q2"] = "FP16"
    trust_remote_code: bool = False
    custom_name: Annotated[str, Field(min_length=1, max_length=100)] | None = None


def record(row: Any, resident: Resident | None, lease: dict[str, Any] | None) -> dict[str, Any]:
    """A model record: what is stored, and for the resident model what is live; `lease` is what a read tells of it."""
    live = resident if resident is not None and resident.row.id == row.id else None
    facts = live.facts if live else None
    return {
        "id": row.id,
        "name": row.name,
        "source": row.source,
        "repo_id": row.repo_id,
        "revision": row.revision,
        "local_path": row.local_path,
        "quantization": row.quantization,
        "params": parameters_label(row.num_parameters),
        "architecture": row.architecture,
        "disk_size_mb": row.disk_size_mb,
        "estimated_memory_mb": row.estimated_memory_mb,
        "status": row.status,
        "locked": bool(live and live.is_locked),
        "device": facts.device if facts else None,
        "dtype": facts.dtype if facts else row.dtype,
        "lease": lease,
        "loaded_at": iso(live.loaded_at) if live and live.loaded_at else None,
        "supports_embeddings": row.supports_embeddings,
        "trust_remote_code": row.trust_remote_code,
        "error_message": row.error_message,
        "num_parameters": row.num_parameters,
        "memory_footprint": facts.memory_mb << 20 if facts else None,
        "context_length": facts.context_length if facts else None,
        "kv_cache_tokens": facts.kv_tokens if facts else None,
        "kv_cache_mb": facts.kv_tokens * facts.kv_bytes_per_token >> 20 if facts else None,
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
    }


def router(registry: Registry, conductor: Conductor) -> APIRouter:
    routes = APIRouter(prefix="/api/models", tags=["models"])

    def told(row: Any) -> dict[str, Any]:
        return record(row, conductor.resident, conductor.leases.status(row.id))

    @routes.get("", response_model=Envelope)
    async def list_models() -> Response:
        rows = await registry.models()
        records = [told(row) for row in rows]
        loaded = conductor.view().model_id
        return success({"models": records, "total": len(records), "loaded_model_id": loaded})

    @routes.post("", response_model=Envelope, status_code=202)
    async def add_model(body: NewModel) -> Response:
        if body.source != "local":
            raise _invalid("source", "this version registers models from local folders only")
        if body.local_path is None:
            raise _invalid("local_path", "required when source is local")
        row = await registry.add_model(
            body.local_path,
            quantization=body.quantization,
            custom_name=body.custom_name,
            trust_remote_code=body.trust_remote_code,
        )
        return success(told(row), 202)

    @routes.get("/{model_id}", response_model=Envelope)
    async def get_model(model_id: int) -> Response:
        return success(told(await registry.model(model_id)))

    @routes.delete("/{model_id}", response_model=Envelope)
    async def delete_model(model_id: int) -> Response:
        row = await registry.remove_model(model_id)
        return success({"id": row.id, "name": row.name, "deleted": True})

    @routes.post("/{model_id}/load", response_model=Envelope, status_code=202)
    async def load_model(
        model_id: int, wait: Annotated[bool, Query()] = False, lease: LeaseHeader = None
    ) -> Response:
        resident = await conductor.load(await registry.model(model_id), lease)
        if wait:
            await asyncio.shield(resident.ready)
            return success(told(await registry.model(model_id)))
        row = replace(await registry.model(model_id), status="loading", error_message=None)
        return success(told(row), 202)

    @routes.post("/{model_id}/unload", response_model=Envelope)
    async def unload_model(model_id: int, lease: LeaseHeader = None) -> Response:
        await registry.model(model_id)
        await conductor.unload(model_id, lease)
        return success(told(await registry.model(model_id)))

    @routes.post("/{model_id}/lock", response_model=Envelope)
    async def lock_model(model_id: int) -> Response:
        row = await registry.model(model_id)
        conductor.lock(model_id)
        return success(told(row))

    @routes.post("/{model_id}/unlock", response_model=Envelope)
    async def unlock_model(model_id: int) -> Response:
        row = await registry.model(model_id)
        conductor.unlock(model_id)
        return success(told(row))

    return routes


def _invalid(param: str, why: str) -> Refusal:
    return Refusal(
        "VALIDATION_ERROR", f"{param}: {why}", errors=[{"loc": ["body", param], "msg": why}]
    )
