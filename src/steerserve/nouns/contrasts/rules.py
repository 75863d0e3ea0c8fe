"""Contrast: how well the pooled activation of each feature tells one group of texts from another.

The activations are sparse: a text has the features that are not 0. All statistics of a feature come from its groups of
equal values, of which the zeros are one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from steerserve.errors import Refusal

NORMAL_95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""

Pooled = Mapping[int, float]
"""Feature -> pooled activation of one text, of the features that are not 0."""


def check_groups(positives: Sequence[object], negatives: Sequence[object]) -> None:
    """Check that two groups of texts and conversations differ. Equal groups would be told apart by chance alone,
    because different ones of their texts are held out.

    Raises:
        Refusal: INVALID_PARAMETER.
    """
    if set(map(repr, positives)) == set(map(repr, negatives)):
        why = "negatives: both groups have the same texts, so nothing tells them apart"
        raise Refusal("INVALID_PARAMETER", why, param="negatives")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One feature on two groups of texts.

    Attributes:
        auc: the probability that a positive text has a larger value than a negative one, where ties count half.
        low, high: its 95 % interval by DeLong (DeLong et al. 1988), cut to [0, 1]; None where a group has one text.
        p: two-sided Mann-Whitney test by the normal approximation, with the corrections for ties and continuity.
        effect: the difference of the means in units of the pooled standard deviation. It is infinite where the means
            differ and no group has any spread.
        mean_positive, mean_negative: over all texts of a group.
        share_positive, share_negative: the share of the texts of a group in which the feature is not 0.
    """

    auc: float
    low: float | None
    high: float | None
    p: float
    effect: float
    mean_positive: float
    mean_negative: float
    share_positive: float
    share_negative: float


@dataclass(frozen=True, slots=True)
class Contrasted:
    """One feature of the answer. `auc_held_out` is None where a group has no held-out text."""

    index: int
    found: Comparison
    p_corrected: float
    auc_held_out: float | None


def held_out(texts: int, holdout: float) -> int:
    """The texts of a group that are held out: the share, rounded down, and never all."""
    return min(texts - 1, math.floor(texts * holdout))


def contrast(
    positives: Sequence[Pooled],
    negatives: Sequence[Pooled],
    held_positives: Sequence[Pooled],
    held_negatives: Sequence[Pooled],
    *,
    top: int,
    min_share: float,
) -> tuple[list[Contrasted], int]:
    """The `top` features that tell positives from negatives best, and how many were compared.

    (1) A feature is compared when it fires in at least one text, and in at least `min_share` of the texts of one group.
    (2) The p of each is corrected by Holm (1979) over the compared features.
    (3) They are ranked by auc, then by effect, then by index.
    (4) Held-out texts decide nothing: the first features have a second auc on them.
    """
    texts = len(positives), len(negatives)
    columns = _columns(positives), _columns(negatives)
    found = {}
    for index in columns[0].keys() | columns[1].keys():
        one = compare(columns[0].get(index, ()), columns[1].get(index, ()), *texts)
        if max(one.share_positive, one.share_negative) >= min_share:  # (1)
            found[index] = one
    corrected = holm({index: one.p for index, one in found.items()})  # (2)
    ranked = sorted(found, key=lambda index: (-found[index].auc, -found[index].effect, index))
    best = [
        Contrasted(
            index, found[index], corrected[index], _auc_of(index, held_positives, held_negatives)
        )
        for index in ranked[:top]  # (3)
    ]
    return best, len(found)


def compare(positives: Iterable[float], negatives: Iterable[float], m: int, n: int) -> Comparison:
    """The comparison of one feature. `positives` and `negatives` are its values that are not 0, in `m` positive and `n`
    negative texts; all other values are 0."""
    positives, negatives = list(positives), list(negatives)
    groups = _groups(positives, negatives, m, n)
    auc = _auc(groups, m, n)
    low, high = _interval(groups, auc, m, n)
    mean_positive, mean_negative = math.fsum(positives) / m, math.fsum(negatives) / n
    return Comparison(
        auc,
        low,
        high,
        _mann_whitney(groups, auc, m, n),
        _effect(groups, mean_positive, mean_negative, m + n),
        mean_positive,
        mean_negative,
        len(positives) / m,
        len(negatives) / n,
    )


def holm(p: Mapping[int, float]) -> dict[int, float]:
    """The p-values corrected for their number by the step-down method of Holm (1979)."""
    corrected, largest = {}, 0.0
    for place, (index, value) in enumerate(sorted(p.items(), key=lambda one: one[1])):
        largest = max(largest, min(1.0, (len(p) - place) * value))
        corrected[index] = largest
    return corrected


# ---------------------------------------------------------------------- one feature

_Group = tuple[float, int, int]
"""A value, with the positive and the negative texts that have it."""


def _groups(positives: Sequence[float], negatives: Sequence[float], m: int, n: int) -> list[_Group]:
    """The groups of equal values, the smallest value first."""
    counts: dict[float, list[int]] = {0.0: [m - len(positives), n - len(negatives)]}
    for side, values in enumerate((positives, negatives)):
        for value in values:
            counts.setdefault(value, [0, 0])[side] += 1
    return [(value, *counts[value]) for value in sorted(counts)]  # type: ignore[misc]


def _auc(groups: Sequence[_Group], m: int, n: int) -> float:
    below, wins = 0, 0.0
    for _, positive, negative in groups:
        wins += positive * (below + negative / 2)
        below += negative
    return wins / (m * n)


def _interval(
    groups: Sequence[_Group], auc: float, m: int, n: int
) -> tuple[float | None, float | None]:
    if m < 2 or n < 2:
        return None, None
    negatives_below, positives_above = 0, m
    of_positives, of_negatives = 0.0, 0.0
    for _, positive, negative in groups:
        positives_above -= positive
        of_positives += positive * ((negatives_below + negative / 2) / n - auc) ** 2
        of_negatives += negative * ((positives_above + positive / 2) / m - auc) ** 2
        negatives_below += negative
    variance = of_positives / ((m - 1) * m) + of_negatives / ((n - 1) * n)
    half = NORMAL_95 * math.sqrt(variance)
    return max(0.0, auc - half), min(1.0, auc + half)


def _mann_whitney(groups: Sequence[_Group], auc: float, m: int, n: int) -> float:
    total = m + n
    tied = sum((positive + negative) ** 3 - positive - negative for _, positive, negative in groups)
    variance = m * n / 12 * (total + 1 - tied / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    distance = max(0.0, abs(auc - 0.5) * m * n - 0.5)
    return math.erfc(distance / math.sqrt(2 * variance))


def _effect(
    groups: Sequence[_Group], mean_positive: float, mean_negative: float, total: int
) -> float:
    squares = math.fsum(
        positive * (value - mean_positive) ** 2 + negative * (value - mean_negative) ** 2
        for value, positive, negative in groups
    )
    difference = mean_positive - mean_negative
    if squares > 0:
        return difference / math.sqrt(squares / (total - 2))
    return math.copysign(math.inf, difference) if difference else 0.0


# ---------------------------------------------------------------------- all features


def _columns(texts: Sequence[Pooled]) -> dict[int, list[float]]:
    """Feature -> its values that are not 0."""
    columns: dict[int, list[float]] = {}
    for text in texts:
        for index, value in text.items():
            columns.setdefault(index, []).append(value)
    return columns


def _auc_of(index: int, positives: Sequence[Pooled], negatives: Sequence[Pooled]) -> float | None:
    m, n = len(positives), len(negatives)
    if not m or not n:
        return None
    first, second = (
        [text[index] for text in side if index in text] for side in (positives, negatives)
    )
    return _auc(_groups(first, second, m, n), m, n)
