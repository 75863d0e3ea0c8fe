"""What `response_format` and `text.format` ask for, what they cannot be combined with, and what the answer tells."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.openai.bodies import TextOptions
from steerserve.parts.part import Sent
from steerserve.parts.response_format.body import ResponseFormat
from steerserve.parts.response_format.form import RESPONSE_FORMAT, AskedFormat
from steerserve.rules.inference.names import CHAT, RESPONSES
from steerserve.settings import Settings
from tests.refusals import refusal_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"name": "card", "schema": SCHEMA}


def chat(form: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """The fields of a chat."""
    asked = None if form is None else ResponseFormat.model_validate(form)
    return {"response_format": asked, **more}


def response(form: dict[str, Any]) -> dict[str, Any]:
    """The fields of a response."""
    return {"text": TextOptions.model_validate({"format": form})}


def sent(route: str = CHAT, *, batches: bool = False, **fields: bool) -> Sent:
    settings = Settings(_env_file=None, enable_continuous_batching=batches)
    return Sent(route, settings, **fields)


@pytest.mark.parametrize(
    ("body", "route", "asked"),
    [
        (chat(None), CHAT, None),
        (chat({"type": "text"}), CHAT, None),
        (chat({"type": "json_object"}), CHAT, AskedFormat()),
        (
            chat({"type": "json_schema", "json_schema": NAMED}),
            CHAT,
            AskedFormat("card", SCHEMA, is_schema=True),
        ),
        ({"text": None}, RESPONSES, None),
        (response({"type": "text"}), RESPONSES, None),
        (response({"type": "json_object"}), RESPONSES, AskedFormat()),
        (
            response({"type": "json_schema", **NAMED}),
            RESPONSES,
            AskedFormat("card", SCHEMA, is_schema=True),
        ),
    ],
)
def test_a_form_is_asked_for(body: dict[str, Any], route: str, asked: AskedFormat | None) -> None:
    assert RESPONSE_FORMAT.parse(body, sent(route)) == asked


@pytest.mark.parametrize(
    ("body", "how", "param"),
    [
        (chat({"type": "json_schema"}), sent(), "response_format"),
        (chat({"type": "json_object"}, stop=["x"]), sent(), "response_format"),
        (chat({"type": "json_object"}), sent(is_stream=True), "response_format"),
        (chat({"type": "json_object"}), sent(is_scored=True), "response_format"),
        (chat({"type": "json_object"}), sent(batches=True), "response_format"),
        (
            response({"type": "json_schema", "schema": SCHEMA}),
            sent(RESPONSES),
            "text.format.name",
        ),
        (
            response({"type": "json_schema", "name": "card"}),
            sent(RESPONSES),
            "text.format.schema",
        ),
    ],
    ids=["no schema", "stop", "streamed", "scored", "batches", "no name", "no schema in a text"],
)
def test_what_cannot_be_enforced_is_refused(body: dict[str, Any], how: Sent, param: str) -> None:
    refusal = refusal_of(RESPONSE_FORMAT.parse, body, how)
    assert (refusal.code, refusal.param) == ("RESPONSE_FORMAT_UNSUPPORTED", param)


@pytest.mark.parametrize(
    ("asked", "header"),
    [
        (AskedFormat(), "json_object"),
        (AskedFormat("card", SCHEMA, is_schema=True), "json_schema;name=card"),
        (AskedFormat("carte é", SCHEMA, is_schema=True), "json_schema;name=carte%20%C3%A9"),
    ],
)
def test_the_answer_tells_its_form(asked: AskedFormat, header: str) -> None:
    assert RESPONSE_FORMAT.headers(asked) == {"X-Service-Constrained": header}


@pytest.mark.parametrize(
    ("raw", "unused"),
    [
        ({"type": "json_schema", "json_schema": NAMED}, []),
        (
            {"type": "json_schema", "json_schema": {**NAMED, "description": "a card"}},
            ["response_format.json_schema.description"],
        ),
        ("of no kind", []),
    ],
)
def test_the_description_of_a_schema_is_not_used(raw: object, unused: list[str]) -> None:
    assert RESPONSE_FORMAT.find_unused({"response_format": raw}, CHAT) == unused
