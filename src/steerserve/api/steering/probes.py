"""/api/probes: linear classifiers of the activations of a model."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import PAGE_MAXIMUM, PageLimit, PageOffset, success
from steerserve.control.steering.probes import Probes, record, weights
from steerserve.control.steering.vector_views import (
    DeletedProbe,
    ProbeList,
    ProbeWeights,
)


def router(probes: Probes) -> APIRouter:
    routes = APIRouter(prefix="/api/probes", tags=["probes"])

    @routes.get("", response_model=Answer[ProbeList])
    async def list_probes(limit: PageLimit = PAGE_MAXIMUM, offset: PageOffset = 0) -> Response:
        """Stored probes without their weights, oldest first. `total` counts all of them."""
        rows, total = await probes.page(limit, offset)
        return success(ProbeList([record(row) for row in rows], total))

    @routes.get("/{probe_id}", response_model=Answer[ProbeWeights])
    async def get_probe(probe_id: str) -> Response:
        """The probe with this id or this name, with its weights."""
        return success(weights(await probes.get(probe_id), await probes.find(probe_id)))

    @routes.delete("/{probe_id}", response_model=Answer[DeletedProbe])
    async def delete_probe(probe_id: str) -> Response:
        """Delete a probe. Requests that use it keep it to their end."""
        return success(DeletedProbe(await probes.remove(probe_id)))

    return routes
