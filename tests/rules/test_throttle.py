"""Progress reports: the first, four a second, the last."""

from __future__ import annotations

import pytest

from steerserve.rules import throttle


@pytest.mark.parametrize(
    ("last", "now", "passes"),
    [(None, 5.0, True), (5.0, 5.0, False), (5.0, 5.249, False), (5.0, 5.25, True)],
)
def test_a_report_passes_first_and_a_quarter_of_a_second_after_another(
    last: float | None, now: float, passes: bool
) -> None:
    assert throttle.may_pass(last, now) is passes


def test_a_second_of_many_reports_passes_at_most_four() -> None:
    last: float | None = None
    passed = 0
    for step in range(64):
        now = step / 64
        if throttle.may_pass(last, now):
            last, passed = now, passed + 1
    assert passed == 4
