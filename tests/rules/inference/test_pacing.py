"""How parts of jobs share the model with live requests."""

from __future__ import annotations

import pytest

from steerserve.rules.inference import pacing
from steerserve.rules.inference.pacing import PART_SECONDS, SHARE, Pace


@pytest.mark.parametrize("seconds", [0.001, 0.05, 3.0])
def test_a_part_and_its_pause_leave_the_rest_of_the_time_to_requests(seconds: float) -> None:
    assert seconds / (seconds + pacing.pause(seconds)) == pytest.approx(SHARE)


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [(PART_SECONDS / 4, 4), (PART_SECONDS / 3.9, 3), (PART_SECONDS / 100, 8), (2.0, 1), (0.0, 1)],
)
def test_a_part_takes_about_as_long_as_a_live_text_may_wait(seconds: float, texts: int) -> None:
    assert Pace().texts(8) == 1
    assert Pace().after(2, 2 * seconds).texts(8) == texts


def test_one_slow_part_does_not_decide_the_next() -> None:
    pace = Pace().after(1, 0.01)
    assert pace.after(1, 0.02).text == pytest.approx(0.013)
