"""The management envelope {success, data, error}, and the base of its request bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Annotated, ClassVar

import msgspec
from fastapi import Path, Query
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from starlette.requests import Request
from starlette.responses import Response

from steerserve.errors import DocumentRefusal, Refusal
from steerserve.rules import near_names
from steerserve.rules.bounds import PAGE_ROWS
from steerserve.rules.steering import documents
from steerserve.rules.text import shown

UNKNOWN_NAMED = 20
"""The number of unknown fields of one body that a refusal names."""

PageLimit = Annotated[int, Query(ge=1, le=PAGE_ROWS)]
PageOffset = Annotated[int, Query(ge=0, le=2**31 - 1)]

encoded = msgspec.json.Encoder().encode

_DIGITS = re.compile(r"-?[0-9]{1,64}", re.ASCII)


def _plain(value: object, hint: str = "") -> object:
    """The value, if it is not a text or is the plain form of a whole number.

    Raises:
        ValueError: the text has blanks, a plus sign, leading zeros, underscores or a fraction.
    """
    if isinstance(value, str) and not (_DIGITS.fullmatch(value) and str(int(value)) == value):
        raise ValueError(f"must be a whole number in plain digits{hint}")
    return value


def _id_of_model(value: object) -> object:
    return _plain(value, ", the id of the model; GET /api/models lists the ids beside the names")


RowId = Annotated[int, BeforeValidator(_plain), Path()]
"""The id of a record in a path. Only the usual form of a number is accepted."""
ModelId = Annotated[int, BeforeValidator(_id_of_model), Path()]
"""The id of a model in a path."""


class RequestBody(BaseModel):
    """The base of request bodies. Types are not converted, and an unknown field is an error that names the nearest
    known field. A subclass for documents of other services sets `extra="ignore"`. `answered` names fields that only the
    service writes: they are left out of the body, so that a client may send back a record as it was answered."""

    model_config = ConfigDict(strict=True, extra="forbid")
    answered: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, body: object) -> object:
        known = _names(cls)
        if not isinstance(body, dict) or known is None or body.keys() <= known.keys():
            return body
        sent = {name: value for name, value in body.items() if name not in cls.answered}
        unknown = (name for name in sent if name not in known)
        errors = [_unknown_field(str(name), list(known)) for name in islice(unknown, UNKNOWN_NAMED)]
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return sent


@cache
def _names(body: type[BaseModel]) -> Mapping[str, None] | None:
    """The names under which the fields of a body may be sent, in order; None for a body that may have others. They are
    looked up once, because a body has thousands of objects."""
    if body.model_config.get("extra") != "forbid":
        return None
    names = []
    for name, field in body.model_fields.items():
        alias = field.validation_alias
        aliases = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
        names += [alias for alias in aliases if isinstance(alias, str)]
    return MappingProxyType(dict.fromkeys(names))


def _unknown_field(name: str, known: Sequence[str]) -> InitErrorDetails:
    """Pydantic's error for one unknown field. Its message names the nearest known field."""
    hint = near_names.hint(name, known)
    # the hint is passed as context, because braces inside the template itself would be filled in
    problem = PydanticCustomError("extra_forbidden", "unknown field; {hint}", {"hint": hint})
    return InitErrorDetails(type=problem, loc=(shown(name),), input=None)


def check_source(
    body: BaseModel,
    source: str,
    needed: Sequence[str],
    optional: Sequence[str],
    names: Sequence[str],
) -> None:
    """Check that of the fields `names` a body has those that its source needs, and no others but the optional ones.

    Raises:
        Refusal: VALIDATION_ERROR naming the fields.
    """
    said = {name for name in names if getattr(body, name) is not None}
    errors = [(name, f"is required with source {source}") for name in needed if name not in said]
    odd = sorted(said - {*needed, *optional})
    errors += [(name, f"is not used with source {source}") for name in odd]
    if errors:
        name, why = errors[0]
        listed = [{"loc": ["body", name], "msg": why} for name, why in errors]
        raise Refusal("VALIDATION_ERROR", f"body.{name}: {why}", param=name, errors=listed)


def success(data: object, status: int = 200) -> Response:
    body = encoded({"success": True, "data": data, "error": None})
    return Response(body, status, media_type="application/json")


def failure(refusal: Refusal, status: int | None = None) -> Response:
    """The envelope of a refusal. `status` replaces the status of its code, and a document's refusal has 200."""
    details = dict(refusal.details)
    if refusal.param is not None:
        details.setdefault("param", refusal.param)
    error = {"code": refusal.code, "message": refusal.message, "details": details}
    body = encoded({"success": False, "data": None, "error": error})
    by_code = 200 if isinstance(refusal, DocumentRefusal) else refusal.row.api
    return Response(body, status or by_code, media_type="application/json")


async def import_body(request: Request) -> bytes:
    """The body of an import, which is read beside the event loop.

    Raises:
        Refusal: VALIDATION_ERROR for a content type other than JSON.
    """
    require_json(request)
    return await request.body()


def stored(document: str) -> Response:
    """The envelope of a stored document, from the JSON text of the document."""
    body = f'{{"success": true, "data": {document}, "error": null}}'
    return Response(body, 200, media_type="application/json")


NDJSON = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
"""The content types of JSON Lines; answers have the first."""


def media_of(request: Request) -> str:
    """The content type of a request, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_json(request: Request) -> None:
    """Check the content type in routes that read their body themselves. The framework checks it in all other routes.

    Raises:
        Refusal: VALIDATION_ERROR for a content type other than JSON.
    """
    kind = media_of(request)
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise documents.malformed("the body must be sent with content-type: application/json")
