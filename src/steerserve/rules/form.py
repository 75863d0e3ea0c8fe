"""The base of the answers of `/api`. The JSON of an answer and its description both come from one class."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import NotRequired, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UnsetType
from msgspec.structs import FieldInfo
from typing_extensions import TypedDict


class _Schemas(Protocol):
    """What pydantic gives a class to describe itself with."""

    def generate_schema(self, source: object) -> object: ...


class Form(msgspec.Struct, frozen=True):
    """One object of an answer.

    msgspec writes the fields in their order. A field that may be missing has `UnsetType` among its types and `UNSET` as
    its default: the value `UNSET` is left out, and None is written as null. A UTC time is written in ISO 8601 with `Z`,
    a float that is not finite as null. Pydantic describes a form as an object that must have the fields without a
    default.
    """

    @classmethod
    def _keys(cls, field: FieldInfo) -> tuple[str, ...]:
        """The keys under which a field is sent."""
        return (field.encode_name,)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, handler: _Schemas) -> object:
        return handler.generate_schema(_described(cls))


@cache
def _described(form: type[Form]) -> object:
    """The form as a TypedDict, which is what pydantic can describe."""
    types = get_type_hints(form, include_extras=True)
    kinds: dict[str, object] = {}
    for field in msgspec.structs.fields(form):
        kind = _sent(types[field.name])
        for key in form._keys(field):
            kinds[key] = kind if field.required else NotRequired[kind]
    described: type = TypedDict(form.__name__, kinds)  # type: ignore[misc]
    described.__doc__, described.__module__ = form.__doc__, form.__module__
    return described


def _sent(kind: object) -> object:
    """The type of a field where it is sent, which is its type without `UnsetType`."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return reduce(or_, (one for one in get_args(kind) if one is not UnsetType))
