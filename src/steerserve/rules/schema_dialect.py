"""The grammar engine's copy of a client's schema, in which disputed constructs mean the narrower of two things.

Validators (Python's `re`, JSON's numbers) and the grammar engine (a Rust regex dialect, doubles) differ at the edges.
Where they do, the engine's copy admits a little less, so that what it lets a model write is valid for both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any
from urllib.parse import quote

from steerserve.rules.schema_parts import ANNOTATIONS, Schema, path_of, pointer

OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One line, as `json.dumps` writes it. Free white space would let a model pad until `max_tokens`."""

LEXER_STATES = 100_000
"""A regular expression can be made to need new states at every character; this many take about 70 MB."""

JSON_OBJECT = '{"type":"object"}'
"""The schema of `json_object`."""

LONGEST = 2**31
"""The engine's counters have 32 bits; no document gets here."""

WHOLE_MAXIMUM = 2**53
"""The engine computes in doubles, so a whole number beyond this one may be changed."""

DIGITS = 15
"""Significant digits of a decimal fraction that the engine reads and writes unchanged."""

_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}|\{,\d+\}")
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
_OUTSIDE = {r"\D": r"\P{Nd}", r"\W": r"[^\p{L}\p{N}_]", r"\S": r"[^\s\x1c-\x1f]"}
"""The engine's digits and word characters are ASCII, so its complements of them are too large."""

_NEGATED = {r"\d": r"\p{Nd}", r"\w": r"\p{L}\p{N}_", r"\s": r"\s\x1c-\x1f"}
"""The same inside of a negated class."""


def dialect(schema: Schema) -> str:
    """The engine's copy of a schema that `schema_subset.check` has passed, with its options, as JSON text."""
    part = _translated(schema) if isinstance(schema, dict) else {}
    return json.dumps({**part, "x-guidance": OPTIONS})


def disputed(text: str) -> str | None:
    """Why a pattern means one thing to a validator and another to the engine; None when it does not."""
    try:
        pattern(text)
    except ValueError as error:
        return str(error)
    return None


def pattern(text: str) -> str:
    """A pattern in the engine's dialect.

    A negated class gives up U+0000: a class with every control character would let the engine write any escape, a quote
    or a backslash among them.

    Raises:
        ValueError: a construct that both dialects accept with different meanings.
    """
    out: list[str] = []
    at = 0
    repeated = False
    while at < len(text):
        if text[at] == "[":
            piece, at = _class(text, at)
            out.append(piece)
            repeated = False
            continue
        if text[at] == "\\":
            pair = text[at : at + 2]
            out.append(_OUTSIDE.get(pair, pair))
            at += 2
            repeated = False
            continue
        if _VERBOSE.match(text, at):
            raise ValueError("the flag x means different things to different dialects")
        found = _QUANTIFIER.match(text, at)
        if found and repeated and found[0] == "+":
            raise ValueError("possessive quantifiers are not supported")
        piece = found[0] if found else text[at]
        repeated = bool(found) and not repeated
        out.append(piece)
        at += len(piece)
    return "".join(out)


def _class(text: str, start: int) -> tuple[str, int]:
    """A character class in the engine's dialect, and where it ends; `start` is at its bracket."""
    negated = text.startswith("[^", start)
    at = start + 1 + negated
    out = [r"[^\x00" if negated else "["]
    first = at
    while at < len(text) and (text[at] != "]" or at == first):
        if text[at] == "[":
            raise ValueError("a bracket inside of a character class has to be escaped")
        size = 2 if text[at] == "\\" else 1
        item = text[at : at + size]
        if at == first and item in "]-":
            # plain where it stands first, which it may no longer do
            item = "\\" + item
        out.append((_NEGATED if negated else _OUTSIDE).get(item, item))
        at += size
    return "".join([*out, text[at : at + 1]]), at + 1


def _inward(rounding: str) -> Callable[[float], float]:
    """A bound that the engine reads exactly; one with more digits is tightened to the next that has no more."""
    context = Context(prec=DIGITS, rounding=rounding)

    def bound(value: float) -> float:
        if isinstance(value, int) and abs(value) <= WHOLE_MAXIMUM:
            return value
        return float(context.create_decimal(repr(value)))

    return bound


def tightened(keyword: str, value: float) -> float:
    """A `minimum` or `maximum` as the engine is given it."""
    return float(_VALUES[keyword](value))


def _translated(part: dict[str, Any]) -> dict[str, Any]:
    return {
        keyword: _VALUES[keyword](value) if keyword in _VALUES else value
        for keyword, value in part.items()
        if keyword not in ANNOTATIONS
    }


def _schema(part: Schema) -> Schema:
    return part if isinstance(part, bool) else _translated(part)


def _schemas(value: dict[str, Schema]) -> dict[str, Schema]:
    return {name: _schema(part) for name, part in value.items()}


def _reference(value: str) -> str:
    """Encoded throughout: the engine refuses references that are no URI, validators do not."""
    return "#" + quote(pointer(path_of(value)), safe="/~$")


_VALUES: dict[str, Callable[[Any], Any]] = {
    "properties": _schemas,
    "$defs": _schemas,
    "anyOf": lambda value: [_schema(part) for part in value],
    "items": _schema,
    "additionalProperties": _schema,
    "$ref": _reference,
    "pattern": pattern,
    "minimum": _inward(ROUND_CEILING),
    "maximum": _inward(ROUND_FLOOR),
    "minLength": int,
    "minItems": int,
    "maxLength": lambda value: min(int(value), LONGEST),
    "maxItems": lambda value: min(int(value), LONGEST),
}
