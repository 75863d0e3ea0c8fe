"""The statistics of a feature over a corpus, from all of its activations that are not 0, and the choice of its
examples.

Everything is exact. Values are kept as float32 in sorted chunks, so that no sort takes long in one piece.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from steerserve.rules.form import Form

QUANTILES = (0.5, 0.9, 0.99, 0.999)
BINS = 20
BEFORE, AFTER = 24, 12
"""The tokens of an example before and after its own."""
CHUNK = 1 << 14
"""The values that are sorted at once."""
VALUES_AT_ONCE = 1 << 23
"""The most activations of one SAE that are in memory at once; the features are summarised a range at a time."""


class Histogram(Form, frozen=True):
    """`counts[i]` activations are in [edges[i], edges[i + 1]); the last bin has its upper edge too."""

    edges: list[float]
    counts: list[int]


class FeatureSummary(Form, frozen=True, kw_only=True):
    """The activations of a feature that are not 0. Quantiles are interpolated linearly between the two nearest."""

    count: int
    max: float
    quantiles: dict[str, float]
    histogram: Histogram


@dataclass(frozen=True, slots=True)
class Groups:
    """The activations of one SAE in one context that are not 0. The feature `features[i]` has those from `starts[i]` to
    `starts[i + 1]`; `positions` count in the context and rise within a feature."""

    features: array[int]
    starts: list[int]
    positions: array[int]
    values: array[float]

    def places_of(self, feature: int) -> range:
        """The places of the activations of one feature."""
        at = bisect_left(self.features, feature)
        if at == len(self.features) or self.features[at] != feature:
            return range(0)
        return range(self.starts[at], self.starts[at + 1])


def groups(features: bytes, counts: bytes, positions: bytes, values: bytes) -> Groups:
    """The groups that these little-endian numbers stand for: uint32, and float32 for the values."""
    starts = list(accumulate(_whole(counts), initial=0))
    return Groups(_whole(features), starts, _whole(positions), _floats(values))


def ranges(totals: Sequence[int], most: int = VALUES_AT_ONCE) -> list[range]:
    """The features in ranges with at most `most` activations, or one feature. `totals` has the number of activations of
    each feature."""
    made, first, held = [], 0, 0
    for feature, total in enumerate(totals):
        if held and held + total > most:
            made.append(range(first, feature))
            first, held = feature, 0
        held += total
    if held:
        made.append(range(first, len(totals)))
    return made


@dataclass(slots=True)
class Gathered:
    """What is gathered of one feature: its activations, and the largest of each context in which it fires."""

    values: array[float] = field(default_factory=lambda: array("f"))
    largest: array[float] = field(default_factory=lambda: array("f"))
    contexts: array[int] = field(default_factory=lambda: array("I"))


def gather(into: dict[int, Gathered], found: Groups, wanted: range, context: int) -> None:
    """Add the activations of the wanted features in one context, which has this number."""
    first, last = (bisect_left(found.features, end) for end in (wanted.start, wanted.stop))
    for at in range(first, last):
        feature = found.features[at]
        part = found.values[found.starts[at] : found.starts[at + 1]]
        one = into.get(feature)
        if one is None:
            one = into[feature] = Gathered()
        one.values.extend(part)
        one.largest.append(max(part))
        one.contexts.append(context)


def summary(values: array[float]) -> FeatureSummary:
    """The statistics of these activations, of which there is at least one."""
    chunks = [array("f", sorted(values[at : at + CHUNK])) for at in range(0, len(values), CHUNK)]
    least, largest = min(c[0] for c in chunks), max(c[-1] for c in chunks)
    low, high = min(0.0, least), max(0.0, largest)
    edges = [low + (high - low) * i / BINS for i in range(BINS)] + [high]
    below = [sum(bisect_left(c, edge) for c in chunks) for edge in edges[:-1]] + [len(values)]
    return FeatureSummary(
        count=len(values),
        max=largest,
        quantiles={str(share): _quantile(chunks, len(values), share) for share in QUANTILES},
        histogram=Histogram(edges, [after - at for at, after in pairwise(below)]),
    )


def chosen(largest: Sequence[float], contexts: Sequence[int], count: int) -> list[tuple[int, bool]]:
    """The contexts that are the examples of a feature, each with whether it is one of the strongest, which come first.

    Half of them, rounded up, are those with the largest activations, earlier ones first among equals. The others are
    nearest to values at equal distances between 0 and the largest one, from the top down.
    """
    order = sorted(range(len(largest)), key=lambda i: (-largest[i], contexts[i]))
    strongest, rest = order[: -(-count // 2)], order[-(-count // 2) :]
    falling = [-largest[i] for i in rest]
    top, spaced, free = largest[order[0]], [], [True] * len(rest)
    others = count - len(strongest)
    for step in range(others, 0, -1):
        target = top * step / (others + 1)
        at = bisect_left(falling, -target)
        near = [i for i in (_free(free, at, 1), _free(free, at - 1, -1)) if i is not None]
        if not near:
            break
        best = min(near, key=lambda i: (abs(-falling[i] - target), i))
        free[best] = False
        spaced.append(rest[best])
    spaced.sort(key=lambda i: (-largest[i], contexts[i]))
    return [(contexts[i], True) for i in strongest] + [(contexts[i], False) for i in spaced]


def window(found: Groups, feature: int, size: int) -> tuple[int, float, int, dict[int, float]]:
    """The position of the largest activation of a feature in a context of `size` tokens, its value, and around it: the
    first position of the window, and the activations in it by their position."""
    places = found.places_of(feature)
    best = max(places, key=lambda i: (found.values[i], -found.positions[i]))
    position = found.positions[best]
    first, end = max(0, position - BEFORE), min(size, position + AFTER + 1)
    inside = {
        found.positions[i]: found.values[i] for i in places if first <= found.positions[i] < end
    }
    return position, found.values[best], first, inside


# ------------------------------------------------------------- inside


def _whole(data: bytes) -> array[int]:
    made = array("I", data)
    if sys.byteorder == "big":
        made.byteswap()
    return made


def _floats(data: bytes) -> array[float]:
    made = array("f", data)
    if sys.byteorder == "big":
        made.byteswap()
    return made


def _free(free: Sequence[bool], at: int, step: int) -> int | None:
    """The first free place from `at` on in the direction of `step`."""
    while 0 <= at < len(free):
        if free[at]:
            return at
        at += step
    return None


def _quantile(chunks: Sequence[array[float]], count: int, share: float) -> float:
    at = (count - 1) * share
    low = math.floor(at)
    value = _ranked(chunks, low)
    if low == at:
        return value
    return value + (_ranked(chunks, low + 1) - value) * (at - low)


def _ranked(chunks: Sequence[array[float]], rank: int) -> float:
    """The value with `rank` values before it in order. It is found by halving the float32 numbers between the least and
    the largest value."""
    if len(chunks) == 1:
        return chunks[0][rank]
    low, high = (_order(value) for value in (min(c[0] for c in chunks), max(c[-1] for c in chunks)))
    while low < high:
        middle = (low + high) // 2
        if sum(bisect_right(c, _value(middle)) for c in chunks) > rank:
            high = middle
        else:
            low = middle + 1
    return _value(low)


def _order(value: float) -> int:
    """A whole number for a float32 number. Both have the same order."""
    bits = int.from_bytes(struct.pack("<f", value), "little", signed=True)
    return bits if bits >= 0 else bits ^ 0x7FFFFFFF


def _value(order: int) -> float:
    bits = order if order >= 0 else order ^ 0x7FFFFFFF
    (value,) = struct.unpack("<f", struct.pack("<i", bits))
    return float(value)
