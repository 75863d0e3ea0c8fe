"""The envelope of the answers of `/api`, as types for the description of the API, and the payloads of events.

The envelopes only describe: no answer is checked or converted by them while the service runs. The tests hold every
answer to them. All objects are closed, except documents of users.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from steerserve.control.error_codes import ErrorCode

Data = TypeVar("Data")
Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""A time in UTC, in the form of ISO 8601."""


class ErrorBody(BaseModel):
    """Why a request was refused. `details` depend on the code; the page on errors names them."""

    model_config = ConfigDict(extra="forbid")

    code: ErrorCode
    message: str
    details: dict[str, object]


class RefusedAnswer(BaseModel):
    """The answer to a request that was refused."""

    model_config = ConfigDict(extra="forbid")

    success: Literal[False]
    data: None
    error: ErrorBody


class Answer(BaseModel, Generic[Data]):
    """The answer to a request that succeeded."""

    model_config = ConfigDict(extra="forbid")

    success: Literal[True]
    data: Data
    error: None
