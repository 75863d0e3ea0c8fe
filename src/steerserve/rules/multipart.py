"""The body of a form with files, `multipart/form-data`. Source: RFC 7578, and RFC 2046 for the boundaries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise

from steerserve.errors import Refusal
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.text import shown

PARTS_MAXIMUM = 32
HEAD_MAXIMUM = 4096
_SEARCHED = 4 << 20
"""Bytes that are searched before other threads have their turn."""
_BOUNDARY = re.compile(
    r"multipart/form-data\s*;.*?boundary=(?:\"([^\"]{1,70})\"|([^\s;\"]{1,70}))", re.I
)
_DISPOSITION = re.compile(rb"^content-disposition:\s*form-data\s*;(.*)$", re.I | re.M)
_PARAMETER = re.compile(r"(name|filename)=\"((?:[^\"\\\r\n]|\\.)*)\"", re.I)


@dataclass(frozen=True, slots=True)
class FormPart:
    """One field of a form. `filename` is None for a field that is no file."""

    content: bytes = field(repr=False)
    filename: str | None = None

    @property
    def text(self) -> str:
        """The content as text.

        Raises:
            UnicodeDecodeError
        """
        return self.content.decode()


def is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "multipart/form-data"


def parts(content_type: str, body: bytes | bytearray) -> dict[str, FormPart]:
    """The fields of a form by their names.

    Raises:
        Refusal: VALIDATION_ERROR for a body that is no complete form, and for a name that stands twice.
    """
    match = _BOUNDARY.match(content_type)
    if match is None:
        raise _refused("the content type names no boundary")
    border = b"\r\n--" + (match[1] or match[2]).encode()
    borders = list(islice(_borders(body, border), PARTS_MAXIMUM + 2))
    if len(borders) > PARTS_MAXIMUM + 1:
        raise _refused(f"the form has more than {PARTS_MAXIMUM} fields")
    if not borders or not body.startswith(b"--", borders[-1] + len(border)):
        raise _refused("the form is not complete: its last boundary is missing")
    fields: dict[str, FormPart] = {}
    for before, after in pairwise(borders):
        name, part = _part(body, before + len(border), after)
        if name in fields:
            raise _refused(f"the field {shown(name)!r} stands twice", name)
        fields[name] = part
    return fields


def _borders(body: bytes | bytearray, border: bytes) -> Iterator[int]:
    """Where the borders begin. The first line of a body has no line end before it."""
    start = 0
    if body.startswith(border[2:]):
        yield -2
        start = len(border) - 2
    while start < len(body):
        at = body.find(border, start, start + _SEARCHED + len(border) - 1)
        if at >= 0:
            yield at
        start = start + _SEARCHED if at < 0 else at + len(border)


def _part(body: bytes | bytearray, first: int, end: int) -> tuple[str, FormPart]:
    """The field between two places of a body."""
    disposition = None
    head_end = body.find(b"\r\n\r\n", first, min(end, first + HEAD_MAXIMUM + 4))
    if head_end >= 0:
        head = bytes(body[first:head_end])
        disposition = _DISPOSITION.search(head.replace(b"\r\n", b"\n"))
    if disposition is None:
        raise _refused("a field of the form has no Content-Disposition")
    try:
        found = dict(_PARAMETER.findall(disposition[1].decode()))
    except UnicodeDecodeError:
        raise _refused("the name of a field is not UTF-8") from None
    named = {key.lower(): re.sub(r"\\(.)", r"\1", value) for key, value in found.items()}
    if "name" not in named:
        raise _refused("a field of the form has no name")
    content = bytes(memoryview(body)[head_end + 4 : end])
    return named["name"], FormPart(content, named.get("filename"))


def _refused(why: str, *place: str) -> Refusal:
    return refuse_value(["body", *place], why)
