"""How well trained directions tell held-out examples apart, and which layer is best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from steerserve.nouns.contrasts.rules import compare


@dataclass(frozen=True, slots=True)
class Examples:
    """For each example whether it is positive, and whether it is held out."""

    is_positive: Sequence[bool]
    is_held_out: Sequence[bool]

    def held(self, scores: Sequence[float]) -> tuple[list[float], list[float]]:
        """The scores of the positives and of the negatives that are held out."""
        rows = list(zip(scores, self.is_positive, self.is_held_out, strict=True))
        return [s for s, is_in, held in rows if held and is_in], [
            s for s, is_in, held in rows if held and not is_in
        ]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A direction on held-out examples; all None where a group has none. `low` and `high` are None too where a group
    has one, and `separation` where the scores have no spread."""

    auc: float | None = None
    low: float | None = None
    high: float | None = None
    separation: float | None = None


def judged(examples: Examples, scores: Sequence[float]) -> Judgement:
    """How well the scores of a direction tell the held-out examples apart."""
    positives, negatives = examples.held(scores)
    if not positives or not negatives:
        return Judgement()
    found = compare(positives, negatives, len(positives), len(negatives))
    separation = found.effect if math.isfinite(found.effect) else None
    return Judgement(found.auc, found.low, found.high, separation)


def aucs(examples: Examples, scores: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """The mean and the largest AUC of several directions; None where a group has no held-out example."""
    found = [one.auc for one in (judged(examples, each) for each in scores) if one.auc is not None]
    return (fmean(found), max(found)) if found else None


def equals(best: int, layers: Sequence[int], found: Sequence[Judgement]) -> list[int]:
    """The layers that tell examples apart as well as the best one does, which is among them: their AUC is not below the
    interval of its AUC. Empty where the interval is not known."""
    low = next((one.low for layer, one in zip(layers, found, strict=True) if layer == best), None)
    if low is None:
        return []
    return [
        layer
        for layer, one in zip(layers, found, strict=True)
        if one.auc is not None and one.auc >= low
    ]


def best(
    layers: Sequence[int], found: Sequence[Judgement], agreement: Sequence[float | None]
) -> int:
    """The layer with the largest AUC, of equal ones with the largest separation, and then the lowest. Without held-out
    examples it is the layer whose directions of two halves of the texts agree best, and where no half has texts of both
    groups, the middle one of the layers.

    Args:
        agreement: the cosine between the directions of the two halves at each layer, -1 to 1; None where it is not
            known.
    """
    ranked = [
        (one.auc, math.inf if one.separation is None else one.separation, -layer)
        for layer, one in zip(layers, found, strict=True)
        if one.auc is not None
    ]
    if ranked:
        return -max(ranked)[2]
    agreed = [
        (cosine, -layer)
        for layer, cosine in zip(layers, agreement, strict=True)
        if cosine is not None
    ]
    return -max(agreed)[1] if agreed else layers[len(layers) // 2]
