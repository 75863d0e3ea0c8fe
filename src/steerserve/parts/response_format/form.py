"""`response_format`: each choice is a JSON document, of any form or of the form of a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from steerserve.errors import Refusal
from steerserve.messages import Message
from steerserve.parts.part import BodyField, Lookups, Part, Sent
from steerserve.rules.inference import schema_subset
from steerserve.rules.inference.known_fields import OfType
from steerserve.rules.inference.names import CHAT, RESPONSES

FIELD = "response_format"
CODE = "RESPONSE_FORMAT_UNSUPPORTED"
SCHEMA = "json_schema"
"""The type of a format with a schema."""
OBJECT = {"type": "object"}
"""The schema of any JSON object."""


class ResponseFormat(Message, frozen=True):
    """The form of each choice: `schema` is a JSON Schema as JSON text; None allows any JSON object."""

    schema: str | None = None


@dataclass(frozen=True, slots=True)
class AskedFormat:
    """The form of each choice: a JSON object, or with `is_schema` a document that the schema accepts."""

    name: str | None = None
    schema: Any = None
    is_schema: bool = False

    @property
    def form(self) -> ResponseFormat:
        return ResponseFormat(json.dumps(self.schema) if self.is_schema else None)


class ResponseFormatPart(Part[ResponseFormat, None]):
    """In the body of a response, `text.format` asks for it."""

    name = "response_format"
    fields = MappingProxyType(
        {
            FIELD: BodyField(
                "steerserve.parts.response_format.body:ResponseFormat",
                routes=frozenset({CHAT}),
                idle=({"type": "text"},),
                is_scored=True,
                is_of_steering=False,
                known=OfType(
                    SCHEMA, {SCHEMA: dict.fromkeys(("name", "description", "strict", "schema"))}
                ),
                code=CODE,
                is_named_whole=True,
            )
        }
    )
    form = ResponseFormat
    chunk = type(None)
    row = "steerserve.parts.response_format.row:ResponseFormatRow"
    is_compiled = True
    checks_text = True

    def parse(self, body: Mapping[str, Any], sent: Sent) -> AskedFormat | None:
        """Raises:
        Refusal: RESPONSE_FORMAT_UNSUPPORTED for a field that cannot be combined with it, for a schema outside of the
            supported subset, and in a response for a schema without a name, or the other way round.
        """
        asked = _of_response(body) if sent.route == RESPONSES else _of_chat(body)
        if asked is None:
            return None
        if sent.is_scored:
            raise _refusal("log-probabilities cannot be asked of a constrained choice")
        if sent.is_stream:
            raise _refusal("a constrained answer cannot be streamed, because it is validated whole")
        if body.get("stop"):
            raise _refusal("stop cannot be combined with it")
        if sent.settings.enable_continuous_batching:
            raise _refusal("this server runs continuous batching, which does not constrain")
        if asked.is_schema:
            schema_subset.check_subset(asked.schema)
        return asked

    def find_unused(self, body: Mapping[str, Any], route: str) -> list[str]:
        """The description of a schema is for people."""
        asked = body.get(FIELD) if route == CHAT else None
        schema = asked.get(SCHEMA) if isinstance(asked, Mapping) else None
        has_description = isinstance(schema, Mapping) and schema.get("description") is not None
        return [f"{FIELD}.{SCHEMA}.description"] if has_description else []

    def has_slow_check(self, asked: AskedFormat, look: Lookups) -> bool:
        """A schema is compiled in another process, unless it was compiled there before."""
        return asked.is_schema and not look.is_schema_checked(asked.schema)

    async def run_slow_check(self, asked: AskedFormat, look: Lookups) -> None:
        """Raises:
        Refusal: RESPONSE_FORMAT_UNSUPPORTED.
        """
        if self.has_slow_check(asked, look):
            await look.check_schema(asked.schema)

    async def check_text(self, planned: AskedFormat, choice: int, text: str, look: Lookups) -> None:
        """Raises:
        Refusal: CONSTRAINED_OUTPUT_INVALID for a text that the schema does not accept; CONSTRAINED_OUTPUT_UNCHECKED.
        """
        reason = await look.validate(planned.schema if planned.is_schema else OBJECT, text)
        if reason is not None:
            why = f"choice {choice} is complete, but does not validate: {reason}"
            raise Refusal("CONSTRAINED_OUTPUT_INVALID", why)

    def headers(self, planned: AskedFormat) -> dict[str, str]:
        kind = SCHEMA if planned.is_schema else "json_object"
        named = f"{kind};name={quote(planned.name)}" if planned.name else kind
        return {"X-Service-Constrained": named}


RESPONSE_FORMAT = ResponseFormatPart()


def _of_chat(body: Mapping[str, Any]) -> AskedFormat | None:
    """What `response_format` asks for; None for plain text."""
    wanted = body.get(FIELD)
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type != SCHEMA:
        return AskedFormat()
    if wanted.json_schema is None:
        raise _refusal("json_schema is missing")
    return AskedFormat(wanted.json_schema.name, wanted.json_schema.schema_, is_schema=True)


def _of_response(body: Mapping[str, Any]) -> AskedFormat | None:
    """What `text.format` asks for; None for plain text."""
    text = body.get("text")
    wanted = None if text is None else text.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type != SCHEMA:
        return AskedFormat()
    for name, value in (("name", wanted.name), ("schema", wanted.schema_)):
        if value is None:
            where = f"text.format.{name}"
            raise Refusal(CODE, f"{where}: is required", param=where)
    return AskedFormat(wanted.name, wanted.schema_, is_schema=True)


def _refusal(why: str) -> Refusal:
    return Refusal(CODE, f"{FIELD}: {why}", param=FIELD)
