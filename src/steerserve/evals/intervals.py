"""Intervals of 95 % of the scores of evaluations."""

from __future__ import annotations

import math

Z = 1.96
"""Standard errors on each side of a mean in an interval of 95 %."""
ROUNDING = 1e-6


def interval(score: float, error: float, count: int) -> tuple[float, float]:
    """The bounds of the interval of a score over `count` documents, whose standard error is `error`.

    A share of the documents has the score interval of Wilson (1927, "Probable inference, the law of succession, and
    statistical inference"), which stays inside [0, 1] and has a width where no document, or every document, is right.
    """
    if not _is_share(score, error, count):
        return score - Z * error, score + Z * error
    spread = Z * Z / count
    centre = (score + spread / 2) / (1 + spread)
    half = math.sqrt(score * (1 - score) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def _is_share(score: float, error: float, count: int) -> bool:
    """Whether each document counts as 0 or 1: then the standard error follows from the score."""
    if not 0 <= score <= 1 or count < 2:
        return False
    expected = math.sqrt(score * (1 - score) / (count - 1))
    return math.isclose(error, expected, rel_tol=ROUNDING, abs_tol=ROUNDING)
