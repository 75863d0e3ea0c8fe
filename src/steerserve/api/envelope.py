"""The management envelope {success, data, error}, and the base of its request bodies."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from fastapi import Path
from pydantic import BaseModel, BeforeValidator, ConfigDict
from starlette.responses import Response

from steerserve.errors import Refusal

_encode = msgspec.json.Encoder().encode


_DIGITS = re.compile(r"-?[0-9]{1,64}", re.ASCII)


def _plain(value: Any) -> Any:
    """Raises:
    ValueError: for what only a lenient reader takes as a number: blanks, signs, underscores, a fraction.
    """
    if isinstance(value, str) and not (_DIGITS.fullmatch(value) and str(int(value)) == value):
        raise ValueError("a whole number in plain digits")
    return value


RowId = Annotated[int, BeforeValidator(_plain), Path()]
"""The id of a row in a path, written in one way only."""


class RequestBody(BaseModel):
    """A request body: types are not converted; unknown fields are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Envelope(BaseModel):
    """What every `/api` route answers."""

    success: bool
    data: Any | None
    error: dict[str, Any] | None


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": Envelope, "description": "a refusal; `error.code` says which"}
    for status in (400, 403, 404, 405, 409, 413, 422, 500, 503, 507)
}
"""What every management route may answer beside its success."""


def success(data: Any, status: int = 200) -> Response:
    body = _encode({"success": True, "data": data, "error": None})
    return Response(body, status, media_type="application/json")


def failure(refusal: Refusal) -> Response:
    details = dict(refusal.details)
    if refusal.param is not None:
        details.setdefault("param", refusal.param)
    error = {"code": refusal.code, "message": refusal.message, "details": details}
    body = _encode({"success": False, "data": None, "error": error})
    return Response(body, refusal.row.api, media_type="application/json")
