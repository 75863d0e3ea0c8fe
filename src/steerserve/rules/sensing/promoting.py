"""The tokens that features promote: reading what an engine computed, and finding the features of a word."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHOWN = 10
"""The tokens that one feature shows on each side, where a request names no other number."""

MOST = 100
"""The most tokens that one feature shows on each side."""

KEPT = 10
"""The promoted tokens of each feature that a search by promoted tokens knows."""

Effects = list[tuple[int, float]]
"""Tokens, each with what a direction adds to its logit."""


def unpacked(tokens: bytes, values: bytes, top: int) -> Iterator[tuple[Effects, Effects]]:
    """For each direction, the tokens that it promotes most and those that it suppresses most. `tokens` are
    little-endian int32 and `values` little-endian float32, each [n, 2, top]."""
    row = struct.Struct(f"<{top}i"), struct.Struct(f"<{top}f")
    pairs = zip(row[0].iter_unpack(tokens), row[1].iter_unpack(values), strict=True)
    sides = [list(zip(*pair, strict=True)) for pair in pairs]
    return zip(sides[::2], sides[1::2], strict=True)


@dataclass(frozen=True, slots=True)
class PromotedTable:
    """The promoted tokens of all features of an SAE: `tokens` are little-endian int32 and `values` little-endian
    float32, each [features, top], the largest value first."""

    top: int
    tokens: bytes
    values: bytes

    @property
    def features(self) -> int:
        return len(self.tokens) // (4 * self.top)

    def found(self, token: int) -> dict[int, float]:
        """The features that promote a token, with what each adds to its logit."""
        wanted, found, at = struct.pack("<i", token), {}, -4
        while (at := self.tokens.find(wanted, at + 4)) >= 0:
            if at % 4:
                at -= at % 4  # the bytes of two tokens; the next place begins after them
            else:
                (found[at // 4 // self.top],) = struct.unpack_from("<f", self.values, at)
        return found


def promoted_half(packed: bytes, top: int) -> bytes:
    """The promoted tokens or their values, [n, top], of what an engine computed, [n, 2, top] of 4 bytes each."""
    side = 4 * top
    return b"".join(packed[at : at + side] for at in range(0, len(packed), 2 * side))


def promoting(table: PromotedTable, spellings: Sequence[Sequence[int]]) -> Effects:
    """The features that promote every token of one of the spellings of a word, the strongest first, equals by index.
    The value of a feature is its least value of these tokens, in the spelling where that is largest."""
    best: dict[int, float] = {}
    for spelling in spellings:
        by_token = [table.found(token) for token in dict.fromkeys(spelling)]
        common = set.intersection(*map(set, by_token)) if by_token else set()
        for feature in common:
            value = min(found[feature] for found in by_token)
            best[feature] = max(value, best.get(feature, value))
    return sorted(best.items(), key=lambda one: (-one[1], one[0]))
