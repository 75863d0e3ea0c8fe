"""Where and why a text is no JSON, for people. The text is read again, which only a text with a fault needs."""

from __future__ import annotations

import json
import re

_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<name>-?Infinity|NaN)', re.DOTALL)


def fault_of(text: bytes) -> str:
    """The first fault, with its line and column, which count from 1."""
    try:
        written = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = text[: error.start].decode()
        return f"byte 0x{text[error.start]:02x} at {_place(before, len(before))} is not UTF-8; send UTF-8"
    if not written.strip():
        return "the text is empty"
    try:
        json.loads(written, parse_constant=_refuse, parse_int=_whole, parse_float=_unread)
    except _ConstantError as error:
        found = next((one for one in _CONSTANT.finditer(written) if one["name"]), None)
        place = _place(written, found.start()) if found else "some place"
        return f"{error} at {place} is no number of JSON; every number is finite"
    except json.JSONDecodeError as error:
        return f"{error.msg[0].lower()}{error.msg[1:]} at {_place(written, error.pos)}"
    except RecursionError:
        return "its objects and lists are nested too deep"
    except ValueError:
        return "a number in it has too many digits"
    return "a text in it has half of a surrogate pair, or a number in it is too large"


class _ConstantError(Exception):
    """A name in the place of a number."""


def _refuse(name: str) -> object:
    raise _ConstantError(name)


def _whole(text: str) -> int:
    return int(text)


def _unread(_: str) -> None:
    """A number that nobody needs. A parser that calls Python lets the other threads go on."""


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"line {line}, column {at - (text.rfind(chr(10), 0, at) + 1) + 1}"
