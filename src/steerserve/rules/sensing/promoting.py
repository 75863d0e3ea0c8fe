"""The tokens that features promote: reading what an engine computed, and finding the features of a word."""

from __future__ import annotations

import struct
from collections.abc import Iterator

SHOWN = 10
"""The tokens that one feature shows on each side, where a request names no other number."""

MOST = 100
"""The most tokens that one feature shows on each side."""

Effects = list[tuple[int, float]]
"""Tokens, each with what a direction adds to its logit."""


def unpacked(tokens: bytes, values: bytes, top: int) -> Iterator[tuple[Effects, Effects]]:
    """For each direction, the tokens that it promotes most and those that it suppresses most. `tokens` are
    little-endian int32 and `values` little-endian float32, each [n, 2, top]."""
    row = struct.Struct(f"<{top}i"), struct.Struct(f"<{top}f")
    pairs = zip(row[0].iter_unpack(tokens), row[1].iter_unpack(values), strict=True)
    sides = [list(zip(*pair, strict=True)) for pair in pairs]
    return zip(sides[::2], sides[1::2], strict=True)
