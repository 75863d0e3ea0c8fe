from __future__ import annotations

import pytest

from steerserve.rules.models import breaker
from steerserve.rules.models.breaker import Breaker, Limits

LIMITS = Limits(failures=3, recovery_seconds=60)

CLOSED = Breaker(trips=1)
FAILING = Breaker(failures=2, trips=1)
OPEN = Breaker(failures=3, opened_at=100.0, trips=1)
PROBING = Breaker(failures=3, opened_at=100.0, is_probing=True, trips=1)


@pytest.mark.parametrize(
    ("before", "event", "now", "after"),
    [
        (CLOSED, "enter", 500, CLOSED),
        (FAILING, "enter", 500, FAILING),
        (OPEN, "enter", 159.9, None),
        (OPEN, "enter", 160, PROBING),
        (PROBING, "enter", 500, None),
        (CLOSED, "succeed", 500, CLOSED),
        (FAILING, "succeed", 500, CLOSED),
        (OPEN, "succeed", 110, CLOSED),
        (PROBING, "succeed", 170, CLOSED),
        (CLOSED, "fail", 500, Breaker(failures=1, trips=1)),
        (FAILING, "fail", 500, Breaker(failures=3, opened_at=500, trips=2)),
        (OPEN, "fail", 150, OPEN),
        (PROBING, "fail", 170, Breaker(failures=4, opened_at=170, trips=2)),
        (CLOSED, "abandon", 500, CLOSED),
        (FAILING, "abandon", 500, FAILING),
        (OPEN, "abandon", 500, OPEN),
        (PROBING, "abandon", 500, OPEN),
    ],
)
def test_every_transition(before: Breaker, event: str, now: float, after: Breaker | None) -> None:
    step = {
        "enter": lambda: breaker.enter(before, LIMITS, now),
        "succeed": lambda: breaker.succeed(before),
        "fail": lambda: breaker.fail(before, LIMITS, now),
        "abandon": lambda: breaker.abandon(before),
    }[event]
    assert step() == after


@pytest.mark.parametrize(
    ("before", "state"), [(CLOSED, "closed"), (FAILING, "closed"), (OPEN, "open")]
)
def test_states(before: Breaker, state: str) -> None:
    assert before.state == state
    assert PROBING.state == "half_open"


@pytest.mark.parametrize(
    ("before", "now", "seconds"),
    [
        (CLOSED, 500, 0),
        (FAILING, 500, 0),
        (OPEN, 100, 60),
        (OPEN, 159.5, 0.5),
        (OPEN, 400, 0),
        (PROBING, 160, 1),
        (PROBING, 400, 1),
    ],
)
def test_the_time_until_a_call_may_be_made(before: Breaker, now: float, seconds: float) -> None:
    assert breaker.retry_in(before, LIMITS, now) == pytest.approx(seconds)


def test_only_one_probe_is_let_through() -> None:
    probing = breaker.enter(OPEN, LIMITS, 160)
    assert probing is not None
    assert breaker.enter(probing, LIMITS, 1000) is None
    assert breaker.enter(breaker.abandon(probing), LIMITS, 1000) is not None


def test_failures_count_only_in_a_row() -> None:
    state = Breaker()
    for _ in range(10):
        state = breaker.fail(breaker.fail(state, LIMITS, 0), LIMITS, 0)
        state = breaker.succeed(state)
    assert state == Breaker()
