"""/api/probes: linear classifiers of the activations of a model, from files of many tools."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import PageLimit, PageOffset, success
from steerserve.api.steering.direction_bodies import (
    DirectionsBody,
    InlineDirection,
    PostedFile,
    add_posted,
    new_body,
)
from steerserve.control.metrics import note_object
from steerserve.control.steering.probes import Probes, weights
from steerserve.control.steering.vector_views import (
    DeletedProbe,
    ProbeList,
    ProbeWeights,
)
from steerserve.rules.bounds import DIRECTIONS, PAGE_ROWS
from steerserve.rules.steering.records import ProbeRecord


class ProbeBody(DirectionsBody):
    """What is said about every probe."""


class InlineWeights(InlineDirection):
    """The weights of one layer, and their bias."""

    bias: Annotated[float, Field(allow_inf_nan=False)]


class PostedProbe(ProbeBody, PostedFile):
    """A probe from a file of this machine (`local_path`), from a file of the model hub (`repository_id`, `file_path`),
    or with its weights in the body."""

    content_field = "weights"
    weights: Annotated[list[InlineWeights], Field(min_length=1, max_length=DIRECTIONS)] | None = (
        None
    )


_NEW = new_body(PostedProbe, ProbeBody, "the JSON file beside the file of weights")


def router(probes: Probes) -> APIRouter:
    routes = APIRouter(prefix="/api/probes", tags=["probes"])

    @routes.get("", response_model=Answer[ProbeList])
    async def list_probes(limit: PageLimit = PAGE_ROWS, offset: PageOffset = 0) -> Response:
        """Stored probes without their weights, oldest first. `total` counts all of them."""
        rows, total = await probes.page(limit, offset)
        return success(ProbeList(rows, total))

    @routes.post("", response_model=Answer[ProbeRecord], status_code=201, openapi_extra=_NEW)
    async def add_probe(request: Request) -> Response:
        """Store a probe: from a file of this machine or of the model hub, with its weights in the body, or with the
        file in a form."""
        row = await add_posted(probes, request, PostedProbe, ProbeBody)
        note_object(probe_id=row.id)
        return success(row, 201)

    @routes.get("/{probe_id}", response_model=Answer[ProbeWeights])
    async def get_probe(probe_id: str) -> Response:
        """The probe with this id or this name, with its weights."""
        return success(weights(await probes.get(probe_id), await probes.find(probe_id)))

    @routes.delete("/{probe_id}", response_model=Answer[DeletedProbe])
    async def delete_probe(probe_id: str) -> Response:
        """Delete a probe. Requests that use it keep it to their end."""
        return success(DeletedProbe(await probes.remove(probe_id)))

    return routes
