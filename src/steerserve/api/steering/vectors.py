"""/api/vectors: directions of the activations of a model, from files of many tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from msgspec import structs
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
from steerserve.control.saes.example_views import ExamplesOf
from steerserve.control.steering.vector_views import (
    DeletedVector,
    NearFeature,
    VectorDocument,
    VectorList,
    VectorNeighbours,
)
from steerserve.control.steering.vectors import Vectors
from steerserve.rules.bounds import DIRECTIONS, PAGE_ROWS
from steerserve.rules.steering.records import VectorRecord
from steerserve.rules.steering.vector import (
    LAYER_MAXIMUM,
    Operation,
    ReadOptions,
)

NEAREST_MAXIMUM = 100

Format = Literal["gguf", "safetensors", "json"]


class VectorBody(DirectionsBody):
    """What is said about every vector. `operation` replaces what the file says."""

    operation: Operation | None = None

    @property
    def options(self) -> ReadOptions:
        return ReadOptions(self.layer, self.layer_convention, self.layer_offset, self.operation)


class PostedVector(VectorBody, PostedFile):
    """A vector from a file of this machine (`local_path`), from a file of the model hub (`repository_id`, `file_path`),
    or with its directions in the body."""

    content_field = "directions"
    directions: (
        Annotated[list[InlineDirection], Field(min_length=1, max_length=DIRECTIONS)] | None
    ) = None


_NEW = new_body(PostedVector, VectorBody, "the direction_metadata.json of a refusal direction")
_FILES: dict[int | str, dict[str, object]] = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    }
}


def router(vectors: Vectors, examples_of: ExamplesOf) -> APIRouter:
    routes = APIRouter(prefix="/api/vectors", tags=["vectors"])

    @routes.get("", response_model=Answer[VectorList])
    async def list_vectors(limit: PageLimit = PAGE_ROWS, offset: PageOffset = 0) -> Response:
        """Stored vectors, oldest first. `total` counts all of them."""
        rows, total = await vectors.page(limit, offset)
        return success(VectorList(rows, total))

    @routes.post("", response_model=Answer[VectorRecord], status_code=201, openapi_extra=_NEW)
    async def add_vector(request: Request) -> Response:
        """Store a vector: from a file of this machine or of the model hub, with its numbers in the body, or with the
        file in a form."""
        row = await add_posted(vectors, request, PostedVector, VectorBody)
        note_object(vector_id=row.id)
        return success(row, 201)

    @routes.get("/{vector_id}", response_model=Answer[VectorRecord])
    async def get_vector(vector_id: str) -> Response:
        """The vector with this id or this name."""
        return success(await vectors.get(vector_id))

    @routes.delete("/{vector_id}", response_model=Answer[DeletedVector])
    async def delete_vector(vector_id: str) -> Response:
        """Delete a vector. Requests that use it keep it to their end."""
        return success(DeletedVector(await vectors.remove(vector_id)))

    @routes.get("/{vector_id}/export", response_model=Answer[VectorDocument], responses=_FILES)
    async def export_vector(vector_id: str, format: Format = "json") -> Response:
        """The vector as a file that other tools read (`gguf` for llama.cpp, `safetensors`), or as a JSON document."""
        row, made = await vectors.export(vector_id, format)
        if not isinstance(made, bytes):
            return success(made)
        named = {"Content-Disposition": f'attachment; filename="{row.id}.{format}"'}
        return Response(made, headers=named, media_type="application/octet-stream")

    @routes.get("/{vector_id}/neighbours", response_model=Answer[VectorNeighbours])
    async def get_neighbours(
        vector_id: str,
        limit: Annotated[int, Query(ge=1, le=NEAREST_MAXIMUM)] = 10,
        layer: Annotated[int | None, Query(ge=0, le=LAYER_MAXIMUM)] = None,
        examples: bool = False,
    ) -> Response:
        """The nearest features of the attached SAEs, and the nearest other vectors, by cosine. With `layer`, only the
        directions at this layer are compared."""
        found = await vectors.neighbours(vector_id, limit, layer)
        if examples:
            found = structs.replace(found, features=await _with_examples(found.features))
        return success(found)

    async def _with_examples(features: Sequence[NearFeature]) -> list[NearFeature]:
        known = {
            sae_id: await examples_of(
                sae_id, [one.feature_idx for one in features if one.sae_id == sae_id]
            )
            for sae_id in {one.sae_id for one in features}
        }
        return [
            structs.replace(one, example=known[one.sae_id].get(one.feature_idx)) for one in features
        ]

    return routes
