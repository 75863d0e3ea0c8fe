"""The bases of the bodies of `/v1`, and of the values of their fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

NAME_MAXIMUM = 64
"""The most characters of a name or an id that a client gives."""


class Body(BaseModel):
    """Types are not converted; unknown fields are kept, so that they can be reported."""

    model_config = ConfigDict(strict=True, extra="allow")


class WholeBody(Body):
    """The base of objects in which `rules/inference/fields.py` refuses unknown fields."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})
