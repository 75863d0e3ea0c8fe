"""The management envelope {success, data, error}, and the base of its request bodies."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from fastapi import Path
from pydantic import BaseModel, BeforeValidator, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from steerserve.errors import Refusal

AT_ONCE = 1 << 16
"""Bytes of JSON that the event loop reads itself; more is read in a thread."""

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


def failure(refusal: Refusal, status: int | None = None) -> Response:
    """A refusal as the envelope says it, with the status of its code unless one is given."""
    details = dict(refusal.details)
    if refusal.param is not None:
        details.setdefault("param", refusal.param)
    error = {"code": refusal.code, "message": refusal.message, "details": details}
    body = _encode({"success": False, "data": None, "error": error})
    return Response(body, status or refusal.row.api, media_type="application/json")


def read_json(body: bytes) -> Any:
    """A body in which no object has one key twice, because of two values neither is known to be the one meant.

    Raises:
        Refusal: VALIDATION_ERROR.
    """
    try:
        return json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _malformed("the body is not JSON that can be read") from error


async def unambiguous(request: Request) -> None:
    """A dependency of routes that take maps and do not `read_json` themselves: refuses what that refuses for a repeated key.

    Raises:
        Refusal: VALIDATION_ERROR.
    """
    body = await request.body()
    if len(body) > AT_ONCE:
        await asyncio.to_thread(_check_once, body)
    else:
        _check_once(body)


def _check_once(body: bytes) -> None:
    with suppress(ValueError, RecursionError):  # what is no JSON is refused by the route
        json.loads(body, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        shown = twice[:100].encode(errors="backslashreplace").decode()
        raise _malformed(f"the key {shown!r} stands twice in one object", shown)
    return found


def _malformed(why: str, *place: str) -> Refusal:
    return Refusal("VALIDATION_ERROR", why, errors=[{"loc": ["body", *place], "msg": why}])
