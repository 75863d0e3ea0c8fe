"""How many rows that yield share a step with live rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from steerserve.rules.inference.yielding import READ_EVERY, RETRY_STEPS, Sharing


def after(
    steps: int, seconds: Callable[[int], float], *, live: int = 4, lines: int = 64
) -> Sharing:
    """What was learnt of so many steps, where a step with `n` rows takes `seconds(n)` and `lines` rows yield."""
    sharing = Sharing()
    for _ in range(steps):
        shared = min(lines, sharing.rows)
        sharing = sharing.stepped(live, shared, seconds(live + shared), has_read=False)
    return sharing


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [
        pytest.param(lambda _: 0.01, 64, 2000, id="steps-that-cost-the-same-are-filled"),
        pytest.param(lambda n: 0.01 + 0.0002 * n, 2, 3, id="as-many-as-make-it-little-longer"),
        pytest.param(lambda n: 0.01 * n, 0, 1, id="none-where-one-costs-too-much"),
    ],
)
def test_rows_share_a_step_as_far_as_they_cost_little(
    seconds: Callable[[int], float], least: int, most: int
) -> None:
    assert least <= after(2000, seconds, lines=1000).most <= most


def test_one_row_is_tried_again_where_even_one_cost_too_much() -> None:
    tries = [after(steps, lambda n: 0.01 * n).most for steps in range(0, 2 * RETRY_STEPS, 8)]
    assert tries.count(0) > len(tries) * 0.9
    assert tries[RETRY_STEPS // 8] == 1


def test_steps_with_other_numbers_of_live_rows_are_not_compared() -> None:
    sharing = Sharing().stepped(1, 0, 0.01, has_read=False)
    for _ in range(100):
        sharing = sharing.stepped(8, 1, 0.04, has_read=False)
    assert sharing.most == 1


@pytest.mark.parametrize(
    ("cost", "least", "most"),
    [
        pytest.param(1.0, 2500, 2560, id="as-often-as-it-costs-nothing"),
        pytest.param(1.2, 200, 256, id="a-fiftieth-of-the-time"),
        pytest.param(4.0, 9, 10, id="far-less-than-one-long-step-in-a-hundred"),
        pytest.param(21.0, 2, 3, id="a-fiftieth-of-the-time-where-it-is-very-long"),
    ],
)
def test_prompts_are_read_in_few_steps_where_that_makes_steps_long(
    cost: float, least: int, most: int
) -> None:
    sharing = Sharing()
    read = 0
    for _ in range(2560 + READ_EVERY):
        has_read = sharing.may_read
        read += has_read
        sharing = sharing.stepped(1, 0, 0.01 * (cost if has_read else 1), has_read=has_read)
    assert least <= read <= most
