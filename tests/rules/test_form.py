"""Forms: what is left out and what is null, in the JSON and in its description alike."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import TypeAdapter

from steerserve.rules.form import Form


class Seen(Form, frozen=True):
    """What was seen."""

    at: datetime
    value: float | None
    label: str | UnsetType = UNSET


class Named(Seen, frozen=True, kw_only=True):
    parts: tuple[int, ...]


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_field_without_a_value_is_left_out_and_none_is_null() -> None:
    assert msgspec.json.encode(Seen(NOON, None)) == b'{"at":"2026-01-01T12:00:00Z","value":null}'
    whole = Named(NOON, 1.0, "rain", parts=(1, 2))
    plain = b'{"at":"2026-01-01T12:00:00Z","value":1.0,"label":"rain","parts":[1,2]}'
    assert msgspec.json.encode(whole) == plain


def test_the_description_requires_the_fields_that_are_never_left_out() -> None:
    schema: dict[str, Any] = TypeAdapter(Named).json_schema(mode="serialization")
    assert list(schema["properties"]) == ["at", "value", "label", "parts"]
    assert schema["required"] == ["at", "value", "parts"]
    assert schema["properties"]["label"] == {"title": "Label", "type": "string"}
    assert TypeAdapter(Seen).json_schema(mode="serialization")["description"] == "What was seen."
