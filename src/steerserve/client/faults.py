"""The exceptions of the client: `ServiceError`, and a class for each code of the error table.

`from steerserve.client.faults import QueueFull` gives the class of `QUEUE_FULL`, and so for every code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from steerserve.errors import TABLE, Row

UNKNOWN = "UNKNOWN"
UNREACHABLE = "SERVICE_UNREACHABLE"
UNEXPECTED = "UNEXPECTED_ANSWER"


ODD = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What Python raises over JSON that is damaged, nested too deep, or of another form."""


class ServiceError(Exception):
    """The service refused a request, could not be reached, or answered something else than it describes.

    Attributes:
        code: the code of the error table, also where `/v1` spells it in another way. Codes of the client itself:
            `SERVICE_UNREACHABLE`, `UNEXPECTED_ANSWER`, and `UNKNOWN` for an answer that another program gave.
        status: the status of the answer; 200 for a document that was refused, None where no answer came.
        message: the reason in words.
        details: facts for programs; the page on errors names them.
        retry_after: the seconds after which the service suggests another try; None where it suggests none.
    """

    code: str = UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        details: Mapping[str, object] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.details = dict(details or {})
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ServiceUnreachable(ServiceError):
    """No service answers at the address, or the connection ended before the answer did."""

    code = UNREACHABLE


class UnexpectedAnswer(ServiceError):
    """The answer does not have the form that this version of the client knows."""

    code = UNEXPECTED


def class_name(code: str) -> str:
    """The name of the class of a code: `QueueFull` for `QUEUE_FULL`."""
    return "".join(word.capitalize() for word in code.split("_"))


def _made(row: Row) -> type[ServiceError]:
    words = {"code": row.code, "__doc__": f"{row.meaning}.".capitalize(), "__module__": __name__}
    return type(class_name(row.code), (ServiceError,), words)


BY_CODE: Mapping[str, type[ServiceError]] = MappingProxyType(
    {code: _made(row) for code, row in TABLE.items()}
)
_BY_NAME = {class_name(code): made for code, made in BY_CODE.items()}
_FROM_V1 = {row.v1_code: code for code, row in TABLE.items()} | {
    code.lower(): code for code in TABLE
}


def __getattr__(name: str) -> type[ServiceError]:
    try:
        return _BY_NAME[name]
    except KeyError:
        raise AttributeError(f"no code of the error table has a class {name}") from None


def from_answer(status: int | None, body: bytes, headers: Mapping[str, str]) -> ServiceError:
    """The exception for a refusal of `/api` or of `/v1`."""
    try:
        error = json.loads(body)["error"]
        return from_error(error, status, headers)
    except ODD:
        start = body[:200].decode(errors="replace")
        return ServiceError(
            f"the answer {status} is no answer of steerserve: {start}", status=status
        )


def _seconds(after: object) -> float | None:
    """The seconds of a Retry-After; None for a date, and for what is no time to wait."""
    try:
        seconds = float(str(after))
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def from_error(
    error: Mapping[str, Any], status: int | None, headers: Mapping[str, str]
) -> ServiceError:
    """The exception for the error object of an answer or of a stream."""
    sent = str(error["code"])
    made = BY_CODE.get(_FROM_V1.get(sent, sent), ServiceError)
    details = dict(error.get("details") or {})
    if error.get("param") is not None:
        details.setdefault("param", error["param"])
    raised = made(
        str(error["message"]),
        status=status,
        details=details,
        retry_after=_seconds(headers.get("retry-after", error.get("retry_after"))),
    )
    if made is ServiceError:
        raised.code = sent  # a code that this version does not know
    return raised
