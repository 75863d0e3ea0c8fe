"""The penalties of the protocol."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.rules.inference.prompts import repetition_penalty

PENALTY = st.floats(-2, 2)


@pytest.mark.parametrize(
    ("frequency", "presence", "expected"),
    [(0, 0, 1.0), (2, 2, 2.0), (-2, -2, 0.5), (2, -2, 1.0), (2, 0, 2**0.5), (0, 2, 2**0.5)],
)
def test_penalties_map_to_one_repetition_penalty(
    frequency: float, presence: float, expected: float
) -> None:
    assert repetition_penalty(frequency, presence) == pytest.approx(expected)


@settings(deadline=None, derandomize=True)
@given(PENALTY, PENALTY, PENALTY)
def test_a_larger_penalty_never_repeats_more(low: float, high: float, other: float) -> None:
    low, high = sorted((low, high))
    assert 0.5 <= repetition_penalty(low, other) <= repetition_penalty(high, other) <= 2.0
