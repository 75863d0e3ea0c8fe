"""Imported documents of other services: size and nesting of the body, the envelope around it, and checks of its fields.

A document is checked by a shape and stored as it came. A shape is made of checks. A check yields the faults of one
value: its place in the document and the reason. Keys that a shape does not name are not looked at.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import msgspec

from steerserve.errors import DocumentRefusal, Refusal
from steerserve.rules import json_reading
from steerserve.rules.bounds import DOCUMENT_BYTES, DOCUMENT_LEVELS
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.text import shown

FAULTS_NAMED = 10
"""The most faults that a refusal names."""

LARGEST_WHOLE = 2**31 - 1

Read = TypeVar("Read")
Place = tuple[str | int, ...]
"""Where a value stands: the keys and the positions that lead to it."""


@dataclass(frozen=True, slots=True)
class DocumentFault:
    """One value that a document may not have."""

    place: Place
    why: str


Check = Callable[[object, Place], Iterator[DocumentFault]]

# ------------------------------------------------------------- the body


def check_body(body: bytes) -> None:
    """Check the size and the nesting of a body before it is parsed.

    Raises:
        DocumentRefusal: PAYLOAD_TOO_LARGE, VALIDATION_ERROR.
    """
    if len(body) > DOCUMENT_BYTES:
        raise DocumentRefusal(
            "PAYLOAD_TOO_LARGE",
            f"a document has at most {DOCUMENT_BYTES} bytes",
            limit_bytes=DOCUMENT_BYTES,
        )
    if is_deeper(body, DOCUMENT_LEVELS):
        raise invalid(
            [DocumentFault((), f"nested deeper than {DOCUMENT_LEVELS} objects and lists")]
        )


def is_deeper(body: bytes, most: int) -> bool:
    """Whether more than `most` brackets of a JSON text are open at once, without those inside its strings."""
    # without escaped characters, every quotation mark begins or ends a string
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(plain.split(b'"')[::2]).translate(_BRACKETS, _OTHER_BYTES)
    # each round removes the innermost brackets; this is far faster than counting
    for _ in range(most):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    # what is left is deeper, or is not closed
    return b"[]" in brackets or brackets.startswith(b"[" * (most + 1))


_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHER_BYTES = bytes(byte for byte in range(256) if byte not in b"[]{}")


def read_json(body: bytes) -> object:
    """The JSON of a body.

    Raises:
        Refusal: VALIDATION_ERROR for a body that is not JSON, and for a key that stands twice in one object, because
            either of its values may be meant.
    """
    try:
        return json_reading.loads(body.decode("utf-8-sig"), once)
    except (ValueError, RecursionError) as error:
        raise not_json(error) from error


def check_once(body: bytes) -> None:
    """Raises:
    Refusal: VALIDATION_ERROR for a key that stands twice in one object. A body that is not JSON passes.
    """
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError):
        read = msgspec.json.encode(json_reading.decode(body))
        # of two equal keys, one is lost with its colon; only an escaped colon could make up for it
        if read.count(b":") == body.count(b":") and rb"\u003" not in body:
            return
    # this reader is slower, and names the key
    with suppress(ValueError, RecursionError):
        json_reading.loads(body.decode("utf-8-sig"), once)


def not_json(error: Exception) -> Refusal:
    """The refusal of a body for which the parser raised `error`. The refusal says where the fault is."""
    match error:
        case json.JSONDecodeError():
            why = f"{error.msg}, at line {error.lineno}, column {error.colno}"
        case UnicodeDecodeError():
            why = f"byte {error.start} is not UTF-8"
        case RecursionError():
            why = "its objects and lists are nested too deep"
        case _:
            why = "a number in it has too many digits"
    return malformed(f"the body is not JSON: {why}")


def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        key = shown(twice)
        raise malformed(f"the key {key!r} stands twice in one object", key)
    return unique


def malformed(why: str, *place: str) -> Refusal:
    return refuse_value(["body", *place], why)


def parse(body: bytes, read: Callable[[dict[str, object]], Read]) -> Read:
    """What `read` makes of the document in a body. The document stands alone or inside the `data` of an answer of this
    service.

    Raises:
        DocumentRefusal: PAYLOAD_TOO_LARGE; VALIDATION_ERROR for a document that is nested too deep, is no object, or
            has a number that JSON does not have; what `read` raises.
        Refusal: VALIDATION_ERROR for a body that is not JSON.
    """
    check_body(body)
    document = unwrapped(read_json(body))
    check_document(document, fields({}, {}))
    check_numbers(document)
    return read(document)


def unwrapped(body: Any) -> Any:
    """The document in the `data` of an answer of this service; any other body as it is."""
    is_answer = isinstance(body, dict) and "success" in body and "kind" not in body
    if is_answer and isinstance(body.get("data"), dict):
        return body["data"]
    return body


def check_numbers(document: object) -> None:
    """Check that no number of a parsed document is NaN or infinite, in unknown keys too. JSON has no such numbers.

    Raises:
        DocumentRefusal: VALIDATION_ERROR.
    """
    try:
        written(document)
    except ValueError:
        raise invalid([DocumentFault(_not_finite(document), "not a finite number")]) from None


def written(document: object) -> str:
    """The JSON text of a parsed document, in which it is stored and exported.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    return json.dumps(document, allow_nan=False)


def _not_finite(document: object) -> Place:
    """The place of a number that is NaN or infinite."""
    waiting: list[tuple[object, Place]] = [(document, ())]
    while waiting:
        value, place = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return place
        if isinstance(value, dict):
            waiting += [(part, (*place, key)) for key, part in value.items()]
        elif isinstance(value, list):
            waiting += [(part, (*place, index)) for index, part in enumerate(value)]
    return ()


def unknown_kind(document: Mapping[str, object], known: Sequence[str]) -> DocumentRefusal:
    """The refusal of a document whose `kind` the route does not import."""
    name = kind_of(document)
    has = "has no field `kind`" if name is None else f"has the `kind` {name}"
    return DocumentRefusal(
        "UNKNOWN_KIND",
        f"this route imports documents of the kind {' or '.join(known)}; this document {has}",
        kind=name,
        known_kinds=list(known),
    )


def kind_of(document: Mapping[str, object]) -> str | None:
    """The `kind` of a document for a message: its text, or the JSON of another value. None where it has none."""
    kind = document.get("kind")
    return None if kind is None else shown(kind if isinstance(kind, str) else json.dumps(kind))


def check_document(document: object, shape: Check) -> None:
    """Check a document by its shape.

    Raises:
        DocumentRefusal: VALIDATION_ERROR with the first faults.
    """
    faults = list(islice(shape(document, ()), FAULTS_NAMED))
    if faults:
        raise invalid(faults)


def invalid(faults: Sequence[DocumentFault]) -> DocumentRefusal:
    """The refusal of a document with these faults."""
    first = faults[0]
    where = ".".join(map(_part, first.place)) or "document"
    errors = [{"loc": ["body", *map(_loc, fault.place)], "msg": fault.why} for fault in faults]
    return DocumentRefusal("VALIDATION_ERROR", f"{where}: {first.why}", errors=errors)


def _loc(part: str | int) -> str | int:
    return shown(part) if isinstance(part, str) else part


def _part(part: str | int) -> str:
    return str(_loc(part))


# ------------------------------------------------------------- checks of values


def anything(_: object, __: Place) -> Iterator[DocumentFault]:
    """A value that nobody reads."""
    yield from ()


def flag(value: object, place: Place) -> Iterator[DocumentFault]:
    if not isinstance(value, bool):
        yield DocumentFault(place, "not true or false")


def text(
    least: int = 0, most: int | None = None, why: Callable[[str], str | None] = lambda _: None
) -> Check:
    """A text with `least` to `most` characters. `why` says what else is wrong with a text."""

    def fault(value: object, place: Place) -> Iterator[DocumentFault]:
        if not isinstance(value, str):
            yield DocumentFault(place, "not a text")
        elif not least <= len(value) <= (len(value) if most is None else most):
            bounds = f"at least {least}" if most is None else f"{least} to {most}"
            yield DocumentFault(place, f"{len(value)} characters, where {bounds} are allowed")
        elif reason := why(value):
            yield DocumentFault(place, reason)

    return fault


def number(least: float = -math.inf, most: float = math.inf) -> Check:
    """A finite number from `least` to `most`."""

    def fault(value: Any, place: Place) -> Iterator[DocumentFault]:
        if as_number(value) is None:
            yield DocumentFault(place, "not a finite number")
        elif not least <= value <= most:
            yield DocumentFault(place, _outside(value, least, most))

    return fault


def whole(least: int = 0, most: int = LARGEST_WHOLE) -> Check:
    """A whole number from `least` to `most`."""

    def fault(value: Any, place: Place) -> Iterator[DocumentFault]:
        size = as_number(value)
        if size is None or size != int(size):
            yield DocumentFault(place, "not a whole number")
        elif not least <= size <= most:
            yield DocumentFault(place, _outside(value, least, most))

    return fault


def one_of(*values: str | int) -> Check:
    """One of these values."""

    def fault(value: object, place: Place) -> Iterator[DocumentFault]:
        if isinstance(value, bool) or value not in values:
            yield DocumentFault(place, f"not {' or '.join(map(repr, values))}")

    return fault


def either(first: Check, second: Check, why: str) -> Check:
    """A value that one of two checks accepts."""

    def fault(value: object, place: Place) -> Iterator[DocumentFault]:
        if any(first(value, place)) and any(second(value, place)):
            yield DocumentFault(place, why)

    return fault


def items(each: Check, least: int = 0, most: int | None = None) -> Check:
    """A list with `least` to `most` values of one kind."""

    def fault(value: object, place: Place) -> Iterator[DocumentFault]:
        if not isinstance(value, list):
            yield DocumentFault(place, "not a list")
        elif not least <= len(value) <= (len(value) if most is None else most):
            bounds = f"at least {least}" if most is None else f"{least} to {most}"
            yield DocumentFault(place, f"{len(value)} entries, where {bounds} are allowed")
        else:
            for index, part in enumerate(value):
                yield from each(part, (*place, index))

    return fault


def mapping(each: Check) -> Check:
    """An object whose values are of one kind, or null."""

    def fault(value: object, place: Place) -> Iterator[DocumentFault]:
        if not isinstance(value, dict):
            yield DocumentFault(place, "not an object")
            return
        for key, part in value.items():
            if part is not None:
                yield from each(part, (*place, key))

    return fault


def fields(required: Mapping[str, Check], optional: Mapping[str, Check]) -> Check:
    """An object. Its optional fields may be missing or null. Other keys are accepted."""

    def fault(value: object, place: Place) -> Iterator[DocumentFault]:
        if not isinstance(value, dict):
            yield DocumentFault(place, "not an object")
            return
        for name, each in required.items():
            if name in value:
                yield from each(value[name], (*place, name))
            else:
                yield DocumentFault((*place, name), "missing")
        for name, each in optional.items():
            if value.get(name) is not None:
                yield from each(value[name], (*place, name))

    return fault


def as_number(value: object) -> float | None:
    """The finite number that a value is; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        size = float(value)
    except OverflowError:
        return None
    return size if math.isfinite(size) else None


def part_of(document: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """An object inside a document; empty where the document has none, null or something else there."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _outside(value: float, least: float, most: float) -> str:
    if most == LARGEST_WHOLE and value > most:
        return f"more than {LARGEST_WHOLE}"
    if most in (math.inf, LARGEST_WHOLE) and math.isfinite(least):
        return f"less than {least:g}"
    return f"outside [{least:g}, {most:g}]"
