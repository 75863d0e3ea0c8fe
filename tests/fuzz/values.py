"""Hostile values, each drawn with a generator of random numbers that the caller seeds."""

from __future__ import annotations

import json
from random import Random
from typing import Any


class Spliced(str):
    """JSON text that stands in a body exactly as it is, valid or not."""

    __slots__ = ()


NUMBERS = (
    "-1 0 -0 1 2 3 17 0.1 1.0 -0.5 1e2 1e308 1e400 -1e400 1e-400 5e-324 NaN Infinity -Infinity 127 128 255 256 "
    "10001 32768 65536 2147483647 2147483648 -2147483649 4294967295 4294967296 9007199254740993 9223372036854775807 "
    "9223372036854775808 -9223372036854775809 18446744073709551616"
).split()
"""Numbers as they are written in JSON."""

TEXTS = (
    "",
    " ",
    "0",
    "1",
    "-1",
    "null",
    "true",
    "\x00",
    "a\x00b",
    "a\r\nX-Injected: 1",
    "\x1b[31mred",
    "\x7f",
    "\u2028",
    "\u202eevil",
    "\u200b",
    "\ufeff",
    "\uffff",
    "\U0010ffff",
    "\U0001f600" * 3,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\ud800",
    "a\udfffb",
    "e\u0301" * 40,
    "\u0130\u0131\ufb00\u00df",
    "\u0646\u0635",
    "..",
    "../../etc/passwd",
    "..%2f..%2fetc",
    "/etc/passwd",
    "/proc/self/environ",
    "/dev/zero",
    "~root",
    "C:\\Windows",
    "a//b",
    "a/../b",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x",
    "acme/tiny@main",
    "acme/none",
    "%s%n%x",
    "{{ 7 * 7 }}",
    "{% for i in range(9) %}",
    "${jndi:ldap://x}",
    "'; DROP TABLE models; --",
    "<script>alert(1)</script>",
    "__class__",
    "constructor",
    "<|im_start|>system",
    "</s><s>",
    "off",
    "max",
    "refuse",
    "last",
    "sae_0000000000000000",
    "prof_0000000000000000",
)

PATTERNS = (
    "(a+)+$",
    "(",
    "[",
    "(?<=a)b",
    "\\w{1,65535}",
    "(x|xx|xxx)*$",
    "(?:a{1,50}){1,50}",
    "\\p{L}+",
    "a" * 5000,
    "\\",
    "^$",
)

LEVELS = (5, 40, 300, 3000, 20_000)


def number(draw: Random) -> Spliced:
    if draw.random() < 0.05:
        return Spliced("9" * draw.choice((40, 400, 5000)))
    return Spliced(draw.choice(NUMBERS))


def text(draw: Random) -> str:
    dice = draw.random()
    if dice < 0.7:
        return draw.choice(TEXTS)
    if dice < 0.9:
        return "".join(character(draw) for _ in range(draw.randrange(1, 40)))
    return draw.choice(TEXTS[2:]) * draw.choice((10, 100, 1000, 4000))


def character(draw: Random) -> str:
    """A character of any plane; half a surrogate pair now and then."""
    top = draw.choice((0x80, 0x80, 0x100, 0x3000, 0xFFFF, 0x10FFFF))
    return chr(draw.randrange(top))


def structure(draw: Random) -> Any:
    """A list or an object that no field expects."""
    kind = draw.randrange(8)
    if kind == 0:
        level = draw.choice(LEVELS)
        return Spliced("[" * level + "]" * level)
    if kind == 1:
        level = draw.choice(LEVELS)
        return Spliced('{"a":' * level + "0" + "}" * level)
    if kind == 2:
        return [anything(draw, is_flat=True)] * draw.choice((1, 2, 130, 3000))
    if kind == 3:
        return {str(i): i for i in range(draw.choice((1, 20, 1001, 3000)))}
    if kind == 4:
        return Spliced('{"1": 1.0, "1": 2.0}')
    if kind == 5:
        return {text(draw): anything(draw, is_flat=True) for _ in range(3)}
    return [] if kind == 6 else {}


def anything(draw: Random, *, is_flat: bool = False) -> Any:
    """Any hostile value; a flat one is no list and no object."""
    dice = draw.random()
    if dice < 0.35:
        return number(draw)
    if dice < 0.75 or is_flat:
        return text(draw)
    if dice < 0.85:
        return draw.choice((None, True, False))
    return structure(draw)


def schema(draw: Random, level: int = 0) -> Any:
    """A JSON schema, often a wrong one. Costly patterns are rare, because each may cost seconds."""
    kind = draw.choice(("string", "integer", "number", "boolean", "array", "object", "null", "any"))
    made: dict[str, Any] = {} if kind == "any" else {"type": kind}
    if kind == "string":
        made |= {"maxLength": draw.choice((0, 1, 3, -1, 10**9))}
        if draw.random() < 0.05:
            made["pattern"] = draw.choice(PATTERNS)
    elif kind in ("integer", "number"):
        made |= {"minimum": draw.choice((0, -5, 10**20)), "maximum": draw.choice((9, 3, -(10**20)))}
    elif kind == "array" and level < 3:
        made |= {"items": schema(draw, level + 1), "maxItems": draw.choice((0, 2, 10**6))}
    elif kind == "object" and level < 3:
        names = [draw.choice(("a", "b", "type", "$ref", text(draw))) for _ in range(2)]
        made |= {"properties": {name: schema(draw, level + 1) for name in names}}
        made |= {"required": names[:1], "additionalProperties": draw.choice((True, False))}
    dice = draw.random()
    if dice < 0.05:
        made["$ref"] = draw.choice(("#", "#/$defs/a", "http://127.0.0.1:1/x", "#/$defs/none"))
        made["$defs"] = {"a": {"$ref": "#/$defs/a"}}
    elif dice < 0.1:
        made[
            draw.choice(("not", "allOf", "oneOf", "if", "format", "multipleOf", "enum", "const"))
        ] = anything(draw, is_flat=True)
    elif dice < 0.13:
        made[draw.choice(("type", "properties", "items", "required"))] = anything(draw)
    return made


def written(value: Any) -> str:
    """A value as JSON. Spliced texts stay as they are, and halves of surrogate pairs are written as escapes."""
    if isinstance(value, Spliced):
        return str(value)
    if isinstance(value, dict):
        inside = (f"{json.dumps(str(name))}: {written(part)}" for name, part in value.items())
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(written(part) for part in value) + "]"
    return json.dumps(value)
