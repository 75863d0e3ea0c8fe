"""The field `response_format` of chats, as a type."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from steerserve.parts.bodies import NAME_MAXIMUM, WholeBody


class JsonSchema(WholeBody):
    """A schema in the supported subset; it is enforced whatever `strict` says."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAXIMUM)]
    description: str | None = None
    strict: bool | None = None
    schema_: Annotated[dict[str, object] | bool, Field(alias="schema")]


class ResponseFormat(WholeBody):
    """The form that each choice must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
