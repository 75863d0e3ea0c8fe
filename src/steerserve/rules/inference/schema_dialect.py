"""Rewrites a client's schema for the grammar engine, which reads some constructs otherwise than a validator does.

A validator uses Python's `re` and exact numbers; the grammar engine uses a Rust dialect of regular expressions, and
doubles. Where the two differ, the engine's copy of the schema admits fewer texts, so that every text that the engine
lets a model write is valid for the validator too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any
from urllib.parse import quote

from steerserve.rules.inference.schema_parts import ANNOTATIONS, Schema, path_of, pointer

OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The JSON has one line, as `json.dumps` writes it. With free white space a model could write blanks until
`max_tokens`."""

LEXER_STATES = 100_000
"""The most states of the engine's lexer, which take about 70 MB. Some regular expressions need new states at every
character."""

JSON_OBJECT = '{"type":"object"}'
"""The schema of `json_object`."""

LONGEST = 2**31
"""The largest count in the engine's copy, because the engine counts with 32 bits. No answer is this long."""

WHOLE_MAXIMUM = 2**53
"""The engine computes in doubles, so it may change a whole number beyond this one."""

DIGITS = 15
"""Significant digits of a decimal fraction that the engine reads and writes unchanged."""

_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}|\{,\d+\}")
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
_OUTSIDE = {r"\D": r"\P{Nd}", r"\W": r"[^\p{L}\p{N}_]", r"\S": r"[^\s\x1c-\x1f]"}
"""Character class -> the same class as Python's `re` reads it. The engine's \\d, \\w and \\s are smaller than Python's,
so their complements are too large."""

_NEGATED = {r"\d": r"\p{Nd}", r"\w": r"\p{L}\p{N}_", r"\s": r"\s\x1c-\x1f"}
"""Character class -> the class as Python's `re` reads it, for use inside of a negated class."""


def dialect(schema: Schema) -> str:
    """The engine's copy of a schema that `schema_subset.check_subset` has passed, with its options, as JSON text."""
    part = _translated(schema) if isinstance(schema, dict) else {}
    return json.dumps({**part, "x-guidance": OPTIONS})


def disputed(text: str) -> str | None:
    """Why a validator and the engine would read a pattern differently; None when both read the same."""
    try:
        pattern(text)
    except ValueError as error:
        return str(error)
    return None


def pattern(text: str) -> str:
    """A pattern in the engine's dialect.

    A negated class excludes U+0000 too. If the class had every control character, the engine would let the model write
    any escape sequence, also that of a quote or a backslash.

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
        quantifier = _QUANTIFIER.match(text, at)
        if quantifier and repeated and quantifier[0] == "+":
            raise ValueError("possessive quantifiers are not supported")
        piece = quantifier[0] if quantifier else text[at]
        repeated = bool(quantifier) and not repeated
        out.append(piece)
        at += len(piece)
    return "".join(out)


def _class(text: str, start: int) -> tuple[str, int]:
    """The character class that begins at `start`, in the engine's dialect, and the place behind its end."""
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
            # in first place the sign stands for itself, but the text before it may have grown
            item = "\\" + item
        out.append((_NEGATED if negated else _OUTSIDE).get(item, item))
        at += size
    return "".join([*out, text[at : at + 1]]), at + 1


def _inward(rounding: str) -> Callable[[float], float]:
    """Makes a function that rounds a bound to the digits that the engine reads exactly, always so that fewer numbers
    fit."""
    context = Context(prec=DIGITS, rounding=rounding)

    def bound(value: float) -> float:
        if isinstance(value, int) and abs(value) <= WHOLE_MAXIMUM:
            return value
        return float(context.create_decimal(repr(value)))

    return bound


def tightened(keyword: str, value: float) -> float:
    """A `minimum` or `maximum` as the engine's copy has it."""
    return float(_VALUES[keyword](value))


def _translated(part: dict[str, object]) -> dict[str, object]:
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
    """A reference with every special character encoded, because the engine accepts only valid URIs."""
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
