"""The body of a form with files, `multipart/form-data`. Source: RFC 7578, and RFC 2046 for the boundaries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from steerserve.errors import Refusal
from steerserve.rules.text import shown

PARTS_MAXIMUM = 32
HEAD_MAXIMUM = 4096
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


def parts(content_type: str, body: bytes) -> dict[str, FormPart]:
    """The fields of a form by their names.

    Raises:
        Refusal: VALIDATION_ERROR for a body that is no complete form, and for a name that stands twice.
    """
    match = _BOUNDARY.match(content_type)
    if match is None:
        raise _refused("the content type names no boundary")
    border = b"--" + (match[1] or match[2]).encode()
    pieces = (b"\r\n" + body).split(b"\r\n" + border, PARTS_MAXIMUM + 2)
    if len(pieces) > PARTS_MAXIMUM + 2:
        raise _refused(f"the form has more than {PARTS_MAXIMUM} fields")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise _refused("the form is not complete: its last boundary is missing")
    fields: dict[str, FormPart] = {}
    for piece in pieces[1:-1]:
        name, part = _part(piece)
        if name in fields:
            raise _refused(f"the field {shown(name)!r} stands twice", name)
        fields[name] = part
    return fields


def _part(piece: bytes) -> tuple[str, FormPart]:
    head, end, content = piece.partition(b"\r\n\r\n")
    disposition = None
    if end and len(head) <= HEAD_MAXIMUM:
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
    return named["name"], FormPart(content, named.get("filename"))


def _refused(why: str, *place: str) -> Refusal:
    return Refusal("VALIDATION_ERROR", why, errors=[{"loc": ["body", *place], "msg": why}])
