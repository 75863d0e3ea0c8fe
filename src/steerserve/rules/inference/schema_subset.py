"""Which JSON Schemas a `response_format` may hold: the keywords, the form of their values, references, and sizes.

`engines/sandbox/schemas.py` then finds the faults that only the compiler of the grammar can find, such as bad regular
expressions and contradictions. The checks here refuse every keyword that the compiler would ignore.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules.inference.schema_dialect import DIGITS, WHOLE_MAXIMUM, disputed, tightened
from steerserve.rules.inference.schema_parts import (
    ANNOTATIONS,
    REFERENCE,
    TYPES,
    Path,
    children,
    idle_references,
    parts,
    pointer,
    resolve,
)

BYTES_MAXIMUM = 65_536
NESTING_MAXIMUM = 32
"""The most schemas inside each other."""

VALUE_NESTING_MAXIMUM = 100
"""The most objects and arrays inside each other. The grammar engine itself reads at most 128."""

PROPERTIES_MAXIMUM = 256
NAMED = 20
"""The most keywords that the message of a refusal names. Its details name up to `LISTED`."""

LISTED = 100

INTEGER_MAXIMUM = 2**63
RANGES = (("minimum", "maximum"), ("minItems", "maxItems"), ("minLength", "maxLength"))

FRACTIONS = (1e-6, 1e15)
"""The range of sizes in which the grammar engine writes a decimal fraction with the digits that the schema has."""

Fault = dict[str, str]


def compact(schema: object) -> str:
    """The schema as the shortest JSON text, its keys in their own order."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def check_subset(schema: object) -> None:
    """Raises:
    Refusal: RESPONSE_FORMAT_UNSUPPORTED; `unsupported` lists the refused keywords in document order, each with its JSON
        pointer, and with a reason where the keyword itself is supported and its value is not.
    """
    _check_size(schema)
    if schema is False:
        raise refusal([fault("", (), "admits nothing")])
    faults = list(_Walk(schema).visit(schema, (), 0))
    if faults:
        raise refusal(faults)


def fault(keyword: str, path: Path, reason: str | None = None) -> Fault:
    """One entry of `unsupported`."""
    entry = {"keyword": keyword, "pointer": pointer(path)}
    return entry if reason is None else {**entry, "reason": reason}


def refusal(faults: list[Fault]) -> Refusal:
    """The refusal that names the first of the faults and counts the others."""
    entries = "; ".join(_named(entry) for entry in faults[:NAMED])
    more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return Refusal(
        "RESPONSE_FORMAT_UNSUPPORTED",
        f"response_format cannot be honoured: {entries}{more}",
        param="response_format",
        unsupported=faults[:LISTED],
    )


def _named(entry: Fault) -> str:
    place = f"{entry['keyword']} at {entry['pointer']}" if entry["pointer"] else "the schema"
    return f"{place}: {entry['reason']}" if "reason" in entry else f"{place} is not supported"


def _too_large(message: str, **limit: int) -> Refusal:
    return Refusal(
        "RESPONSE_FORMAT_UNSUPPORTED",
        f"the schema of response_format {message}",
        param="response_format",
        unsupported=[],
        **limit,
    )


def _check_size(schema: object) -> None:
    """Check the nesting before the size, and without recursion, because writing a deeply nested document overflows the
    stack."""
    layer, depth = [schema], 0
    while layer := [value for value in layer if isinstance(value, dict | list)]:
        depth += 1
        if depth > VALUE_NESTING_MAXIMUM:
            raise _too_large(
                f"is nested deeper than {VALUE_NESTING_MAXIMUM} objects and arrays",
                max_depth=VALUE_NESTING_MAXIMUM,
            )
        layer = [
            inner
            for value in layer
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    try:
        size = len(compact(schema).encode())
    except UnicodeEncodeError:
        raise _too_large("holds half of a surrogate pair") from None
    except ValueError:
        raise _too_large("holds a number with thousands of digits") from None
    if size > BYTES_MAXIMUM:
        raise _too_large(
            f"has {size} bytes; at most {BYTES_MAXIMUM} are accepted",
            bytes=size,
            max_bytes=BYTES_MAXIMUM,
        )


class _Walk:
    """The faults of one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known = {id(part) for _, part in parts(root)}
        self._idle = idle_references(root)

    def visit(self, schema: object, path: Path, depth: int) -> Iterator[Fault]:
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            yield fault(path[-1] if path else "", path, "must be an object or a boolean")
            return
        if depth > NESTING_MAXIMUM:
            raise _too_large(
                f"is nested deeper than {NESTING_MAXIMUM} schemas", max_depth=NESTING_MAXIMUM
            )
        for keyword, value in schema.items():
            at = (*path, keyword)
            if keyword in ANNOTATIONS:
                continue
            if keyword not in _FORMS:
                yield fault(keyword, at)
                continue
            reason = _FORMS[keyword](value)
            if keyword == "$ref" and reason is None:
                reason = self._reference(schema, value)
            if reason is not None:
                yield fault(keyword, at, reason)
                continue
            for step, part in children(keyword, value):
                yield from self.visit(part, (*path, *step), depth + 1)
        yield from _bad_ranges(schema, path)

    def _reference(self, schema: dict[str, object], reference: str) -> str | None:
        target = resolve(self._root, reference)
        if not isinstance(target, bool) and id(target) not in self._known:
            return "there is no schema at this pointer"
        if id(schema) in self._idle:
            return "refers to itself without entering the instance"
        return None


def _bad_ranges(schema: dict[str, Any], path: Path) -> Iterator[Fault]:
    """Pairs of bounds that no value satisfies, or that are too close for the engine to tell apart."""
    kinds = schema.get("type")
    is_integer = "integer" in (kinds if isinstance(kinds, list) else [kinds])
    for low, high in RANGES:
        bounds = {name: schema[name] for name in (low, high) if name in schema}
        if any(_FORMS[name](value) is not None for name, value in bounds.items()):
            continue
        if low == "minimum" and is_integer:
            for name, value in bounds.items():
                if abs(value) > INTEGER_MAXIMUM:
                    yield fault(name, (*path, name), "of an integer is beyond 64 bits")
        if len(bounds) < len((low, high)):
            continue
        least, most = bounds.values()
        if least > most:
            yield fault(low, (*path, low), f"is greater than {high}")
        elif low == "minimum" and tightened(low, least) > tightened(high, most):
            reason = f"and {high} are too close together to be enforced exactly"
            yield fault(low, (*path, low), reason)


def _type(value: Any) -> str | None:
    names = [value] if isinstance(value, str) else value
    if not _is_unique_names(names) or not names or any(name not in TYPES for name in names):
        return f"must be one of {', '.join(TYPES)}, or a list of them"
    return None


def _is_unique_names(value: object) -> bool:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return False
    return len(set(value)) == len(value)


def _required(value: object) -> str | None:
    return None if _is_unique_names(value) else "must be a list of unique strings"


def _schemas(value: object) -> str | None:
    return None if isinstance(value, dict) else "must be an object of schemas"


def _properties(value: object) -> str | None:
    if isinstance(value, dict) and len(value) > PROPERTIES_MAXIMUM:
        return f"has {len(value)} properties; at most {PROPERTIES_MAXIMUM} are accepted"
    return _schemas(value)


def _schema(value: object) -> str | None:
    return None if isinstance(value, dict | bool) else "must be a schema"


def _any_of(value: object) -> str | None:
    return None if isinstance(value, list) and value else "must be a list of at least one schema"


def _count(value: Any) -> str | None:
    """Why a value is not a count. JSON Schema counts 2.0 among the integers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or value != int(value):
        return "must be a whole number of at least 0"
    return None


def _bound(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    try:
        return None if math.isfinite(float(value)) else "must be finite"
    except OverflowError:
        return "must fit a double"


def _enum(value: object) -> str | None:
    if not isinstance(value, list) or not value:
        return "must be a list of at least one value"
    return _const(value)


def _const(value: object) -> str | None:
    """Why a constant cannot be enforced: it holds a number that the grammar engine would write with other digits."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict | list):
            pending.extend(item.values() if isinstance(item, dict) else item)
        elif isinstance(item, int | float) and not _is_exact(item):
            return f"holds {str(item)[:40]}, which cannot be enforced exactly"
    return None


def _is_exact(number: float) -> bool:
    if isinstance(number, int):
        return abs(number) <= WHOLE_MAXIMUM
    if not math.isfinite(number):
        return False
    least, most = FRACTIONS
    if not (number == 0 or least <= abs(number) < most):
        return False
    return float(f"{number:.{DIGITS}g}") == number


def _pattern(value: object) -> str | None:
    return disputed(value) if isinstance(value, str) else "must be a string"


def _reference(value: object) -> str | None:
    if not isinstance(value, str) or not value.startswith(REFERENCE):
        return f"must begin with {REFERENCE}"
    return None


_FORMS: dict[str, Callable[[object], str | None]] = {
    "type": _type,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _schema,
    "items": _schema,
    "minItems": _count,
    "maxItems": _count,
    "minLength": _count,
    "maxLength": _count,
    "enum": _enum,
    "const": _const,
    "minimum": _bound,
    "maximum": _bound,
    "pattern": _pattern,
    "anyOf": _any_of,
    "$ref": _reference,
    "$defs": _schemas,
}
"""Supported keyword -> the function that says why a value of it is wrong, or gives None for a right value."""
