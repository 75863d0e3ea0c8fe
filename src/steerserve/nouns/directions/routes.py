"""/api/vectors and /api/probes: directions, and linear classifiers, of the activations of a model, from files of many
tools."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Query
from msgspec import structs
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import (
    PageLimit,
    PageOffset,
    RequestBody,
    check_source,
    import_body,
    success,
)
from steerserve.control.metrics import note_object
from steerserve.control.saes.example_views import ExamplesOf
from steerserve.errors import Refusal
from steerserve.nouns.directions.form import (
    DeletedProbe,
    DeletedVector,
    NearFeature,
    ProbeList,
    ProbeWeights,
    VectorDocument,
    VectorList,
    VectorNeighbours,
)
from steerserve.nouns.directions.owner import (
    BothKinds,
    DirectionFile,
    Directions,
    HubFile,
    NewVector,
    Probes,
    Row,
    Vectors,
    weights,
)
from steerserve.nouns.directions.rules import ProbeRecord, VectorRecord
from steerserve.nouns.features.form import DirectionTokens, VectorTokens
from steerserve.nouns.saes.routes import SaeHubBody
from steerserve.rules import field_faults, json_size, multipart
from steerserve.rules.bounds import DIRECTIONS, MANAGEMENT_BODY_VALUES, PAGE_ROWS
from steerserve.rules.multipart import FormPart
from steerserve.rules.sensing import promoting
from steerserve.rules.steering import documents
from steerserve.rules.steering.vector import (
    LAYER_MAXIMUM,
    NAME_MAXIMUM,
    Convention,
    Direction,
    Operation,
    ReadOptions,
    directions_at,
)
from steerserve.rules.text import readable

FILE_NAME_MAXIMUM = 255
NEAREST_MAXIMUM = 100
NUMBERS = ("layer", "layer_offset")
"""The fields of a form that are whole numbers."""

TokensOf = Callable[[str, Sequence[Direction], int], Awaitable[list[DirectionTokens]]]
"""(name of a vector, its directions, how many tokens) -> the tokens that each direction promotes and suppresses."""
Format = Literal["gguf", "safetensors", "json"]
Source = Literal["local", "huggingface", "inline"]
_FILES: dict[int | str, dict[str, object]] = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    }
}
_WHOLE = re.compile(r"-?[0-9]{1,9}", re.ASCII)


class DirectionsBody(RequestBody):
    """What is said about every vector and probe. `layer` is the layer of a file with one direction that does not name
    its layer. `layer_convention` replaces what the file says, and `layer_offset` is added to every layer."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAXIMUM)]
    model_hint: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    layer: Annotated[int, Field(ge=0, le=LAYER_MAXIMUM)] | None = None
    layer_convention: Convention | None = None
    layer_offset: Annotated[int, Field(ge=-LAYER_MAXIMUM, le=LAYER_MAXIMUM)] = 0

    @property
    def options(self) -> ReadOptions:
        return ReadOptions(self.layer, self.layer_convention, self.layer_offset)

    @property
    def new(self) -> NewVector:
        return NewVector(self.name, self.options, self.model_hint)


class InlineDirection(RequestBody):
    """One direction: base64 of little-endian numbers, as an exported document has them."""

    layer: Annotated[int, Field(ge=0, le=LAYER_MAXIMUM)]
    site: Annotated[str, Field(min_length=1, max_length=50)] = "resid_post"
    data: str
    dtype: Literal["float32", "float16", "bfloat16", "float64"] = "float32"
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=8)] | None = None


class PostedFile(SaeHubBody):
    """Where the directions are: in a file of this machine, in a file of the model hub, or in the field
    `content_field` of the body."""

    content_field: ClassVar[str]
    source: Source
    local_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    repository_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None

    @property
    def hub_file(self) -> HubFile | None:
        if self.repository_id is None or self.file_path is None:
            return None
        return HubFile(self.repository_id, self.file_path, self.revision, self.token)

    @property
    def inline(self) -> dict[str, object]:
        """The document of the directions in the body."""
        directions: list[RequestBody] = getattr(self, self.content_field) or []
        return {self.content_field: [one.model_dump() for one in directions]}

    def check_fields(self) -> None:
        """Check that the fields are those of the source.

        Raises:
            Refusal: VALIDATION_ERROR naming the fields.
        """
        needed = {
            "local": ("local_path",),
            "huggingface": ("repository_id", "file_path"),
            "inline": (self.content_field,),
        }
        optional = ("revision", "hub_token") if self.source == "huggingface" else ()
        others = ("local_path", "repository_id", "revision", "file_path", "hub_token")
        names = (*others, self.content_field)
        check_source(self, self.source, needed[self.source], optional, names)


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


# ------------------------------------------------------------- routes


def router(kinds: BothKinds, examples_of: ExamplesOf, tokens_of: TokensOf) -> APIRouter:
    routes = APIRouter()
    routes.routes += _vectors(kinds.vectors).routes
    routes.routes += _model_views(kinds.vectors, examples_of, tokens_of).routes
    routes.routes += _probes(kinds.probes).routes
    return routes


def _vectors(vectors: Vectors) -> APIRouter:
    new_vector = new_body(
        PostedVector, VectorBody, "the direction_metadata.json of a refusal direction"
    )
    routes = APIRouter(prefix="/api/vectors", tags=["vectors"])

    @routes.get("", response_model=Answer[VectorList])
    async def list_vectors(limit: PageLimit = PAGE_ROWS, offset: PageOffset = 0) -> Response:
        """Stored vectors, oldest first. `total` counts all of them."""
        rows, total = await vectors.page(limit, offset)
        return success(VectorList(rows, total))

    @routes.post("", response_model=Answer[VectorRecord], status_code=201, openapi_extra=new_vector)
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

    return routes


def _model_views(vectors: Vectors, examples_of: ExamplesOf, tokens_of: TokensOf) -> APIRouter:
    """What the loaded model and its SAEs say of vectors."""
    routes = APIRouter(prefix="/api/vectors", tags=["vectors"])

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
            found = structs.replace(
                found, features=await _with_examples(found.features, examples_of)
            )
        return success(found)

    @routes.get("/{vector_id}/tokens", response_model=Answer[VectorTokens])
    async def get_tokens(
        vector_id: str,
        tokens: Annotated[int, Query(ge=1, le=promoting.MOST)] = promoting.SHOWN,
        layer: Annotated[int | None, Query(ge=0, le=LAYER_MAXIMUM)] = None,
    ) -> Response:
        """The tokens whose logits each direction of the vector raises most and lowers most, `tokens` of each, in the
        loaded model. With `layer`, only the directions at this layer are read."""
        vector = await vectors.find(vector_id)
        found = await tokens_of(vector.name, directions_at(vector, layer), tokens)
        return success(VectorTokens(vector.id, found))

    return routes


async def _with_examples(
    features: Sequence[NearFeature], examples_of: ExamplesOf
) -> list[NearFeature]:
    known = {
        sae_id: await examples_of(
            sae_id, [one.feature_idx for one in features if one.sae_id == sae_id]
        )
        for sae_id in {one.sae_id for one in features}
    }
    return [
        structs.replace(one, example=known[one.sae_id].get(one.feature_idx)) for one in features
    ]


def _probes(probes: Probes) -> APIRouter:
    new_probe = new_body(PostedProbe, ProbeBody, "the JSON file beside the file of weights")
    routes = APIRouter(prefix="/api/probes", tags=["probes"])

    @routes.get("", response_model=Answer[ProbeList])
    async def list_probes(limit: PageLimit = PAGE_ROWS, offset: PageOffset = 0) -> Response:
        """Stored probes without their weights, oldest first. `total` counts all of them."""
        rows, total = await probes.page(limit, offset)
        return success(ProbeList(rows, total))

    @routes.post("", response_model=Answer[ProbeRecord], status_code=201, openapi_extra=new_probe)
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


# ------------------------------------------------------------- both kinds of body


Body = TypeVar("Body", bound=RequestBody)
Posted = TypeVar("Posted", PostedVector, PostedProbe)


async def add_posted(
    owner: Directions[Row, Any, Any],
    request: Request,
    posted: type[Posted],
    form: type[DirectionsBody],
) -> Row:
    """Store what a request brings in one of its two kinds of body.

    Raises:
        Refusal: VALIDATION_ERROR, PAYLOAD_TOO_LARGE; what the owner raises.
    """
    kind = request.headers.get("content-type", "")
    if multipart.is_form(kind):
        parts = await asyncio.to_thread(multipart.parts, kind, await request.body())
        return await owner.add_upload(_of_form(form, parts).new, _form_file(parts))
    body = await asyncio.to_thread(_of_json, posted, await import_body(request))
    if body.local_path is not None:
        return await owner.add_local(body.new, body.local_path)
    if (wanted := body.hub_file) is not None:
        return await owner.add_from_hub(body.new, wanted)
    return await owner.add_inline(body.new, body.inline)


def new_body(posted: type[PostedFile], form: type[DirectionsBody], metadata: str) -> dict[str, Any]:
    """The description of a route that takes both kinds of body. `metadata` says what the second file of a form is."""
    fields = _schema(form)
    fields["properties"] |= {
        "file": {"type": "string", "format": "binary"},
        "metadata": {"type": "string", "format": "binary", "description": metadata},
    }
    fields["required"] = [*fields["required"], "file"]
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _schema(posted)},
                "multipart/form-data": {"schema": fields},
            },
        }
    }


def _of_json(kind: type[Posted], body: bytes) -> Posted:
    """Raises:
    Refusal: VALIDATION_ERROR, PAYLOAD_TOO_LARGE.
    """
    if json_size.has_more_values(body, MANAGEMENT_BODY_VALUES):
        most = MANAGEMENT_BODY_VALUES
        raise Refusal("PAYLOAD_TOO_LARGE", f"the body has more than {most} values")
    posted = _validated(kind, documents.read_json(body))
    posted.check_fields()
    return posted


def _of_form(kind: type[Body], parts: Mapping[str, FormPart]) -> Body:
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
    return _validated(kind, fields)


def _form_file(parts: Mapping[str, FormPart]) -> DirectionFile:
    """Raises:
    Refusal: VALIDATION_ERROR.
    """
    if "file" not in parts:
        raise documents.malformed("file: is required", "file")
    file, metadata = parts["file"], parts.get("metadata")
    name = re.split(r"[/\\]", file.filename or "")[-1] or "file"
    content = None if metadata is None else metadata.content
    return DirectionFile(readable(name)[:FILE_NAME_MAXIMUM], file.content, content)


def _schema(body: type[RequestBody]) -> dict[str, Any]:
    """The JSON schema of a body, without references."""
    schema = body.model_json_schema()
    parts = schema.pop("$defs", {})
    text = msgspec.json.encode(schema).decode()
    for name, part in parts.items():
        text = text.replace(f'{{"$ref":"#/$defs/{name}"}}', msgspec.json.encode(part).decode())
    whole: dict[str, Any] = msgspec.json.decode(text)
    return whole


def _validated(kind: type[Body], fields: object) -> Body:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise field_faults.refusal(faults, ["body"]) from None
