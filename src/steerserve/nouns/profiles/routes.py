"""/api/profiles: named sets of steering values that are saved until they are deleted. One of them may be active."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter
from msgspec import UNSET, structs
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
)
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer, RefusedAnswer
from steerserve.api.envelope import (
    PageLimit,
    PageOffset,
    RequestBody,
    failure,
    import_body,
    success,
)
from steerserve.control.metrics import note_object
from steerserve.control.steering.serving import Serving
from steerserve.control.threads import Threads
from steerserve.errors import Refusal
from steerserve.nouns.profiles import rules
from steerserve.nouns.profiles.form import (
    ActivatedProfile,
    DeactivatedProfile,
    DeletedProfile,
    ImportedProfileRecord,
    ProfileExport,
    ProfileList,
    ProfileRecord,
)
from steerserve.nouns.profiles.owner import Profiles
from steerserve.nouns.profiles.rules import ImportedProfile
from steerserve.nouns.steering.routes import texts
from steerserve.rules import field_faults
from steerserve.rules.bounds import PAGE_ROWS
from steerserve.rules.saes.provenance import Origin
from steerserve.rules.steering import interventions
from steerserve.rules.text import line_fault, lines_fault, name_fault

LARGEST_INTEGER = 2**31 - 1


def without(fault_of: Callable[[str], str | None]) -> AfterValidator:
    """A check of a text by a rule that says what is wrong with the text."""

    def check_text(text: str) -> str:
        fault = fault_of(text)
        if fault is not None:
            raise ValueError(fault)
        return text

    return AfterValidator(check_text)


def as_text(model_id: object) -> object:
    """A model id as text. Other routes answer model ids as integers, and a profile keeps text."""
    return str(model_id) if type(model_id) is int else model_id


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("a name is not blank")
    return text


Name = Annotated[
    str, Field(min_length=1, max_length=100), without(name_fault), AfterValidator(not_blank)
]
Description = Annotated[str, Field(max_length=500), without(lines_fault)]
Reference = Annotated[str, Field(max_length=100), without(line_fault)]
SaeId = Annotated[Reference, Field(min_length=1)]
ModelId = Annotated[Reference, BeforeValidator(as_text, json_schema_input_type=int | str)]
FeatureMap = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        }
    ),
]
"""Feature index -> value, as numbers or as texts that are numbers; `rules/steering/profile` converts both."""
Layer = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Edits = Annotated[list[object], WithJsonSchema(interventions.EDITS_SCHEMA)]
"""Edits in the form that `interventions` of requests has; `rules/steering/interventions` reads them."""


class Snapshot(RequestBody):
    """The name and the description under which the live values are saved."""

    name: Name
    description: Description | None = None


class ProfileFields(Snapshot):
    """A profile without its values: its name and description, the SAE and the model that the values were made for, and
    the intensity."""

    model_id: ModelId | None = None
    sae_id: SaeId | None = None
    layer: Layer | None = None
    intensity: float = 1.0


class NewProfile(ProfileFields):
    """A profile to save. `steering` maps a feature index to its value."""

    steering: Annotated[FeatureMap, Field(default_factory=dict)]
    edits: Edits | None = None


class ProfileChanges(RequestBody):
    """The fields to replace; `steering` is replaced as a whole. null empties a field that may be empty."""

    answered = frozenset({"id", "source_kind", "is_active", "created_at", "updated_at", "warnings"})

    name: Name | None = None
    description: Description | None = None
    steering: FeatureMap | None = None
    model_id: ModelId | None = None
    sae_id: SaeId | None = None
    layer: Layer | None = None
    intensity: float | None = None
    edits: Edits | None = None

    @field_validator("name", "steering", "intensity", mode="before")
    @classmethod
    def not_null(cls, value: object) -> object:
        if value is None:
            raise ValueError("may not be null")
        return value


class Activation(RequestBody):
    """How to activate a profile. With `apply_steering: false` the profile becomes the active one, and the live values
    stay as they are."""

    apply_steering: bool = True


class ProfileDocument(NewProfile):
    """A profile as it is exported. An import ignores times and unknown fields."""

    model_config = ConfigDict(extra="ignore")

    version: str = rules.VERSION


_DOCUMENT = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": ProfileDocument.model_json_schema()}},
    }
}
_NO_DOCUMENT: dict[int | str, dict[str, object]] = {
    200: {
        "model": RefusedAnswer,
        "description": "a document that is no profile; `error.code` says why",
    }
}


def record(row: Any, active_id: str | None) -> ProfileRecord:
    """A profile in the form in which every route answers it."""
    own = rules.value_warnings(row.steering, row.edits, row.intensity)
    return ProfileRecord(
        **_saved(row),
        id=row.id,
        source_kind=row.source_kind,
        is_active=row.id == active_id,
        warnings=own if row.cluster is None else row.warnings,
    )


def document(row: Any, origin: Origin) -> ProfileExport:
    """A profile as an exported document."""
    sae, model = origin.sae or UNSET, origin.model or UNSET
    return ProfileExport(**_saved(row), version=rules.VERSION, sae=sae, model=model)


def _saved(row: Any) -> dict[str, Any]:
    """The fields that a record and a document share."""
    return {
        "name": row.name,
        "description": row.description,
        "model_id": row.model_id,
        "sae_id": row.sae_id,
        "layer": row.layer,
        "steering": texts(row.steering),
        "intensity": row.intensity,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "edits": row.edits or UNSET,
    }


def router(profiles: Profiles, serving: Serving, reader: Threads) -> APIRouter:
    routes = APIRouter(prefix="/api/profiles", tags=["profiles"])
    # one page at a time, so that many requests for large pages take the memory of one
    listing = asyncio.Lock()

    def described(row: Any) -> ProfileRecord:
        return record(row, serving.profile_id)

    @routes.get("", response_model=Answer[ProfileList])
    async def list_profiles(limit: PageLimit = PAGE_ROWS, offset: PageOffset = 0) -> Response:
        """Saved profiles, oldest first. `total` counts all of them."""
        async with listing:
            rows, total = await profiles.page(limit, offset)
            active_id = serving.profile_id

            def answer() -> Response:
                records = [record(row, active_id) for row in rows]
                return success(ProfileList(records, total, active_id))

            return await asyncio.to_thread(answer)

    @routes.post("", response_model=Answer[ProfileRecord], status_code=201)
    async def create_profile(body: NewProfile) -> Response:
        row = await profiles.create(**body.model_dump())
        note_object(profile_id=row.id)
        return success(described(row), 201)

    @routes.post("/save-current", response_model=Answer[ProfileRecord], status_code=201)
    async def save_current(body: Snapshot) -> Response:
        """Save the live values, which must all belong to one SAE."""
        row = await profiles.save_current(body.name, body.description)
        note_object(profile_id=row.id)
        return success(described(row), 201)

    @routes.post(
        "/import",
        response_model=Answer[ImportedProfileRecord],
        status_code=201,
        openapi_extra=_DOCUMENT,
        responses=_NO_DOCUMENT,
    )
    async def import_profile(request: Request) -> Response:
        """Save an exported document as a profile. A document of another kind is refused with status 200 and `success:
        false`."""
        # one turn of the reader, so that no parsed document waits in memory for a second turn
        imported = await reader.run(rules.parse, await import_body(request))
        try:
            row = await profiles.add_document(imported, _checked(imported))
        except Refusal as refusal:
            if refusal.code != "VALIDATION_ERROR":
                raise
            return failure(refusal, 200)
        note_object(profile_id=row.id)
        saved = structs.asdict(described(row))
        saved["warnings"] = (*imported.warnings, *saved["warnings"])
        return success(ImportedProfileRecord(**saved), 201)

    @routes.get("/active", response_model=Answer[ProfileRecord | None])
    async def get_active() -> Response:
        """The active profile, or null."""
        row = await serving.active()
        return success(described(row) if row is not None else None)

    @routes.get("/{profile_id}", response_model=Answer[ProfileRecord])
    async def get_profile(profile_id: str) -> Response:
        return success(described(await profiles.get(profile_id)))

    @routes.patch("/{profile_id}", response_model=Answer[ProfileRecord])
    async def change_profile(profile_id: str, body: ProfileChanges) -> Response:
        """The live values stay as they are until the profile is activated again; the dial of an active profile uses
        the new values at once."""
        changes = body.model_dump(include=body.model_fields_set)
        return success(described(await profiles.change(profile_id, changes)))

    @routes.delete("/{profile_id}", response_model=Answer[DeletedProfile])
    async def delete_profile(profile_id: str) -> Response:
        was_active = await profiles.remove(profile_id)
        return success(DeletedProfile(profile_id, was_active))

    @routes.post("/{profile_id}/activate", response_model=Answer[ActivatedProfile])
    async def activate(profile_id: str, body: Activation | None = None) -> Response:
        applies = body is None or body.apply_steering
        return success(await profiles.activate(profile_id, applies=applies))

    @routes.post("/{profile_id}/deactivate", response_model=Answer[DeactivatedProfile])
    async def deactivate(profile_id: str, clear_steering: bool = True) -> Response:
        cleared = await profiles.deactivate(profile_id, clears=clear_steering)
        return success(DeactivatedProfile(profile_id, cleared))

    @routes.get("/{profile_id}/export", response_model=Answer[ProfileExport])
    async def export_profile(profile_id: str) -> Response:
        """A profile as a document. A cluster is refused: its own export has all of its document."""
        row = await profiles.get(profile_id)
        return success(document(row, await profiles.origin(row)))

    return routes


def _checked(imported: ImportedProfile) -> dict[str, object]:
    """The fields of an imported document, checked by the same bounds as those of a new profile.

    Raises:
        Refusal: VALIDATION_ERROR naming the wrong fields.
    """
    try:
        return ProfileFields.model_validate(imported.fields).model_dump()
    except ValidationError as error:
        raise field_faults.refusal(error.errors(), ["body"]) from error
