"""The order in which the features of a token or a text are listed: the largest first, or those that say most."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from steerserve.errors import Refusal

Rank = Literal["value", "share", "rarity"]
RANKS: tuple[Rank, ...] = ("value", "share", "rarity")


@dataclass(frozen=True, slots=True)
class Scales:
    """What corpora tell of all features of an SAE in a model: the largest activation of each (0 where it never fires),
    and at how many of the `tokens` tokens of the largest corpus each fires."""

    maxima: array[float]
    counts: array[int]
    tokens: int

    def share(self, feature: int, value: float) -> float:
        """The value in units of the largest one that is known, at most 1; 1 for a feature that fires for the first
        time."""
        largest = self.maxima[feature]
        return min(1.0, value / largest) if largest > 0 else 1.0

    def bits(self, feature: int) -> float:
        """How rare the feature is: -log2 of the share of tokens at which it fires. One that never fired counts as if it
        had at half of a token."""
        return -math.log2(max(0.5, self.counts[feature]) / max(1, self.tokens))

    def weight(self, rank: Rank, feature: int, value: float) -> float:
        """What features are ranked by: the share of their own maximum (`share`), or this share times the bits of their
        rarity (`rarity`)."""
        if rank == "value" or value <= 0:
            return value
        share = self.share(feature, value)
        return share if rank == "share" else share * self.bits(feature)

    def figure(self, rank: Rank, feature: int, value: float, metric: str) -> float:
        """What features are ranked by that have a figure over many tokens. How often a feature fires is compared with
        how often it does in the corpus."""
        if rank == "value" or metric in ("mean", "max"):
            return self.weight(rank, feature, value)
        if rank == "rarity":
            return value * self.bits(feature)
        return value * self.tokens / max(0.5, self.counts[feature])


def best(
    features: Iterable[tuple[int, float]], rank: Rank, scales: Scales, count: int
) -> list[tuple[int, float]]:
    """The `count` features, as [index, value], with the largest weights, the largest first and equals in their order
    before."""
    return sorted(features, key=lambda one: -scales.weight(rank, *one))[:count]


def unknown(place: str) -> Refusal:
    """The refusal of a rank for an SAE of which no corpus was read. `place` names the field."""
    why = f"{place}: no corpus was read of this SAE in this model; read one at /api/corpora, or rank by value"
    return Refusal("INVALID_PARAMETER", why, param=place)
