"""/api/captures: the values of sites of the model over many texts, in files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException
from pydantic import Field, SecretStr, WithJsonSchema
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    MalformedRangeHeader,
    RangeNotSatisfiable,
    Response,
)

from steerserve.api.answers import Answer
from steerserve.api.answers.jobs import BEGUN, Wait, answered
from steerserve.api.envelope import RequestBody, check_source, encoded, success
from steerserve.api.inference.tokens import (
    Conversation,
    Id,
    Written,
    client_of,
    given_text,
    invalid_field,
    texts_or_chats,
)
from steerserve.control.inference.views import JobAnswer
from steerserve.errors import Refusal
from steerserve.nouns.captures.form import (
    CaptureDetails,
    CaptureList,
    CaptureSource,
    DeletedCapture,
    SourceKind,
)
from steerserve.nouns.captures.owner import LAST, CaptureRequest, Captures
from steerserve.nouns.corpora.form import CorpusSource
from steerserve.nouns.corpora.routes import CONTEXT_MAXIMUM, TEXTS_MAXIMUM
from steerserve.parts.activations_raw.form import Dtype, parse_sites
from steerserve.rules.saes.sites import LOGITS, PATTERN, READABLE
from steerserve.rules.steering import interventions
from steerserve.rules.steering.positions import GENERATED, Positions
from steerserve.rules.steering.request import RequestSteering
from steerserve.settings import Settings

LAYERS_MAXIMUM = 1024
SITES_MAXIMUM = 64
SHARD_MAXIMUM = 4096
Numbers = Annotated[list[Id], Field(min_length=1, max_length=LAYERS_MAXIMUM)]

_SOURCES: tuple[SourceKind, ...] = ("texts", "messages", "corpus_id", "local_path", "repo_id")
_PLACES = (*_SOURCES, "file_path", "revision", "hub_token")
_POSITIONS = {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]}
_CAPTURED = {name: what for name, what in READABLE.items() if name not in (PATTERN, LOGITS)}
"""The sites whose values have the same number of numbers at every position, and belong to a layer."""
_INTERVENTIONS = {"anyOf": [interventions.SHORT_SCHEMA, {"type": "null"}]}
_CONTENT: dict[int | str, dict[str, object]] = {
    200: {
        "description": "the content of the file, or the part of it that the header `Range` names",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class CaptureSite(RequestBody):
    """A site of the model, at layers that have it. `heads` limits a site with heads to these."""

    site: Written
    layers: Numbers | Literal["all"]
    heads: Numbers | None = None


class CaptureBody(RequestBody):
    """The values of `sites` at `positions` of texts. The texts are one of `texts`, `messages` (one conversation),
    `corpus_id`, `local_path` and `repo_id`, as those of a corpus. Each is cut into contexts of `context` tokens."""

    name: Annotated[Written, Field(min_length=1, max_length=120)]
    texts: (
        Annotated[
            list[Written | Conversation],
            Field(min_length=1, max_length=TEXTS_MAXIMUM, fail_fast=True),
        ]
        | None
    ) = None
    messages: Conversation | None = None
    corpus_id: Annotated[Written, Field(min_length=1, max_length=50)] | None = None
    local_path: Annotated[Written, Field(min_length=1, max_length=500)] | None = None
    repo_id: Annotated[Written, Field(min_length=1, max_length=255)] | None = None
    file_path: Annotated[Written, Field(min_length=1, max_length=500)] | None = None
    revision: Annotated[Written, Field(min_length=1, max_length=100)] | None = None
    hub_token: SecretStr | None = None
    text_field: Annotated[Written, Field(min_length=1, max_length=100)] = "text"
    sites: Annotated[list[CaptureSite], Field(min_length=1, max_length=SITES_MAXIMUM)]
    positions: Annotated[object, WithJsonSchema(_POSITIONS)] = "all"
    dtype: Dtype = "float32"
    interventions: Annotated[object, WithJsonSchema(_INTERVENTIONS)] = None
    max_tokens: Annotated[int, Field(ge=1)] = 1_000_000
    context: Annotated[int, Field(ge=8, le=CONTEXT_MAXIMUM)] = 512
    shard_mb: Annotated[int, Field(ge=1, le=SHARD_MAXIMUM)] = 256

    def check_fields(self, most_tokens: int) -> SourceKind:
        """The field that names the texts. The bound of tokens is checked too.

        Raises:
            Refusal: VALIDATION_ERROR naming the field.
        """
        given = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            raise invalid_field(
                given[-1] if given else "texts", f"give one of {', '.join(_SOURCES)}"
            )
        (kind,) = given
        is_hub = kind == "repo_id"
        needed = (kind, "file_path") if is_hub else (kind,)
        check_source(self, kind, needed, ("revision", "hub_token") if is_hub else (), _PLACES)
        if self.max_tokens > most_tokens:
            why = f"at most {most_tokens} tokens are read (CORPORA_MAX_TOKENS)"
            raise invalid_field("max_tokens", why)
        return kind


def router(captures: Captures, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api/captures", tags=["inference"])

    @routes.get("", response_model=Answer[CaptureList])
    async def list_captures() -> Response:
        """All captures, oldest first, and what they take on the disk."""
        return success(await captures.all())

    @routes.post("", response_model=Answer[JobAnswer], responses=BEGUN)
    async def add_capture(body: CaptureBody, request: Request, wait: Wait = False) -> Response:
        """Begin a job that reads texts and writes the values of sites to files, or carry on a capture that was cut:
        send the same body again. The result of the job has the id of the capture."""
        asked = _asked(body, client_of(request, settings), settings)
        return await answered(await captures.start(asked), request, wait=wait)

    @routes.get("/{capture_id}", response_model=Answer[CaptureDetails])
    async def get_capture(capture_id: str) -> Response:
        return success(await captures.get(capture_id))

    @routes.get("/{capture_id}/files/{name}", response_class=FileResponse, responses=_CONTENT)
    async def get_capture_file(capture_id: str, name: str, request: Request) -> Response:
        """A file of a capture. Ranges of bytes are honoured."""
        path, found = await captures.file(capture_id, name)
        response = FileResponse(
            path, media_type="application/octet-stream", filename=name, stat_result=found
        )
        known = request.headers.get("if-range")
        if known is None or response._should_use_range(known):
            _check_range(request.headers.get("range"), found.st_size)
        return response

    @routes.delete("/{capture_id}", response_model=Answer[DeletedCapture])
    async def delete_capture(capture_id: str) -> Response:
        """Delete a capture with its files. A job that reads it is cancelled."""
        return success(DeletedCapture(await captures.remove(capture_id)))

    return routes


def _check_range(asked: str | None, size: int) -> None:
    """Check the header `Range`. The library refuses a wrong one in a form of its own.

    Raises:
        Refusal: VALIDATION_ERROR for ranges that cannot be read.
        HTTPException: 416 for a range that begins behind the end of the file. Its header tells the size, by which
            clients see that they have the whole file.
    """
    if asked is None:
        return
    try:
        FileResponse._parse_range_header(asked, size)
    except MalformedRangeHeader as error:
        raise Refusal("VALIDATION_ERROR", f"Range: {error.content}", param="Range") from None
    except RangeNotSatisfiable:
        raise HTTPException(
            416, f"Range: the file has {size} bytes", {"Content-Range": f"bytes */{size}"}
        ) from None


def _asked(body: CaptureBody, client: str, settings: Settings) -> CaptureRequest:
    """Raises:
    Refusal: VALIDATION_ERROR, INVALID_PARAMETER, INVALID_INTERVENTION, TOO_MANY_EDITS, with the place.
    """
    kind = body.check_fields(settings.corpora_max_tokens)
    texts = texts_or_chats(body.texts or [])
    if body.messages is not None:
        texts = (given_text(body.messages),)
    file: dict[str, Any] = {
        "local_path": body.local_path,
        "repo_id": body.repo_id,
        "revision": body.revision,
        "file_path": body.file_path,
        "text_field": body.text_field,
    }
    hub_token = body.hub_token.get_secret_value() if body.hub_token else None
    sites = [one.model_dump() for one in body.sites]
    for field in ("positions", "interventions"):
        _check_kept(field, getattr(body, field))
    return CaptureRequest(
        name=body.name,
        said=CaptureSource(kind=kind, corpus_id=body.corpus_id, **file),
        source=CorpusSource(
            kind="local" if body.local_path else "huggingface" if body.repo_id else "inline", **file
        ),
        texts=texts,
        hub_token=hub_token or None,
        sites=parse_sites(body.sites, "sites", _CAPTURED),
        positions=_positions(body.positions),
        steering=_steering(body.interventions),
        dtype=body.dtype,
        max_tokens=body.max_tokens,
        context=body.context,
        shard_mb=body.shard_mb,
        client=client,
        sent={
            "sites": sites,
            "positions": body.positions,
            "dtype": body.dtype,
            "interventions": body.interventions,
        },
    )


def _check_kept(field: str, sent: object) -> None:
    """Check that the record of a capture can have a value as it was sent.

    Raises:
        Refusal: VALIDATION_ERROR for half of a surrogate pair, and for a whole number beyond 64 bits.
    """
    try:
        encoded(sent)
    except (UnicodeEncodeError, OverflowError):
        raise invalid_field(field, "has a text or a number that no file can have") from None


def _positions(sent: object) -> Positions:
    """Raises:
    Refusal: INVALID_PARAMETER, whose `param` is the place.
    """
    if sent == "last":
        return LAST
    positions = interventions.parse_positions(sent, "positions")
    include = positions.include
    if GENERATED in include.names or include.generated_window is not None or include.after_text:
        why = "positions: nothing is written over a text that is read, so it has no generated positions"
        raise Refusal("INVALID_PARAMETER", why, param="positions")
    return positions


def _steering(sent: object) -> RequestSteering | None:
    """Raises:
    Refusal: INVALID_INTERVENTION, TOO_MANY_EDITS.
    """
    if sent is None:
        return None
    steering = interventions.parse(sent)
    if steering.is_added:
        why = "interventions.mode: a capture has no other steering that edits could be added to"
        raise Refusal("INVALID_INTERVENTION", why, param="interventions.mode")
    return steering
