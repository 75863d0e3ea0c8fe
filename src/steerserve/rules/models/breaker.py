"""A circuit breaker: after several failures in a row, a remote service is not called for a while, and is then tried
once.

Every step is a pure function from the breaker and the time to the next breaker. Only failures of transport count. An
answer that refuses (not found, gated, bad token) shows that the remote service works, and counts as a success.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

TROUBLED = 3
"""Failures in a row after which the remote service counts as not healthy, whether or not the breaker is open."""

State = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The number of failures in a row that open the breaker, and the seconds after which one call is let through."""

    failures: int
    recovery_seconds: float


@dataclass(frozen=True, slots=True)
class Breaker:
    """`opened_at` is a time of the caller's clock, None while the breaker is closed. `trips` counts how often it
    opened."""

    failures: int = 0
    opened_at: float | None = None
    is_probing: bool = False
    trips: int = 0

    @property
    def state(self) -> State:
        if self.opened_at is None:
            return "closed"
        return "half_open" if self.is_probing else "open"


@dataclass(frozen=True, slots=True)
class BreakerStatus:
    """A breaker as it is shown to operators."""

    name: str
    state: State
    is_open: bool
    failure_count: int
    failure_threshold: int
    recovery_seconds: float
    retry_in_seconds: float
    trips: int


def is_troubled(shown: BreakerStatus) -> bool:
    """Whether the remote service is not healthy: the breaker keeps calls back, or the last calls failed."""
    return shown.state != "closed" or shown.failure_count >= TROUBLED


def status(name: str, breaker: Breaker, limits: Limits, now: float) -> BreakerStatus:
    return BreakerStatus(
        name=name,
        state=breaker.state,
        is_open=breaker.state == "open",
        failure_count=breaker.failures,
        failure_threshold=limits.failures,
        recovery_seconds=limits.recovery_seconds,
        retry_in_seconds=retry_in(breaker, limits, now),
        trips=breaker.trips,
    )


def retry_in(breaker: Breaker, limits: Limits, now: float) -> float:
    """Seconds until a call may be let through; 0 if a call may be made now. While a probe is running, at least 1."""
    if breaker.opened_at is None:
        return 0.0
    left = max(0.0, breaker.opened_at + limits.recovery_seconds - now)
    return max(left, 1.0) if breaker.is_probing else left


def enter(breaker: Breaker, limits: Limits, now: float) -> Breaker | None:
    """The breaker after one more call was let through; None if the call must not be made."""
    if breaker.opened_at is None:
        return breaker
    if retry_in(breaker, limits, now) > 0:
        return None
    return replace(breaker, is_probing=True)


def succeed(breaker: Breaker) -> Breaker:
    """The breaker after a call was answered, or after an operator closed it: closed, without failures."""
    return Breaker(trips=breaker.trips)


def fail(breaker: Breaker, limits: Limits, now: float) -> Breaker:
    """The breaker after a call was not answered. A failure that is reported while the breaker is open changes
    nothing."""
    if breaker.state == "open":
        return breaker
    failures = breaker.failures + 1
    if breaker.state == "closed" and failures < limits.failures:
        return replace(breaker, failures=failures)
    return Breaker(failures=failures, opened_at=now, trips=breaker.trips + 1)


def abandon(breaker: Breaker) -> Breaker:
    """The breaker after the caller gave up a probe. Its outcome is unknown, so another probe may be let through."""
    return replace(breaker, is_probing=False)
