"""/api/profiles: named sets of steering values, saved until they are deleted."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import AfterValidator, BeforeValidator, Field
from starlette.responses import Response

from steerserve.api.envelope import Envelope, RequestBody, success
from steerserve.control.profiles import Profiles
from steerserve.control.vitals import iso

LARGEST_INTEGER = 2**31 - 1
_BREAKS = str.maketrans("", "", "\t\n\r")


def one_line(text: str) -> str:
    """The text, which has no control characters."""
    if any(unicodedata.category(character) in {"Cc", "Zl", "Zp"} for character in text):
        raise ValueError("control characters are not allowed")
    return text


def lines(text: str) -> str:
    """The text, which has no control characters but tabs and line ends."""
    one_line(text.translate(_BREAKS))
    return text


def as_text(model_id: Any) -> Any:
    """Model ids are integers elsewhere; a profile keeps text."""
    return str(model_id) if type(model_id) is int else model_id


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("a name is not blank")
    return text


Name = Annotated[
    str, Field(min_length=1, max_length=100), AfterValidator(one_line), AfterValidator(not_blank)
]
Description = Annotated[str, Field(max_length=500), AfterValidator(lines)]
Reference = Annotated[str, Field(max_length=100), AfterValidator(one_line)]
ModelId = Annotated[Reference, BeforeValidator(as_text, json_schema_input_type=int | str)]
Layer = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]


class NewProfile(RequestBody):
    """A profile to save: feature index -> value, and what the values were made for."""

    name: Name
    description: Description | None = None
    steering: Annotated[dict[str, float], Field(default_factory=dict)]
    model_id: ModelId | None = None
    sae_id: Reference | None = None
    layer: Layer | None = None
    intensity: float = 1.0


def record(row: Any) -> dict[str, Any]:
    """A profile as every route answers it."""
    return {
        "id": row.id,
        "name": row.name,
        "description": row.description,
        "model_id": row.model_id,
        "sae_id": row.sae_id,
        "layer": row.layer,
        "steering": {str(index): value for index, value in sorted(row.steering.items())},
        "intensity": row.intensity,
        "is_active": False,
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
    }


def router(profiles: Profiles) -> APIRouter:
    routes = APIRouter(prefix="/api/profiles", tags=["profiles"])

    @routes.get("", response_model=Envelope)
    async def list_profiles() -> Response:
        records = [record(row) for row in await profiles.list()]
        return success({"profiles": records, "total": len(records), "active_profile_id": None})

    @routes.post("", response_model=Envelope, status_code=201)
    async def create_profile(body: NewProfile) -> Response:
        row = await profiles.create(
            body.name,
            description=body.description,
            steering=body.steering,
            model_id=body.model_id,
            sae_id=body.sae_id,
            layer=body.layer,
            intensity=body.intensity,
        )
        return success(record(row), 201)

    @routes.get("/{profile_id}", response_model=Envelope)
    async def get_profile(profile_id: str) -> Response:
        return success(record(await profiles.get(profile_id)))

    @routes.delete("/{profile_id}", response_model=Envelope)
    async def delete_profile(profile_id: str) -> Response:
        await profiles.remove(profile_id)
        return success({"profile_id": profile_id, "was_active": False})

    return routes
