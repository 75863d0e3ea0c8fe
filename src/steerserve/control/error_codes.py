"""The codes of errors as a type, for the description of the API."""

from __future__ import annotations

from typing import Annotated

from pydantic import WithJsonSchema

from steerserve.errors import TABLE

ErrorCode = Annotated[str, WithJsonSchema({"type": "string", "enum": sorted(TABLE)})]
