"""Percentiles of measured times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of a time in milliseconds, each None before anything was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


def percentiles(seconds: Iterable[float]) -> Percentiles:
    """The percentiles in milliseconds. Each is one of the measured values."""
    ordered = sorted(seconds)
    if not ordered:
        return Percentiles(None, None, None)
    return Percentiles(
        *(round(ordered[-(-n * len(ordered) // 100) - 1] * 1000, 3) for n in PERCENTILES)
    )
