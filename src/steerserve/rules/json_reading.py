"""Parsers of JSON that let the other threads go on meanwhile.

A parser keeps the interpreter for itself until it calls a function of Python. Both parsers here call one for each
number. Objects, lists and texts are bounded before (`json_size.py`), and are read much faster than numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import msgspec

Pairs = Callable[[list[tuple[str, object]]], object]
"""Makes the value of an object from its keys and values."""


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


decode = msgspec.json.Decoder(float_hook=_finite).decode
"""The value of a JSON text. Its own reader of numbers needs 20 microseconds for `1e300`.

Raises:
    msgspec.DecodeError, RecursionError, UnicodeDecodeError
"""


def loads(text: str, pairs: Pairs) -> object:
    """The value of a JSON text, as `json.loads` reads it.

    Raises:
        ValueError, RecursionError
    """
    return json.loads(text, object_pairs_hook=pairs, parse_int=_whole, parse_float=_number)


def _whole(text: str) -> int:
    return int(text)


def _number(text: str) -> float:
    return float(text)
