"""The bounds of an intensity."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.rules.steering.intensity import Range, find_limits


@pytest.mark.shows("steering-dial.6")
@pytest.mark.parametrize(
    ("declared", "envelope", "held"),
    [
        (None, (0.0, 2.0), (0.0, 2.0)),
        (None, (0.2, 1.5), (0.2, 1.5)),
        ((0.2, 1.4), (0.0, 2.0), (0.2, 1.4)),
        ((0.2, 1.4), (0.5, 1.0), (0.5, 1.0)),
        ((-1.0, 9.0), (0.0, 2.0), (0.0, 2.0)),
        # a declared range outside of the envelope is its nearest end
        ((1.8, 2.0), (0.0, 1.5), (1.5, 1.5)),
        ((0.0, 0.2), (0.5, 1.5), (0.5, 0.5)),
    ],
)
def test_the_range_is_the_declared_one_within_the_envelope(
    declared: Any, envelope: Any, held: Any
) -> None:
    configured = Range(*envelope)
    assert find_limits(declared, configured, configured) == Range(*held)


@pytest.mark.parametrize(
    ("wanted", "held"), [(0.0, 0.0), (0.1, 0.2), (0.2, 0.2), (1.0, 1.0), (1.4, 1.4), (2.0, 1.4)]
)
def test_an_intensity_is_held_at_both_ends_and_only_0_is_honoured_below(
    wanted: float, held: float
) -> None:
    assert Range(0.2, 1.4).held(wanted) == held
