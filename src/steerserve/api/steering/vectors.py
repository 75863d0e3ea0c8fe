"""/api/vectors: directions of the activations of a model, from files of many tools."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Query
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import (
    PAGE_MAXIMUM,
    PageLimit,
    PageOffset,
    RequestBody,
    check_source,
    import_body,
    success,
)
from steerserve.api.saes.saes import SaeHubBody
from steerserve.control.metrics import note_object
from steerserve.control.steering.vector_views import (
    DeletedVector,
    VectorDocument,
    VectorList,
    VectorNeighbours,
    VectorRecord,
)
from steerserve.control.steering.vectors import (
    HubFile,
    NewVector,
    VectorFile,
    VectorRow,
    Vectors,
    record,
)
from steerserve.errors import Refusal
from steerserve.rules import field_faults, json_size, multipart
from steerserve.rules.multipart import FormPart
from steerserve.rules.steering import documents
from steerserve.rules.steering.vector import (
    DIRECTIONS_MAXIMUM,
    LAYER_MAXIMUM,
    NAME_MAXIMUM,
    Convention,
    Operation,
    ReadOptions,
)
from steerserve.rules.text import readable

NEAREST_MAXIMUM = 100
FILE_NAME_MAXIMUM = 255
NUMBERS = ("layer", "layer_offset")
"""The fields of a form that are whole numbers."""

Format = Literal["gguf", "safetensors", "json"]
Source = Literal["local", "huggingface", "inline"]
_WHOLE = re.compile(r"-?[0-9]{1,9}", re.ASCII)

_NEEDED: dict[Source, tuple[str, ...]] = {
    "local": ("local_path",),
    "huggingface": ("repository_id", "file_path"),
    "inline": ("directions",),
}
_OTHERS = ("local_path", "repository_id", "revision", "file_path", "hub_token", "directions")


class VectorBody(RequestBody):
    """What is said about every vector. `layer` is the layer of a file with one direction that does not name its layer.
    The last three replace what the file says."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAXIMUM)]
    model_hint: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    layer: Annotated[int, Field(ge=0, le=LAYER_MAXIMUM)] | None = None
    layer_convention: Convention | None = None
    layer_offset: Annotated[int, Field(ge=-LAYER_MAXIMUM, le=LAYER_MAXIMUM)] = 0
    operation: Operation | None = None

    @property
    def new(self) -> NewVector:
        options = ReadOptions(self.layer, self.layer_convention, self.layer_offset, self.operation)
        return NewVector(self.name, options, self.model_hint)


class InlineDirection(RequestBody):
    """One direction: base64 of little-endian numbers, as an exported document has them."""

    layer: Annotated[int, Field(ge=0, le=LAYER_MAXIMUM)]
    site: Annotated[str, Field(min_length=1, max_length=50)] = "resid_post"
    data: str
    dtype: Literal["float32", "float16", "bfloat16", "float64"] = "float32"
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=8)] | None = None


class PostedVector(VectorBody, SaeHubBody):
    """A vector from a file of this machine (`local_path`), from a file of the model hub (`repository_id`, `file_path`),
    or with its directions in the body."""

    source: Source
    local_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    repository_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    directions: (
        Annotated[list[InlineDirection], Field(min_length=1, max_length=DIRECTIONS_MAXIMUM)] | None
    ) = None

    def check(self) -> None:
        """Check that the fields are those of the source.

        Raises:
            Refusal: VALIDATION_ERROR naming the fields.
        """
        optional = ("revision", "hub_token") if self.source == "huggingface" else ()
        check_source(self, self.source, _NEEDED[self.source], optional, _OTHERS)


Body = TypeVar("Body", bound=VectorBody)


def _schema(body: type[VectorBody]) -> dict[str, Any]:
    """The JSON schema of a body, without references."""
    schema = body.model_json_schema()
    parts = schema.pop("$defs", {})
    text = msgspec.json.encode(schema).decode()
    for name, part in parts.items():
        text = text.replace(f'{{"$ref":"#/$defs/{name}"}}', msgspec.json.encode(part).decode())
    whole: dict[str, Any] = msgspec.json.decode(text)
    return whole


def _form_schema() -> dict[str, Any]:
    schema = _schema(VectorBody)
    schema["properties"] |= {
        "file": {"type": "string", "format": "binary"},
        "metadata": {
            "type": "string",
            "format": "binary",
            "description": "the direction_metadata.json of a refusal direction",
        },
    }
    schema["required"] = [*schema["required"], "file"]
    return schema


_NEW = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _schema(PostedVector)},
            "multipart/form-data": {"schema": _form_schema()},
        },
    }
}
_FILES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    }
}


def router(vectors: Vectors) -> APIRouter:
    routes = APIRouter(prefix="/api/vectors", tags=["vectors"])

    @routes.get("", response_model=Answer[VectorList])
    async def list_vectors(limit: PageLimit = PAGE_MAXIMUM, offset: PageOffset = 0) -> Response:
        """Stored vectors, oldest first. `total` counts all of them."""
        rows, total = await vectors.page(limit, offset)
        return success(VectorList([record(row) for row in rows], total))

    @routes.post("", response_model=Answer[VectorRecord], status_code=201, openapi_extra=_NEW)
    async def add_vector(request: Request) -> Response:
        """Store a vector: from a file of this machine or of the model hub, with its numbers in the body, or with the
        file in a form."""
        kind = request.headers.get("content-type", "")
        if multipart.is_form(kind):
            parts = await asyncio.to_thread(multipart.parts, kind, await request.body())
            row = await vectors.add_upload(_of_form(parts).new, _file(parts))
        else:
            body = await asyncio.to_thread(_of_json, await import_body(request))
            row = await _add(vectors, body)
        note_object(vector_id=row.id)
        return success(record(row), 201)

    @routes.get("/{vector_id}", response_model=Answer[VectorRecord])
    async def get_vector(vector_id: str) -> Response:
        """The vector with this id or this name."""
        return success(record(await vectors.get(vector_id)))

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
    ) -> Response:
        """The nearest features of the attached SAEs, and the nearest other vectors, by cosine. With `layer`, only the
        directions at this layer are compared."""
        return success(await vectors.neighbours(vector_id, limit, layer))

    return routes


async def _add(vectors: Vectors, body: PostedVector) -> VectorRow:
    if body.local_path is not None:
        return await vectors.add_local(body.new, body.local_path)
    if body.repository_id is not None and body.file_path is not None:
        wanted = HubFile(body.repository_id, body.file_path, body.revision, body.token)
        return await vectors.add_from_hub(body.new, wanted)
    directions = [one.model_dump() for one in body.directions or ()]
    return await vectors.add_inline(body.new, {"directions": directions})


def _of_json(body: bytes) -> PostedVector:
    """Raises:
    Refusal: VALIDATION_ERROR, PAYLOAD_TOO_LARGE.
    """
    if json_size.has_more_values(body, json_size.BODY_MAXIMUM):
        most = json_size.BODY_MAXIMUM
        raise Refusal("PAYLOAD_TOO_LARGE", f"the body has more than {most} values")
    posted = _validated(PostedVector, documents.read_json(body))
    posted.check()
    return posted


def _of_form(parts: Mapping[str, FormPart]) -> VectorBody:
    """The fields of a form without its files.

    Raises:
        Refusal: VALIDATION_ERROR.
    """
    fields: dict[str, object] = {}
    for name, part in parts.items():
        if name in ("file", "metadata"):
            continue
        try:
            text = part.text
        except UnicodeDecodeError:
            raise documents.malformed(f"{name}: the text is not UTF-8", name) from None
        fields[name] = int(text) if name in NUMBERS and _WHOLE.fullmatch(text) else text
    return _validated(VectorBody, fields)


def _file(parts: Mapping[str, FormPart]) -> VectorFile:
    """Raises:
    Refusal: VALIDATION_ERROR.
    """
    if "file" not in parts:
        raise documents.malformed("file: is required", "file")
    file, metadata = parts["file"], parts.get("metadata")
    name = re.split(r"[/\\]", file.filename or "")[-1] or "file"
    content = None if metadata is None else metadata.content
    return VectorFile(readable(name)[:FILE_NAME_MAXIMUM], file.content, content)


def _validated(kind: type[Body], fields: object) -> Body:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise field_faults.refusal(faults, ["body"]) from None
