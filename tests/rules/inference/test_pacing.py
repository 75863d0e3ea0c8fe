"""How parts of jobs share the model with live requests."""

from __future__ import annotations

import pytest

from steerserve.rules.inference import pacing
from steerserve.rules.inference.pacing import SHARE, WHOLE_SHARE


@pytest.mark.parametrize("seconds", [0.001, 0.05, 3.0])
def test_a_part_and_its_pause_leave_the_rest_of_the_time_to_requests(seconds: float) -> None:
    assert seconds / (seconds + pacing.pause(seconds)) == pytest.approx(WHOLE_SHARE)


@pytest.mark.parametrize(
    ("seconds", "worked"),
    [pytest.param(1.0, 0.2, id="beside-long-steps"), pytest.param(1.0, 1.0, id="alone")],
)
def test_only_the_work_of_the_engine_counts_where_it_is_told(seconds: float, worked: float) -> None:
    whole = seconds + pacing.pause(seconds, worked)
    assert worked / whole == pytest.approx(SHARE)


def test_a_part_that_took_little_of_a_long_time_has_no_pause() -> None:
    assert pacing.pause(1.0, 0.01) == 0.0


def test_live_requests_take_at_most_a_tenth_longer() -> None:
    assert pytest.approx(1.1) == 1 / (1 - SHARE)
