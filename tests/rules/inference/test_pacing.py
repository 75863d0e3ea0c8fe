"""How parts of jobs share the model with live requests."""

from __future__ import annotations

import pytest

from steerserve.rules.inference import pacing
from steerserve.rules.inference.pacing import SHARE


@pytest.mark.parametrize("seconds", [0.001, 0.05, 3.0])
def test_a_part_and_its_pause_leave_the_rest_of_the_time_to_requests(seconds: float) -> None:
    assert seconds / (seconds + pacing.pause(seconds)) == pytest.approx(SHARE)
